from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from routing.load import MERGED, BackendFacts, LoadTable
from routing.rates import Rates
from tests.placement import pool_of

COUNTED = [name for name in MERGED if name not in ("queue_ctx", "decoding", "decoding_ctx")]


def told(load_table: LoadTable, backend_id: str, at: float, **values: float) -> None:
    load_table.report(backend_id, **{"running": 0, "waiting": 0, "kv_usage": 0.0, "kv_capacity": 1000, **values}, read_at=at, asked_at=at)


def of(load_table: LoadTable, backend_id: str) -> dict[str, float]:
    load_table.settle()
    return {name: getattr(load_table, name)[load_table.row_of[backend_id]] for name in COUNTED}


def test_what_is_sent_counts_at_once_and_is_taken_back_in_parts() -> None:
    load_table = LoadTable("ab")
    told(load_table, "a", 1.0)
    charge = load_table.charge("a", 300, 400, 2.0)
    assert of(load_table, "a") == {"requests": 1, "running": 0, "waiting": 1, "queue_tokens": 300, "kv_tokens": 400, "kv_capacity": 1000}
    for _ in range(2):
        load_table.begun(charge)
        assert of(load_table, "a") == {"requests": 1, "running": 1, "waiting": 0, "queue_tokens": 0, "kv_tokens": 400, "kv_capacity": 1000}
    for _ in range(2):
        load_table.release(charge)
        assert of(load_table, "a") == {"requests": 0, "running": 0, "waiting": 0, "queue_tokens": 0, "kv_tokens": 0, "kv_capacity": 1000}
    load_table.begun(charge)
    assert (load_table.total(), of(load_table, "a")["running"]) == (0, 0)


@pytest.mark.req("ROUTERS-17")
def test_a_report_and_own_counts_are_joined_and_neither_overwrites_the_other() -> None:
    load_table = LoadTable("a")
    early = load_table.charge("a", 100, 150, 1.0)
    told(load_table, "a", 2.0, running=6, waiting=3, queued_tokens=5000, kv_usage=0.5)  # 9, ours among them
    assert of(load_table, "a")["requests"] == 9
    late = load_table.charge("a", 10, 20, 3.0)
    assert of(load_table, "a") == {"requests": 10, "running": 6, "waiting": 4, "queue_tokens": 5010, "kv_tokens": 520, "kv_capacity": 1000}
    load_table.release(early)  # the report knows it, so it is taken off as long as that report stands
    assert of(load_table, "a") == {"requests": 9, "running": 6, "waiting": 3, "queue_tokens": 4910, "kv_tokens": 370, "kv_capacity": 1000}
    told(load_table, "a", 4.0, running=5, waiting=3, queued_tokens=4000, kv_usage=0.4)  # knows of both
    assert of(load_table, "a")["requests"] == 8
    load_table.release(late)
    assert (of(load_table, "a")["requests"], load_table.in_flight("a")) == (7, 0)


@pytest.mark.req("ROUTERS-17")
def test_a_report_that_is_older_than_the_last_says_nothing() -> None:
    load_table = LoadTable("a")
    told(load_table, "a", 5.0, running=7)
    told(load_table, "a", 4.0, running=1)
    assert of(load_table, "a")["requests"] == 7


def test_what_was_on_its_way_when_the_report_was_asked_for_is_added_once() -> None:
    load_table = LoadTable("a")
    charges = [load_table.charge("a", 10, 10, at) for at in (1.0, 1.9, 2.1)]
    load_table.report("a", running=4, waiting=0, kv_usage=0.0, kv_capacity=1000, read_at=2.0, asked_at=1.8)
    assert of(load_table, "a")["requests"] == 6  # 4 that it knows, ours of 1.9 and 2.1 it may not
    for charge in charges:
        load_table.release(charge)
    assert of(load_table, "a")["requests"] == 3  # ours of 1.0 was one of the 4


def test_a_late_report_does_not_bring_back_what_ended_meanwhile() -> None:
    load_table = LoadTable("a")
    ours = load_table.charge("a", 10, 100, 1.0)
    told(load_table, "a", 2.0, running=1)
    load_table.charge("a", 10, 100, 5.0)  # time goes on
    load_table.begun(ours)
    load_table.release(ours)
    told(load_table, "a", 3.0, running=4, kv_usage=0.4)  # arrives after that: ours of 1.0 is one of its 4
    assert (of(load_table, "a")["requests"], of(load_table, "a")["kv_tokens"]) == (4, 400)


def test_an_engine_that_counts_requests_only_has_a_queue_all_the_same() -> None:
    load_table = LoadTable("a")
    for _ in range(500):
        load_table.release(load_table.charge("a", 2000, 10, 1.0))
    told(load_table, "a", 2.0, running=8, waiting=3)
    assert of(load_table, "a")["queue_tokens"] == pytest.approx(6000, rel=0.01)


@pytest.mark.req("ROUTERS-6")
@pytest.mark.parametrize("missing", ["running", "waiting", "kv_usage", "kv_capacity"])
def test_a_lost_series_never_looks_idle(missing: str) -> None:
    load_table = LoadTable("abc")
    for one in "ab":
        told(load_table, one, 1.0, running=10, waiting=4, queued_tokens=8000, kv_usage=0.6)
    if missing == "kv_capacity":
        load_table.report("c", running=0, waiting=0, kv_usage=0.0, read_at=1.0, asked_at=1.0)
    else:
        told(load_table, "c", 1.0, **{"running": 0, "waiting": 0, "kv_usage": 0.0, missing: None})  # type: ignore[arg-type]  # what a lost series is
    lost = of(load_table, "c")
    assert [one for one in load_table.ids if not load_table.reporting(load_table.row_of[one])] == ["c"]
    assert all(lost[name] >= of(load_table, "a")[name] for name in COUNTED if name != "kv_capacity")


@pytest.mark.req("ROUTERS-5")
def test_a_stale_report_is_kept_but_not_believed_alone() -> None:
    load_table = LoadTable("abc")
    told(load_table, "c", 1.0, running=1)
    for one, running in (("a", 10), ("b", 20)):
        told(load_table, one, 10.0, running=running)
    assert load_table.stale(10.5, 5.0) == ["c"]
    assert of(load_table, "c")["requests"] == 15
    held = [load_table.charge("c", 1, 1, 11.0) for _ in range(30)]
    assert of(load_table, "c")["requests"] == 31
    for charge in held:
        load_table.release(charge)
    told(load_table, "c", 12.0, running=2)
    assert (load_table.stale(12.5, 5.0), of(load_table, "c")["requests"]) == ([], 2)


def test_a_spike_between_two_looks_is_seen() -> None:
    load_table = LoadTable("a")
    told(load_table, "a", 1.0)
    load_table.peak("a")
    for charge in [load_table.charge("a", 100, 50, 1.1) for _ in range(12)]:
        load_table.release(charge)
    told(load_table, "a", 1.2, running=2, queued_tokens=400)
    told(load_table, "a", 1.3)
    assert load_table.peak("a") == (12, 1200, 0.6)
    assert load_table.peak("a") == (0, 0, 0)


def test_when_nobody_reports_any_more_each_stands_at_its_own_again() -> None:
    load_table = LoadTable("ab")
    told(load_table, "a", 1.0, running=8)
    assert of(load_table, "b")["requests"] == 8
    load_table.stale(20.0, 5.0)
    assert (of(load_table, "a")["requests"], of(load_table, "b")["requests"]) == (8, 0)  # a's last word still counts for a
    load_table.charge("b", 1, 1, 21.0)
    assert of(load_table, "b")["requests"] == 1


def test_a_backend_leaves_only_when_nothing_of_ours_is_on_it() -> None:
    load_table = LoadTable("abc")
    charge = load_table.charge("a", 5, 5, 1.0)
    load_table.charge("c", 7, 7, 1.0)
    with pytest.raises(ValueError, match="1 requests are in flight on 'a'"):
        load_table.drop("a")
    load_table.release(charge)
    load_table.drop("a")
    load_table.drop("a")
    assert (sorted(load_table.ids), of(load_table, "c")["queue_tokens"], of(load_table, "b")["queue_tokens"]) == (["b", "c"], 7, 0)
    with pytest.raises(KeyError):
        load_table.charge("a", 1, 1, 2.0)
    load_table.add("a", facts=BackendFacts(in_flight_cap=3))
    assert (of(load_table, "a")["requests"], load_table.facts[load_table.row_of["a"]].in_flight_cap) == (0, 3)


class Counters(RuleBasedStateMachine):
    """Requests, reports and backends that come and go in any order: own counts are exact, never below zero, and end at zero."""

    charges = Bundle("charges")

    def __init__(self) -> None:
        super().__init__()
        self.load_table = LoadTable("ab")
        self.now = 0.0
        self.open: list[object] = []

    @rule(target=charges, one=st.sampled_from("abcd"), tokens=st.integers(0, 100_000), kv=st.integers(0, 100_000))
    def send(self, one: str, tokens: int, kv: int) -> object:
        self.now += 0.1
        self.load_table.add(one)
        charge = self.load_table.charge(one, tokens, kv, self.now)
        self.open.append(charge)
        return charge

    @rule(charge=charges)
    def begin(self, charge: object) -> None:
        self.load_table.begun(charge)  # type: ignore[arg-type]  # bundles are untyped

    @rule(charge=charges)
    def end(self, charge: object) -> None:
        self.load_table.release(charge)  # type: ignore[arg-type]  # bundles are untyped
        if charge in self.open:
            self.open.remove(charge)

    @rule(charge=consumes(charges))
    def end_for_good(self, charge: object) -> None:
        self.end(charge)

    @rule(
        one=st.sampled_from("abcd"),
        values=st.fixed_dictionaries(
            {
                "running": st.none() | st.integers(0, 500),
                "waiting": st.none() | st.integers(0, 500),
                "queued_tokens": st.none() | st.integers(0, 10**7),
                "kv_usage": st.none() | st.floats(0, 1),
                "kv_capacity": st.none() | st.integers(1, 10**6),
            }
        ),
        age=st.floats(0, 3),
        asked=st.floats(0, 1),
    )
    def hear(self, one: str, values: dict[str, float | None], age: float, asked: float) -> None:
        self.now += 0.1
        if one in self.load_table.row_of:
            self.load_table.report(one, **values, read_at=self.now - age, asked_at=self.now - age - asked)

    @rule(one=st.sampled_from("abcd"))
    def leave(self, one: str) -> None:
        if any(charge.id == one for charge in self.open):  # type: ignore[attr-defined]  # bundles are untyped
            with pytest.raises(ValueError):
                self.load_table.drop(one)
        else:
            self.load_table.drop(one)

    @rule(after=st.floats(0.1, 5))
    def look(self, after: float) -> None:
        self.load_table.stale(self.now, after)

    @invariant()
    def own_counts_are_exact_and_nothing_is_negative(self) -> None:
        load_table = self.load_table
        load_table.settle()
        assert load_table.total() == len(self.open)
        for row, one in enumerate(load_table.ids):
            own = [charge for charge in self.open if charge.id == one]  # type: ignore[attr-defined]  # bundles are untyped
            assert load_table.in_flight(one) == len(own) <= load_table.requests[row]
            assert load_table.queue_tokens[row] >= sum(charge.uncached_tokens for charge in own if not charge.begun)  # type: ignore[attr-defined]  # bundles are untyped
            assert load_table.kv_tokens[row] >= sum(charge.kv_tokens for charge in own)  # type: ignore[attr-defined]  # bundles are untyped
            assert all(getattr(load_table, name)[row] >= 0 for name in MERGED)

    def teardown(self) -> None:
        for charge in list(self.open):
            self.end(charge)
        assert self.load_table.total() == 0
        for one in list(self.load_table.ids):
            told(self.load_table, one, self.now + 1)
            row = self.load_table.row_of[one]
            assert [getattr(self.load_table, name)[row] for name in MERGED if name != "kv_capacity"] == [0] * 8
            self.load_table.drop(one)


TestCounters = pytest.mark.req("ROUTERS-29")(Counters.TestCase)
TestCounters.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_what_waits_is_known_with_the_context_it_attends_to() -> None:
    load_table = LoadTable("ab")
    told(load_table, "a", 1.0, queued_tokens=0)
    charges = [load_table.charge("a", 100, 100, 2.0, cached) for cached in (0, 1000)]
    assert load_table.queue_ctx[0] == 100 * 50 + 100 * 1050
    load_table.begun(charges[0])
    assert load_table.queue_ctx[0] == 100 * 1050
    load_table.release(charges[1])
    assert load_table.queue_ctx[0] == 0
    told(load_table, "a", 3.0, queued_tokens=500)  # others': with the usual context of ours
    assert 0 < load_table.queue_ctx[0] < 500 * 1050


def test_slots_are_summed_up_to_the_caps_until_a_limit_changes() -> None:
    load_table, backends = LoadTable(), pool_of("a", "b").up
    load_table.add("a", facts=BackendFacts(8, 0, 1.0, ""))
    load_table.add("b")
    assert load_table.slots_of(backends) == inf
    load_table.set_limit("a", requests=12, slots=10)
    load_table.set_limit("b", requests=12, slots=10)
    assert load_table.slots_of(backends) == 18
    load_table.set_limit("b", requests=12)
    assert load_table.slots_of(backends) == 20
    assert load_table.slots_of(backends[:1]) == 8
    load_table.drop("a")
    assert load_table.slots_of(backends[1:]) == 12


def test_generating_sequences_count_with_their_whole_contexts() -> None:
    load_table = LoadTable("a")
    first, second = [load_table.charge("a", 200, 300, 1.0, cached_tokens=1800) for _ in range(2)]
    assert (load_table.decoding[0], load_table.decoding_ctx[0]) == (0, 0)
    load_table.begun(first)
    load_table.begun(second)
    assert (load_table.decoding[0], load_table.decoding_ctx[0]) == (2, 4100), "a prefix that both share counts twice: each attends to it"
    told(load_table, "a", 2.0, running=5, waiting=1)
    assert load_table.decoding[0] == 5, "three of other processes"
    assert load_table.decoding_ctx[0] == pytest.approx(4100 + 3 * load_table._mean_sequence)
    load_table.release(first)
    load_table.release(second)
    assert load_table.decoding[0] == 3


def test_interference_is_the_steps_that_a_first_token_waits_for() -> None:
    load_table = LoadTable("a")
    load_table.set_rates("a", Rates(0.005, 1e-5, 0.0, 0.01, 0.001, 0.0))
    assert load_table.interference_s(0, 2048) == 0.0, "an idle engine computes one chunk at once"
    assert load_table.interference_s(0, 2049) == pytest.approx(0.01)
    charges = [load_table.charge("a", 100, 200, 1.0) for _ in range(48)]
    for charge in charges:
        load_table.begun(charge)
    step = 0.01 + 48 * 0.001
    assert load_table.interference_s(0, 2000) == pytest.approx(0.5 * step + 48 * 0.001), "half of the step under way, and its own"
    assert load_table.interference_s(0, 2001) == pytest.approx(1.5 * step + 48 * 0.001), "48 of 2,048 tokens are taken"
    load_table.charge("a", 4000, 4100, 2.0)
    assert load_table.interference_s(0, 2000) == pytest.approx(2.5 * step + 48 * 0.001)
    load_table.set_facts("a", BackendFacts(step_tokens=8192))
    assert load_table.interference_s(0, 2000) == pytest.approx(0.5 * step + 48 * 0.001)
