"""Keys are read in the background, once at a time, and never lost because an issuer is away."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from gateway.auth.jwks import JwksWatch, kept_file
from tenancy.jwt_keys import JwksError, KeySet
from tests.issuer import document, signer

ISSUER = "https://login.example.com"
ONE, TWO = document(signer("one")), document(signer("two", number=1))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Answers with `document`, or fails with `error`, when the gate is open."""

    def __init__(self) -> None:
        self.document: bytes = ONE
        self.error: Exception | None = None
        self.reads = 0
        self.open = asyncio.Event()
        self.open.set()

    async def read(self) -> bytes:
        self.reads += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return self.document


class Watched:
    def __init__(self, **options: Any) -> None:
        self.clock, self.source, self.taken = Clock(), Source(), list[KeySet]()
        self.watch = JwksWatch(
            ISSUER,
            self.source,
            frozenset({"RS256"}),
            lambda _, keys: self.taken.append(keys),
            **{"refresh_s": 300.0, "unknown_key_s": 10.0, "clock": self.clock, "rng": random.Random(1), **options},
        )

    @property
    def names(self) -> list[str]:
        return [key.kid for keys in self.taken for key in keys.keys]


async def test_keys_are_taken_once_and_again_only_when_they_change() -> None:
    made = Watched()
    await made.watch.first()
    for at, published in enumerate((ONE, ONE, TWO)):
        made.clock.now += 10.0 * (at + 1)
        made.source.document = published
        await made.watch.wanted()
    assert made.names == ["one", "two"]
    made.clock.now += 7.0
    state = made.watch.state()
    assert (state.keys, state.age_s, state.trouble) == (1, 7.0, "")


async def test_any_number_of_unknown_keys_cause_one_reading_per_interval() -> None:
    made = Watched()
    await made.watch.first()
    for _ in range(100):
        await made.watch.wanted()
    assert made.source.reads == 1
    made.clock.now += 10.0
    made.source.open.clear()
    waiting = [asyncio.create_task(made.watch.wanted()) for _ in range(100)]
    await asyncio.sleep(0)
    made.source.open.set()
    await asyncio.gather(*waiting)
    assert made.source.reads == 2


async def test_one_that_gives_up_waiting_does_not_end_the_reading() -> None:
    made = Watched()
    made.source.open.clear()
    first, second = asyncio.create_task(made.watch.wanted()), asyncio.create_task(made.watch.wanted())
    await asyncio.sleep(0)
    first.cancel()
    made.source.open.set()
    await second
    assert (made.names, made.source.reads) == (["one"], 1)


@pytest.mark.parametrize("error", [JwksError("answers 500"), OSError("refused"), ValueError("odd")])
async def test_an_issuer_that_is_away_leaves_the_last_keys_in_force(error: Exception) -> None:
    made = Watched()
    await made.watch.first()
    made.source.error, made.clock.now = error, made.clock.now + 50.0
    await made.watch.wanted()
    state = made.watch.state()
    assert (made.names, state.keys, state.age_s) == (["one"], 1, 50.0)
    assert str(error) in state.trouble
    made.source.error, made.source.document, made.clock.now = None, TWO, made.clock.now + 50.0
    await made.watch.wanted()
    assert (made.names, made.watch.state().trouble) == (["one", "two"], "")


async def test_a_document_without_usable_keys_changes_nothing() -> None:
    made = Watched()
    await made.watch.first()
    for broken in (b"", b"{}", b'{"keys": []}', document(signer("e", "ES256"))):
        made.source.document, made.clock.now = broken, made.clock.now + 50.0
        await made.watch.wanted()
        assert made.watch.state().trouble
    assert made.names == ["one"]


async def test_the_last_good_document_helps_a_worker_that_starts_while_the_issuer_is_away(tmp_path: Path) -> None:
    keep = kept_file(tmp_path, ISSUER)
    before = Watched(keep=keep)
    await before.watch.first()
    assert keep.read_bytes() == ONE
    assert keep.stat().st_mode & 0o077 == 0
    after = Watched(keep=keep)
    after.source.error = OSError("away")
    await after.watch.first()
    assert after.names == ["one"]
    assert after.watch.state().trouble
    fresh = Watched(keep=tmp_path / "nowhere")
    fresh.source.error = OSError("away")
    await fresh.watch.first()
    assert (fresh.names, fresh.watch.state().keys) == ([], 0)


async def test_run_reads_until_cancelled_and_leaves_nothing_behind() -> None:
    made = Watched(refresh_s=0.001)
    running = asyncio.create_task(made.watch.run())
    while made.source.reads < 3:
        await asyncio.sleep(0)
    made.source.open.clear()
    reads = made.source.reads
    while made.source.reads == reads:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(asyncio.all_tasks()) == 1
