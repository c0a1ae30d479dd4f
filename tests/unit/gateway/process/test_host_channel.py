"""Workers of several hosts hear what the others tell, know who is there, and keep apart what is for one host only."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.process.host_channel import GONE_S, HELLO_EVERY_S, HostChannel, host_id
from gateway.process.sibling_bus import Sibling, SiblingBus
from tests.timing import until


class Words:
    """A topic that tells words, and remembers what it was told."""

    max_bytes_per_s = 1 << 30

    def __init__(self, kind: int, *, between_hosts: bool) -> None:
        self.kind = kind
        self.between_hosts = between_hosts
        self.to_tell: list[bytes] = []
        self.told: list[tuple[Sibling, bytes]] = []
        self.there: list[Sibling] = []

    def batch(self, max_bytes: int) -> bytes:
        words, self.to_tell = self.to_tell, []
        return b" ".join(words)

    def received(self, sibling: Sibling, payload: bytes) -> None:
        if payload == b"nonsense":
            raise ValueError("not a word")
        self.told.append((sibling, payload))

    def joined(self, sibling: Sibling) -> None:
        self.there.append(sibling)

    def left(self, sibling: Sibling) -> None:
        self.there.remove(sibling)


class Air:
    """What all channels have in common: everyone hears everything."""

    def __init__(self) -> None:
        self.heard: list[Callable[[bytes], None]] = []
        self.messages: list[bytes] = []

    def say(self, message: bytes) -> None:
        self.messages.append(message)
        for heard in [*self.heard]:
            heard(message)


class InMemory:
    """One end; `up` is whether it can be reached."""

    def __init__(self, air: Air) -> None:
        self._air = air
        self.up = True

    def publish(self, message: bytes) -> bool:
        if self.up:
            asyncio.get_running_loop().call_soon(self._air.say, message)
        return self.up

    async def sent(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def run(self, heard: Callable[[bytes], None]) -> None:
        self._air.heard.append(heard)
        try:
            await asyncio.Event().wait()
        finally:
            self._air.heard.remove(heard)


class Gateway:
    """One worker of a host."""

    def __init__(self, air: Air, home: Path, number: int) -> None:
        home.mkdir(exist_ok=True)
        self.now = 100.0
        self.everywhere, self.here = Words(7, between_hosts=True), Words(8, between_hosts=False)
        me = Sibling(number, os.getpid())
        self.host = host_id(home)
        self.channel = InMemory(air)
        self.hosts = HostChannel(self.channel, self.host, me, lambda: self.now)
        self.bus = SiblingBus(home, me, [self.everywhere, self.here], lambda: self.now, self.hosts)

    def tell(self, word: bytes) -> None:
        self.everywhere.to_tell.append(word)
        self.here.to_tell.append(word)
        self.bus.tell_soon()

    @property
    def seen(self) -> Sibling:
        """As those of other hosts see it."""
        return Sibling(self.bus._me.number, os.getpid(), self.host)


@asynccontextmanager
async def gateways(folder: Path, *hosts: int) -> AsyncIterator[tuple[Air, list[Gateway]]]:
    """A gateway for each number, which says on which host it is; they know each other."""
    air = Air()
    made = [Gateway(air, folder / f"host{host}", number) for number, host in enumerate(hosts)]
    try:
        for gateway in made:
            await gateway.bus.start()
        await until(lambda: all(len(gateway.bus.siblings) == len(made) - 1 for gateway in made))
        yield air, made
    finally:
        for gateway in made:
            await gateway.bus.close()
            await gateway.bus.close()


async def test_a_host_has_one_number_that_no_other_has(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    first = host_id(tmp_path / "one")
    assert host_id(tmp_path / "one") == first != host_id(tmp_path / "other")
    assert first > 0
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["host"]


async def test_what_is_for_all_hosts_is_heard_once_by_each_and_the_rest_stays(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 1, 2) as (_, (first, neighbour, far)):
        first.tell(b"red")
        await until(lambda: far.everywhere.told and neighbour.everywhere.told and neighbour.here.told)
        assert far.everywhere.told == [(first.seen, b"red")]
        assert far.here.told == []
        own = Sibling(0, os.getpid())
        assert neighbour.everywhere.told == neighbour.here.told == [(own, b"red")], "once, over the socket"
        assert first.everywhere.told == []
        assert (first.here.there, far.here.there) == ([Sibling(1, os.getpid())], [])
        assert set(far.everywhere.there) == {first.seen, neighbour.seen}


async def test_without_other_hosts_nothing_is_published_but_greetings(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 1) as (air, (first, neighbour)):
        greetings = {len(message) for message in air.messages}
        first.tell(b"red")
        await until(lambda: neighbour.everywhere.told)
        assert {len(message) for message in air.messages} == greetings


async def test_whoever_ends_has_left_and_whoever_is_silent_too(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 2, 3) as (_, (first, second, third)):
        await second.bus.close()
        await until(lambda: first.everywhere.there == [third.seen])
        first.now += GONE_S + 0.1
        first.hosts.forget_silent(HELLO_EVERY_S)
        assert first.everywhere.there == []
        third.tell(b"still here")
        await until(lambda: first.everywhere.told)
        assert first.everywhere.there == [third.seen]


async def test_a_process_that_stood_still_forgets_nobody_for_that(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 2) as (_, (first, second)):
        first.now += 60.0
        first.hosts.forget_silent(60.0)
        assert first.everywhere.there == [second.seen]
        first.now += GONE_S + 0.1
        first.hosts.forget_silent(HELLO_EVERY_S)
        assert first.everywhere.there == []


async def test_what_cannot_be_sent_is_counted(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 2) as (_, (first, _)):
        first.channel.up = False
        first.tell(b"red")
        await until(lambda: first.bus.figures().missed == 1)


async def test_nonsense_harms_nobody(tmp_path: Path) -> None:
    async with gateways(tmp_path, 1, 2) as (air, (first, second)):
        greeting = next(message for message in air.messages if int.from_bytes(message[2:10], "little") == first.host)
        for message in (
            b"",
            b"x",
            greeting[:-1],
            b"\xff" + greeting[1:],
            greeting + b"\x05\x00\x00\x00\x07cut",
            greeting + b"\xff\xff\xff\xff\x07",
        ):
            air.say(message)
        assert second.everywhere.told == []
        first.tell(b"nonsense")
        first.tell(b"red")
        await until(lambda: second.everywhere.told)
        air.say(greeting + b"\x08\x00\x00\x00\x07nonsense" + b"\x04\x00\x00\x00\x08here")
        assert second.bus.figures().unreadable == 1
        assert second.here.told == [], "what is not for other hosts is not heard from them either"
