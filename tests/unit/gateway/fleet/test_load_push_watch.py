import pytest
from structlog.testing import capture_logs

from backends.dialects.sglang import read_report
from backends.load_reports import FRESH_S, LoadReports
from backends.signals import Signals
from gateway.deps import Live
from gateway.fleet.load_push import LoadWatch
from gateway.fleet.signals import SignalBoard
from tests.load_push import report
from tests.pool_states import charged, grounds_of, released, requests_on


class Sockets:
    """A subscription that a test speaks for."""

    def __init__(self) -> None:
        self.trouble = ""
        self.closed = False

    def tick(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class Listening:
    def __init__(self, ranks: int = 1) -> None:
        self.now = 100.0
        self.live = Live(None, None, None)  # type: ignore[arg-type]  # only signals are looked at
        self.pool_states = grounds_of("a")
        self.signal_board = SignalBoard(self.live, self.pool_states)
        self.sockets = Sockets()
        self.counted: list[tuple[str, int, int]] = []
        self.watch = LoadWatch(self.live, self.signal_board, lambda: self.now, lambda *seen: self.counted.append(seen))
        self.watch.add("a", LoadReports(ranks, read_report), self.sockets)
        self.number = 0

    def hear(self, payload: bytes, rank: int = 0) -> None:
        self.watch.take_message("a", rank, self.number, payload)
        self.number += 1

    def believed(self) -> float:
        """What the engine is taken to have, running and waiting."""
        return requests_on(self.pool_states, "a")


def test_a_report_is_shown_as_it_comes() -> None:
    heard = Listening()
    heard.signal_board.read("a", Signals(read_at=90.0, running=0, waiting=0, prefill_tokens=5), 90.0)
    heard.hear(report(3, 2))
    signals = heard.live.signals["a"]
    assert (signals.running, signals.waiting, signals.prefill_tokens, signals.load_at, signals.read_at) == (3, 2, 5, 100.0, 90.0)


@pytest.mark.req("ROUTERS-6")
def test_silence_gives_the_word_back_to_the_polls() -> None:
    heard = Listening()
    heard.signal_board.read("a", Signals(read_at=90.0, running=7, waiting=7), 90.0)
    heard.hear(report(0, 0))
    heard.now += FRESH_S + 0.1
    heard.watch.look()
    assert heard.live.signals["a"] == Signals(read_at=90.0, running=7, waiting=7)
    assert heard.live.pushes["a"].reason == "rank 0 is silent for 3 s"
    heard.hear(report(1, 0))
    heard.watch.look()
    assert (heard.live.signals["a"].running, heard.live.pushes["a"].reason) == (1, "")


def test_one_rank_of_two_shows_nothing() -> None:
    heard = Listening(ranks=2)
    heard.hear(report(0, 0))
    assert heard.live.signals == {}


@pytest.mark.req("ROUTERS-5")
def test_what_a_report_cannot_know_yet_counts_on_top_of_it() -> None:
    heard = Listening()
    heard.hear(report(0, 0))
    for _ in range(5):
        charged(heard.pool_states, "a", heard.now)
    for after_s, running in ((0.02, 0), (0.1, 2), (0.2, 5)):
        heard.now = 100.0 + after_s
        heard.hear(report(running, 0))
        assert heard.believed() >= 5, "never fewer than were sent"
    for step in range(1, 12):
        heard.now = 100.2 + step * 0.05
        heard.hear(report(5, 0))
    assert heard.believed() == 5, "and each once, when the engine surely counted them"


@pytest.mark.req("ROUTERS-5")
def test_what_the_engine_does_not_count_in_its_first_prefill_is_not_forgotten() -> None:
    heard = Listening()
    for _ in range(3):
        charged(heard.pool_states, "a", heard.now)
    heard.now += 10
    for _ in range(20):
        heard.now += 0.05
        heard.hear(report(0, 0, used=1296))
    assert heard.believed() == 3


def test_what_ends_after_a_report_is_taken_off_it() -> None:
    heard = Listening()
    charges = [charged(heard.pool_states, "a", heard.now) for _ in range(4)]
    for _ in range(20):
        heard.now += 0.05
        heard.hear(report(4, 6))
    released(heard.pool_states, charges[0])
    assert heard.believed() == 9
    heard.now += 0.05
    heard.hear(report(4, 6))
    assert heard.believed() == 10, "a report that came after the end is taken at its word"


def test_reports_and_gaps_are_counted_once() -> None:
    heard = Listening()
    heard.watch.look()
    for number in (0, 1, 5):
        heard.watch.take_message("a", 0, number, report())
    heard.watch.look()
    heard.watch.look()
    assert heard.counted == [("a", 0, 0), ("a", 3, 1), ("a", 0, 0)]


def test_that_it_begins_ends_and_begins_again_is_said_once_each() -> None:
    heard = Listening()
    with capture_logs() as said:
        heard.watch.look()
        heard.hear(report())
        heard.watch.look()
        for _ in range(20):
            heard.now += 0.5
            heard.watch.look()
        heard.hear(report())
        heard.watch.look()
    assert [line["event"] for line in said] == ["load pushed", "load push not heard", "load pushed"]


def test_trouble_with_the_socket_is_the_reason() -> None:
    heard = Listening()
    heard.sockets.trouble = "cannot connect to tcp://x:1: Invalid argument"
    heard.watch.look()
    assert heard.live.pushes["a"].reason == "cannot connect to tcp://x:1: Invalid argument"


async def test_nothing_is_left_of_a_backend_that_leaves() -> None:
    heard = Listening()
    heard.hear(report())
    heard.watch.look()
    heard.watch.remove("a")
    heard.hear(report())
    assert (heard.live.signals, heard.live.pushes, heard.sockets.closed) == ({}, {}, True)
    await heard.watch.close()
