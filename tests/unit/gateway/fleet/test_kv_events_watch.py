import asyncio
import contextlib

import pytest
from structlog.testing import capture_logs

from backends.kv.blocks import HeldBlocks
from backends.kv.stream import KvStream
from backends.signals import Signals
from gateway.deps import Live
from gateway.fleet.kv_events import KvWatch
from tests.kv_events import Engine, served, stored
from tests.pool_states import grounds_of


class Fed:
    """A subscription that a test feeds by hand."""

    def __init__(self) -> None:
        self.stream = KvStream(HeldBlocks(), can_replay=True)
        self.trouble = ""
        self.closed = False
        self.ticks = 0

    def tick(self) -> None:
        self.ticks += 1

    def close(self) -> None:
        self.closed = True


def watched() -> tuple[Live, KvWatch, Fed, list[tuple[str, int, int]]]:
    live, fed, counted = Live(None, None, None), Fed(), []  # type: ignore[arg-type, var-annotated]  # only kv and signals are looked at
    return live, KvWatch(live, {"a": fed}, lambda *seen: counted.append(seen), grounds_of("a"), lambda: 1.0), fed, counted


def test_what_is_known_is_seen_and_counted_once() -> None:
    live, watch, fed, counted = watched()
    engine = Engine()
    watch.look()
    assert live.kv["a"].reason == "not connected"
    fed.stream.connected()
    served(fed.stream, engine)
    for block in range(3):
        fed.stream.batch(*engine.publish(stored([block])))
    watch.look()
    watch.look()
    assert (live.kv["a"].blocks, live.kv["a"].trusted) == (3, True)
    assert counted == [("a", 0, 0), ("a", 3, 0), ("a", 0, 0)]
    assert fed.ticks == 3


@pytest.mark.req("ROUTERS-11")
def test_trust_lost_and_won_is_said_once() -> None:
    live, watch, fed, counted = watched()
    engine = Engine(kept=1)
    fed.stream.connected()
    served(fed.stream, engine)
    with capture_logs() as said:
        watch.look()
        for _ in range(3):
            engine.publish(stored([1]))
        fed.stream.batch(*engine.publish(stored([2])))
        served(fed.stream, engine)
        for _ in range(3):
            watch.look()
        fed.stream.batch(*engine.publish({"type": "AllBlocksCleared"}))
        watch.look()
    assert [line["event"] for line in said] == ["kv events exact", "kv events not trusted", "kv events exact"]
    assert said[1]["reason"] == "gap of 3 batches, and the engine's buffer begins at batch 3"
    assert sum(gaps for _, _, gaps in counted) == 1
    assert live.kv["a"].trusted


@pytest.mark.req("ROUTERS-10")
def test_a_process_that_began_again_holds_nothing() -> None:
    live, watch, fed, _ = watched()
    engine = Engine()
    fed.stream.connected()
    served(fed.stream, engine)
    fed.stream.batch(*engine.publish(stored([1, 2])))
    live.signals["a"] = Signals(read_at=0.0, started_unix=0.0)
    watch.look()
    assert live.kv["a"].blocks == 2
    live.signals["a"] = Signals(read_at=1.0, started_unix=50.0)
    watch.look()
    assert (live.kv["a"].blocks, live.kv["a"].trusted) == (0, False)
    served(fed.stream, Engine(started=51.0))
    watch.look()
    assert (live.kv["a"].blocks, live.kv["a"].trusted, live.kv["a"].epoch) == (0, True, 1)


def test_a_socket_that_cannot_be_had_is_the_reason() -> None:
    live, watch, fed, _ = watched()
    fed.trouble = "cannot listen on tcp://127.0.0.1:5557: Address already in use"
    watch.look()
    assert live.kv["a"].reason == fed.trouble


async def test_it_runs_until_cancelled_and_closes_everything() -> None:
    _, watch, fed, _ = watched()
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await watch.close()
    assert fed.ticks == 1
    assert fed.closed


@pytest.mark.req("ROUTERS-9")
def test_ten_thousand_processes_leave_nothing_behind() -> None:
    live, watch, fed, _ = watched()
    for cycle in range(10_000):
        engine = Engine(started=float(cycle))
        fed.stream.disconnected()
        fed.stream.connected()
        served(fed.stream, engine)
        fed.stream.batch(*engine.publish(stored([cycle, cycle + 1])))
        served(fed.stream, engine)
    watch.look()
    assert (live.kv["a"].blocks, live.kv["a"].trusted, live.kv["a"].epoch) == (2, True, 9_999)
