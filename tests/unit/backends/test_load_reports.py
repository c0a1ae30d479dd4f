import pytest

from backends.dialects.sglang import read_report
from backends.load_reports import FRESH_S, LoadReports, Pushed, joined
from backends.signals import Signals, restarted
from tests.load_push import recorded, report


def heard(*reports: tuple[int, int, bytes, float], ranks: int = 1) -> LoadReports:
    made = LoadReports(ranks, read_report)
    for rank, number, payload, now in reports:
        made.take_message(rank, number, payload, now)
    return made


def test_the_last_report_counts_until_it_is_old() -> None:
    reports = heard((0, 0, report(1, 0), 10.0), (0, 1, report(2, 3, 500, 1000, uncached=70), 11.0))
    assert reports.pushed(11.0 + FRESH_S) == Pushed(11.0, 2, 3, 70, 0.5, 1000)
    assert reports.pushed(11.1 + FRESH_S) is None
    assert reports.state(11.0).reason == ""
    assert reports.state(20.0).reason == "rank 0 is silent for 9 s"


@pytest.mark.req("ROUTERS-6")
def test_ranks_are_summed_and_a_silent_one_makes_the_sum_unknown() -> None:
    reports = heard((0, 5, report(1, 2, 100, 1000, 0, 10), 10.0), ranks=2)
    assert reports.pushed(10.0) is None
    assert reports.state(10.0).reason == "no report of rank 1 yet"
    reports.take_message(1, 9, report(3, 4, 500, 1000, 1, 20), 11.0)
    assert reports.pushed(11.0) == Pushed(10.0, 4, 6, 30, 0.3, 2000)
    reports.take_message(1, 10, report(0, 0, 0, 1000, 1), 13.5)
    assert reports.pushed(13.5) is None, "an idle rank alone would look like an idle engine"
    assert reports.state(14.0).reason == "rank 0 is silent for 4 s"


def test_what_one_rank_does_not_say_is_unknown_of_all() -> None:
    reports = heard((0, 0, report(1, 1, capacity=0), 1.0), (1, 0, report(2, 2, rank=1, uncached=None), 1.0), ranks=2)
    assert reports.pushed(1.0) == Pushed(1.0, 3, 3)
    assert heard((0, 0, report(running=None), 1.0)).pushed(1.0) is None
    assert heard((0, 0, report(running=None), 1.0)).state(1.0).reason == "its reports do not say what runs and waits"


def test_gaps_are_counted_and_made_up_for_by_the_next_report() -> None:
    reports = heard((0, 3, report(1), 1.0), (0, 4, report(2), 1.1), (0, 9, report(7), 1.2))
    assert (reports.counts.reports, reports.counts.gaps, reports.counts.missed) == (3, 1, 4)
    pushed = reports.pushed(1.2)
    assert pushed is not None
    assert pushed.running == 7


@pytest.mark.parametrize("number", [0, 50, 99, 100])
def test_numbers_that_do_not_rise_are_another_process_and_what_the_other_ranks_said_is_of_the_one_before(number: int) -> None:
    reports = heard((0, 100, report(5), 1.0), (1, 100, report(5, rank=1), 1.0), ranks=2)
    reports.take_message(0, number, report(0), 1.5)
    assert (reports.counts.restarts, reports.counts.gaps) == (1, 0)
    assert reports.pushed(1.5) is None
    reports.take_message(1, 101, report(1, rank=1), 1.6)
    pushed = reports.pushed(1.6)
    assert pushed is not None
    assert pushed.running == 1


@pytest.mark.parametrize(
    ("number", "payload", "says"),
    [
        (None, report(), "a message without a number"),
        (-1, report(), "a message without a number"),
        (8, b"\x00", "no array in msgpack"),
        (8, report(rank=1), "it is of rank 1, so the endpoint is not that of the first rank"),
    ],
)
def test_what_cannot_be_read_is_said_and_the_last_report_grows_old(number: int | None, payload: bytes, says: str) -> None:
    reports = heard((0, 7, report(4), 1.0), (1, 7, report(4, rank=1), 1.0), ranks=2)
    assert reports.take_message(0, number, payload, 2.0) is False
    assert reports.counts.refused == 1
    assert reports.pushed(1.0 + FRESH_S) is not None
    assert says in reports.state(1.1 + FRESH_S).reason
    assert reports.take_message(0, 9, report(4), 5.0)


def test_a_rank_of_its_own_may_be_any() -> None:
    assert heard((0, 0, report(1, rank=5), 1.0)).pushed(1.0) is not None


def test_a_reading_keeps_its_counters_and_its_time() -> None:
    read = Signals(read_at=5.0, running=9, waiting=9, kv_usage=0.9, waiting_uncached_tokens=7, prefill_tokens=400, missing=("waiting", "x"))
    both = joined(read, Pushed(7.0, 1, 2, None, 0.5, 1000))
    assert (both.running, both.waiting, both.kv_usage, both.kv_capacity_tokens, both.prefill_tokens) == (1, 2, 0.5, 1000, 400)
    assert (both.read_at, both.pushed_at, both.load_at) == (5.0, 7.0, 7.0)
    assert both.pushed == ("running", "waiting", "kv_usage", "kv_capacity_tokens")
    assert both.waiting_uncached_tokens == 7, "what is not pushed stays that of the reading"
    assert both.missing == ("x",)
    assert not restarted(read, both)


def test_without_a_reading_there_is_what_was_pushed_alone() -> None:
    alone = joined(None, Pushed(7.0, 1, 2))
    assert (alone.read_at, alone.running, alone.waiting, alone.kv_usage, alone.prefill_tokens) == (7.0, 1, 2, None, None)


def test_the_recorded_engine_is_followed_report_by_report() -> None:
    reports, seen = LoadReports(1, read_report), []
    for after_s, _, number, payload in recorded():
        assert reports.take_message(0, number, payload, after_s)
        pushed = reports.pushed(after_s)
        assert pushed is not None
        seen.append((pushed.running, pushed.waiting))
    assert max(seen) == (4, 3)
    assert seen[-1] == (0, 0)
    assert (reports.counts.gaps, reports.counts.restarts, reports.counts.refused) == (0, 0, 0)
