import asyncio
from collections.abc import Sequence

import pytest

from backends.discovery.dns import EMPTY_BELIEVED, MAX_FOUND, MAX_ID, DnsSource, ResolvedAddresses, member_id, system_lookup
from domain.membership import Member, SourceError


class Resolver:
    """Answers with what it is given next."""

    def __init__(self, *found: ResolvedAddresses) -> None:
        self.next: Sequence[ResolvedAddresses] | Exception = found

    async def __call__(self) -> Sequence[ResolvedAddresses]:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


A, B = ResolvedAddresses("10.0.0.1", 8000), ResolvedAddresses("10.0.0.2", 8000)


def source(resolver: Resolver, scheme: str = "http") -> DnsSource:
    return DnsSource("chat", "engines.svc", scheme, 5.0, resolver)


async def test_each_address_is_a_backend_with_the_name_for_tls_and_the_address_to_connect_to() -> None:
    assert await source(Resolver(B, A, A), "https").read() == [
        Member("chat", "chat-10.0.0.1-8000", "https://engines.svc:8000", "dns", "10.0.0.1"),
        Member("chat", "chat-10.0.0.2-8000", "https://engines.svc:8000", "dns", "10.0.0.2"),
    ]
    (srv,) = await source(Resolver(ResolvedAddresses("fd00::5", 9000, "e-1.engines.svc"))).read()
    assert srv == Member("chat", "chat-fd00--5-9000", "http://e-1.engines.svc:9000", "dns", "fd00::5")


async def test_a_flip_of_the_record_is_seen_at_the_next_look() -> None:
    resolver = Resolver(A)
    found = source(resolver)
    assert [m.address for m in await found.read()] == ["10.0.0.1"]
    resolver.next = [B]
    assert [m.address for m in await found.read()] == ["10.0.0.2"]


@pytest.mark.parametrize("error", [OSError("SERVFAIL"), TimeoutError()])
async def test_failures_are_said_and_are_no_answer(error: Exception) -> None:
    resolver = Resolver(A)
    found = source(resolver)
    await found.read()
    resolver.next = error
    with pytest.raises(SourceError, match=r"engines\.svc is not resolved"):
        await found.read()
    resolver.next = [A]
    assert len(await found.read()) == 1


async def test_nobody_is_believed_only_when_it_is_said_again_and_again() -> None:
    resolver = Resolver(A)
    found = source(resolver)
    await found.read()
    resolver.next = []
    await believed_late(found)
    resolver.next = [A]
    await found.read()
    resolver.next = []
    await believed_late(found)


async def test_nobody_is_not_believed_sooner_by_a_source_that_knows_nothing_yet() -> None:
    await believed_late(source(Resolver()))


async def believed_late(found: DnsSource) -> None:
    for _ in range(EMPTY_BELIEVED - 1):
        with pytest.raises(SourceError, match=r"engines\.svc has no address"):
            await found.read()
    assert await found.read() == []


async def test_a_name_is_asked_for_once_at_a_time() -> None:
    go_on = asyncio.Event()

    async def slow() -> Sequence[ResolvedAddresses]:
        await go_on.wait()
        return [A]

    found = DnsSource("chat", "engines.svc", "http", 5.0, slow)
    first = asyncio.create_task(found.read())
    await asyncio.sleep(0)
    with pytest.raises(SourceError, match="still being resolved"):
        await found.read()
    go_on.set()
    assert len(await first) == 1
    assert len(await found.read()) == 1


@pytest.mark.parametrize(("host", "addresses"), [("localhost", {"127.0.0.1", "::1"}), ("10.0.0.7", {"10.0.0.7"}), ("fd00::7", {"fd00::7"})])
async def test_no_name_server_is_asked_for_what_is_known(host: str, addresses: set[str]) -> None:
    assert {found.address for found in await system_lookup(host, 8000)()} == addresses


async def test_an_answer_is_bounded() -> None:
    many = [ResolvedAddresses(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 80) for n in range(MAX_FOUND + 5)]
    assert len(await source(Resolver(*many)).read()) == MAX_FOUND


def test_ids_are_stable_distinct_and_short() -> None:
    long = "p" * 64
    ids = {
        member_id(pool, ResolvedAddresses(address, port))
        for pool in (long, "p" * 63 + "q", "chat")
        for address in ("10.0.0.1", "fd00::1", "2001:db8:1234:5678:9abc:def0:1234:5678")
        for port in (1, 65535)
    }
    assert len(ids) == 18
    assert max(map(len, ids)) <= MAX_ID
