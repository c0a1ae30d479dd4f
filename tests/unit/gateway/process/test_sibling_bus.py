"""What one worker tells, every sibling knows soon; a sibling that reads nothing, ends or talks nonsense harms no other."""

import asyncio
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import pytest
import uvloop

from gateway.process.sibling_bus import BATCH_S, MAX_BEHIND_BYTES, MAX_FRAME_BYTES, VERSION, Sibling, SiblingBus, bus_socket
from gateway.process.worker_link import worker_socket
from tests.timing import until


class Words:
    """A subject that tells words, as many as fit, and remembers what it was told."""

    between_hosts = False

    def __init__(self, kind: int = 7, max_bytes_per_s: int = 1 << 30) -> None:
        self.kind = kind
        self.max_bytes_per_s = max_bytes_per_s
        self.to_tell: list[bytes] = []
        self.told: list[tuple[Sibling, bytes]] = []
        self.there: list[Sibling] = []
        self.gone: list[Sibling] = []
        self.asked: list[int] = []

    def batch(self, max_bytes: int) -> bytes:
        self.asked.append(max_bytes)
        words, self.to_tell = self.to_tell, []
        return b" ".join(words)[:max_bytes]

    def received(self, sibling: Sibling, payload: bytes) -> None:
        if payload == b"nonsense":
            raise ValueError("not a word")
        self.told.append((sibling, payload))

    def has_heard(self, size: int) -> bool:
        return sum(len(payload) for _, payload in self.told) == size

    def joined(self, sibling: Sibling) -> None:
        self.there.append(sibling)

    def left(self, sibling: Sibling) -> None:
        self.gone.append(sibling)


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def in_loop(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    def run(work: Awaitable[None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(work)  # type: ignore[arg-type]  # a coroutine

    return run


@asynccontextmanager
async def buses(home: Path, *subjects: Words, clock: Callable[[], float] = monotonic) -> AsyncIterator[list[SiblingBus]]:
    out = [SiblingBus(home, Sibling(index, os.getpid()), [words], clock) for index, words in enumerate(subjects)]
    try:
        for bus in out:
            await bus.start()
        await until(lambda: all(len(bus.siblings) == len(out) - 1 for bus in out))
        yield out
    finally:
        for bus in out:
            await bus.close()
            await bus.close()
    assert list(home.iterdir()) == []


def test_what_one_tells_all_others_hear_in_one_message_per_batch(tmp_path: Path, in_loop: Callable[[Awaitable[None]], None]) -> None:
    async def work() -> None:
        words = [Words(), Words(), Words()]
        async with buses(tmp_path, *words) as (first, *_):
            assert [len(each.there) for each in words] == [2, 2, 2]
            words[0].asked.clear()
            words[0].to_tell = [b"red", b"green"]
            for _ in range(100):
                first.tell_soon()
            await until(lambda: bool(words[1].told and words[2].told))
            me = Sibling(0, os.getpid())
            assert words[1].told == words[2].told == [(me, b"red green")]
            assert len(words[0].asked) == 1, "a hundred calls are one batch"
            assert words[0].told == [], "nobody hears itself"
            assert BATCH_S <= 0.025

    in_loop(work())


async def test_one_sibling_alone_can_be_told_and_whoever_joins_later_too(tmp_path: Path) -> None:
    words = [Words(), Words(), Words()]
    async with buses(tmp_path, words[0], words[1]) as (first, _):
        late = SiblingBus(tmp_path, Sibling(2, os.getpid()), [words[2]], monotonic)
        await late.start()
        newcomer = Sibling(2, os.getpid())
        await until(lambda: newcomer in words[0].there and newcomer in words[1].there)
        assert first.send(newcomer, 7, b"all that was before")
        await until(lambda: bool(words[2].told))
        assert words[1].told == []
        assert not first.send(Sibling(9, 9), 7, b"nobody")
        assert not first.send(newcomer, 7, bytes(MAX_FRAME_BYTES + 1))
        await late.close()
        await until(lambda: newcomer in words[0].gone and newcomer in words[1].gone)
        assert not first.send(newcomer, 7, b"left")


async def test_a_killed_process_is_forgotten_and_its_socket_removed(tmp_path: Path) -> None:
    ended = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await ended.wait()
    stale = bus_socket(tmp_path, 5, ended.pid)
    server = await asyncio.start_unix_server(lambda _r, _w: None, path=str(stale))
    server.close()  # bound, and nobody listens any more
    stale.touch()
    words = [Words(), Words()]
    async with buses(tmp_path, *words) as running:
        assert not stale.exists() or stale.is_file()
        assert [len(bus.siblings) for bus in running] == [1, 1]
        stale.unlink(missing_ok=True)


async def test_nothing_is_asked_of_subjects_without_siblings(tmp_path: Path) -> None:
    words = Words()
    async with buses(tmp_path, words) as (only,):
        words.to_tell = [b"alone"]
        only.tell_soon()
        await asyncio.sleep(0)
        assert words.asked == []


async def test_a_subject_says_no_more_than_its_bytes_a_second(tmp_path: Path) -> None:
    now = 100.0
    words = [Words(max_bytes_per_s=4000), Words()]
    async with buses(tmp_path, *words, clock=lambda: now) as (first, _):
        for told in range(1000, 1800, 100):
            words[0].to_tell = [b"x" * 4000]
            first.tell_soon()
            await until(partial(words[1].has_heard, told))
            now += 0.025
        assert max(words[0].asked) == 1000, "at once, no more than a quarter of a second's bytes"
        assert {round(each, -1) for each in words[0].asked[-5:]} == {100}, "then what the time since has brought"


async def test_what_cannot_be_read_is_counted_and_nothing_else_is_lost(tmp_path: Path) -> None:
    words = [Words(), Words()]
    async with buses(tmp_path, *words) as (first, second):
        them = Sibling(1, os.getpid())
        assert first.send(them, 7, b"nonsense")
        assert first.send(them, 99, b"of a kind that nobody knows")
        assert first.send(them, 7, b"sense")
        await until(lambda: bool(words[1].told))
        assert words[1].told == [(Sibling(0, os.getpid()), b"sense")]
        assert second.figures().unreadable == 1


@pytest.mark.parametrize(
    "first_bytes",
    [
        struct.pack("<IB", 16, 0) + struct.pack("<IIQ", VERSION + 1, 3, 4),
        struct.pack("<IB", 3, 0) + b"abc",
        struct.pack("<IB", 4, 7) + b"word",
        struct.pack("<IB", MAX_FRAME_BYTES + 1, 0),
    ],
    ids=["another version", "no hello", "a message first", "too long"],
)
async def test_strangers_are_not_listened_to(tmp_path: Path, first_bytes: bytes) -> None:
    words = [Words(), Words()]
    async with buses(tmp_path, *words):
        reader, writer = await asyncio.open_unix_connection(str(bus_socket(tmp_path, 1, os.getpid())))
        writer.write(first_bytes)
        assert await reader.read() == b""
        writer.close()
        assert words[1].told == []
        assert len(words[1].there) == 1


async def test_a_sibling_that_reads_nothing_misses_what_is_told_and_no_memory_is_held_for_it(tmp_path: Path) -> None:
    deaf = Sibling(3, os.getpid())
    server = socket.socket(socket.AF_UNIX)  # what connects waits in its queue
    server.bind(str(bus_socket(tmp_path, deaf.number, deaf.pid)))
    server.listen()
    bus = SiblingBus(tmp_path, Sibling(0, os.getpid()), [Words()], monotonic)
    await bus.start()
    sent = 0
    while bus.send(deaf, 7, bytes(1 << 19)):
        sent += 1 << 19
    assert sent <= 2 * MAX_BEHIND_BYTES
    assert bus.figures().missed == 1
    await bus.close()
    server.close()


def test_a_subject_has_a_number_of_its_own(tmp_path: Path) -> None:
    for wrong in ([Words(1), Words(1)], [Words(0)], [Words(256)]):
        with pytest.raises(ValueError, match="number"):
            SiblingBus(tmp_path, Sibling(0, 1), wrong, monotonic)


def test_its_path_is_no_longer_than_the_workers_other_socket(tmp_path: Path) -> None:
    assert len(str(bus_socket(tmp_path, 999, 2**22))) <= len(str(worker_socket(tmp_path, 999, 2**22)))
