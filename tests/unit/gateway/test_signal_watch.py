import random

import pytest
from structlog.testing import capture_logs

from backends.fetch import FetchError
from backends.signals import Signals
from gateway.deps import Live
from gateway.signal_watch import SignalWatch


class Engine:
    """Answers with what it is given next."""

    def __init__(self) -> None:
        self.next: Signals | Exception = Signals(read_at=0.0)

    async def __call__(self) -> Signals:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next


def watched() -> tuple[Live, SignalWatch, Engine]:
    engine = Engine()
    live = Live(None, None, None)  # type: ignore[arg-type]  # only the signals are looked at
    return live, SignalWatch(live, {"a": engine}, 0.1, random.Random(1)), engine


@pytest.mark.parametrize("error", [FetchError("no answer within 1 s"), ValueError("no list of loads")])
async def test_a_reading_that_fails_leaves_the_last_one_with_its_age(error: Exception) -> None:
    live, watch, engine = watched()
    engine.next = Signals(read_at=5.0, running=3)
    await watch.read_once("a")
    engine.next = error
    await watch.read_once("a")
    assert live.signals == {"a": Signals(read_at=5.0, running=3)}


@pytest.mark.req("ROUTERS-6")
async def test_missing_signals_are_alarmed_once_and_their_return_too() -> None:
    _, watch, engine = watched()
    with capture_logs() as said:
        for missing in (("waiting",), ("waiting",), ("waiting", "kv_usage"), (), ()):
            engine.next = Signals(read_at=1.0, missing=missing)
            await watch.read_once("a")
    assert [(line["log_level"], line.get("reason")) for line in said] == [
        ("warning", "no series for waiting: taken for unknown"),
        ("warning", "no series for waiting, kv_usage: taken for unknown"),
        ("info", None),
    ]
