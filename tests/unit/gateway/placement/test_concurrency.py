from math import inf

import pytest

from backends.concurrency_limit import LimitBounds
from backends.signals import Signals
from gateway.placement.concurrency import UNKNOWN, ConcurrencyLimits, ReplicaShare
from routing.load import LoadTable

SIXTY = LimitBounds(start=60)


class Kept:
    """One backend's limit in a load table."""

    def __init__(self, bounds: LimitBounds | None = SIXTY) -> None:
        self.load_table = LoadTable(["a"])
        self.limits = ConcurrencyLimits()
        self.limits.add("p", "a", self.load_table, bounds)
        self.now = 0.0

    @property
    def limit(self) -> float:
        return self.load_table.limit[0]

    def told(self, running: int, waiting: int, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.1
            self.limits.reported("a", Signals(read_at=self.now, running=running, waiting=waiting), self.now)


def test_what_is_found_is_written_on_the_board() -> None:
    kept = Kept()
    assert (kept.limit, kept.load_table.limit_tokens[0]) == (60, inf)
    kept.told(30, 30, 10)
    assert kept.limit == 32
    limiter = kept.limits.limiters.get("a")
    assert limiter is not None
    for _ in range(10):
        limiter.began(1000, 0.0, 0.1)
    kept.told(30, 0)
    assert 2048 <= kept.load_table.limit_tokens[0] < inf


def test_where_limits_are_off_nothing_is_kept() -> None:
    kept = Kept(None)
    kept.told(30, 30, 10)
    kept.limits.tick(9.0)
    assert (kept.limit, kept.limits.limiters.get("a"), kept.limits.shown("a")) == (inf, None, None)


def test_each_process_has_its_part() -> None:
    kept = Kept(LimitBounds(start=10))
    kept.limits.set_share("p", ReplicaShare(4, 1))
    assert kept.limit == 3
    kept.limits.set_share("p", ReplicaShare(4, 2))
    assert kept.limit == 2
    kept.limits.set_share("other", ReplicaShare(40, 2))
    assert kept.limit == 2
    shown = kept.limits.shown("a")
    assert shown is not None
    assert (shown.requests, shown.own, shown.tokens) == (10, 2, None)


def test_while_nobody_knows_how_many_there_are_the_engine_says_what_is_left() -> None:
    kept = Kept(LimitBounds(start=10))
    kept.limits.set_share("p", ReplicaShare(4, 3))
    kept.limits.set_share("p", UNKNOWN)
    assert kept.limit == 2, "the last count stands for an engine that has told nothing"
    kept.told(3, 0)
    assert kept.limit == 7
    kept.limits.set_share("p", ReplicaShare(4, 3))
    assert kept.limit == 2


def test_an_engine_that_falls_silent_is_judged_by_times_from_then_on() -> None:
    kept = Kept()
    kept.told(10, 0)
    limiter = kept.limits.limiters.get("a")
    assert limiter is not None
    kept.limits.tick(kept.now + 1.0)
    assert limiter.has_report
    kept.limits.tick(kept.now + 4.0)
    assert not limiter.has_report


def test_a_restart_begins_anew() -> None:
    kept = Kept()
    kept.told(5, 55, 30)
    assert kept.limit == 7
    kept.limits.restarted("a")
    assert kept.limit == 60


def test_plain_requests_are_taken_to_have_begun_when_they_should_have() -> None:
    kept = Kept()
    charge = kept.load_table.charge("a", 400, 500, 0.0)
    kept.limits.suppose("a", 0.25, charge)
    kept.told(1, 0, 2)
    assert kept.load_table.unbegun("a") == 400
    kept.told(1, 0)
    assert kept.load_table.unbegun("a") == 0


def test_the_board_is_written_only_when_something_changed() -> None:
    kept = Kept()
    woken: list[int] = []
    kept.load_table.freed = lambda: woken.append(1)
    kept.told(10, 0, 50)
    assert woken == []


@pytest.mark.parametrize("backend", ["gone", "never"])
def test_a_backend_that_is_not_there_is_nobodys_business(backend: str) -> None:
    kept = Kept()
    kept.limits.add("p", "gone", LoadTable(["gone"]), LimitBounds())
    kept.limits.drop("gone")
    kept.limits.reported(backend, Signals(read_at=1.0, running=1, waiting=1), 1.0)
    kept.limits.restarted(backend)
    assert kept.limits.limiters.get(backend) is None
