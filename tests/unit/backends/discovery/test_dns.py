from collections.abc import Sequence

import pytest

from backends.discovery.dns import EMPTY_BELIEVED, MAX_FOUND, MAX_ID, DnsSource, Found, member_id
from domain.membership import Member, SourceError


class Resolver:
    """Answers with what it is given next."""

    def __init__(self, *found: Found) -> None:
        self.next: Sequence[Found] | Exception = found

    async def __call__(self) -> Sequence[Found]:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


A, B = Found("10.0.0.1", 8000), Found("10.0.0.2", 8000)


def source(resolver: Resolver, scheme: str = "http") -> DnsSource:
    return DnsSource("chat", "engines.svc", scheme, 5.0, resolver)


async def test_each_address_is_a_backend_with_the_name_for_tls_and_the_address_to_connect_to() -> None:
    assert await source(Resolver(B, A, A), "https").read() == [
        Member("chat", "chat-10.0.0.1-8000", "https://engines.svc:8000", "dns", "10.0.0.1"),
        Member("chat", "chat-10.0.0.2-8000", "https://engines.svc:8000", "dns", "10.0.0.2"),
    ]
    (srv,) = await source(Resolver(Found("fd00::5", 9000, "e-1.engines.svc"))).read()
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
    for n in range(1, EMPTY_BELIEVED + 1):
        assert len(await found.read()) == (0 if n == EMPTY_BELIEVED else 1)


async def test_an_answer_is_bounded() -> None:
    many = [Found(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 80) for n in range(MAX_FOUND + 5)]
    assert len(await source(Resolver(*many)).read()) == MAX_FOUND


def test_ids_are_stable_distinct_and_short() -> None:
    long = "p" * 64
    ids = {
        member_id(pool, Found(address, port))
        for pool in (long, "p" * 63 + "q", "chat")
        for address in ("10.0.0.1", "fd00::1", "2001:db8:1234:5678:9abc:def0:1234:5678")
        for port in (1, 65535)
    }
    assert len(ids) == 18
    assert max(map(len, ids)) <= MAX_ID
