import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from routing.fleet import Availability, Backend
from routing.load_row import BackendFacts
from routing.policy_instance import Choice, policy_instance
from routing.ports import Adapters, Circumstances, RoutingRequest
from routing.rates import UNKNOWN_RATES, Rates
from routing.schedule import Route, place
from tests.placement import Held, board_of, decide, pool_of, spread, tell
from tests.small_fleet import Arrival, poisson, run

HOW = policy_instance("predicted_latency")
RNG = random.Random(11)
EXACT = policy_instance("predicted_latency", choice=Choice(explore_share=0.0))


def term(route: Route, backend: str, name: str) -> float:
    return next(dict(one.terms)[name] for one in route.explanation().candidates if one.backend == backend)


def test_the_terms_are_seconds_and_their_sum_decides() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, running=10, queued_tokens=40_000, kv_usage=0.5)
    for _ in range(1000):
        load_table.reuse.note(1000, 500)  # half of what is sent is cached
    reuse = load_table.reuse.share
    assert reuse == pytest.approx(0.5, rel=1e-4)
    route = decide(EXACT, load_table, RoutingRequest(8000, output_tokens=200), Held(b=50), rng=RNG)
    assert [one.id for one in route.backends] == ["b", "a"]
    step = 0.0065 + 10 * 2e-5 + 10 * 1024 * 5e-8  # ten sequences of another process, of the usual length
    waits = 24 - 0.5  # 48,000 tokens in steps of 2,038, of which one is under way
    queued = 1.0 + 8e-10 * 40_000 * 512  # at 25 microseconds, and the usual context
    assert term(route, "a", "queue_s") == pytest.approx(waits * step + queued)
    own = 4800 * 2.5e-5 + 8e-10 * 4800 * 5600
    assert term(route, "b", "prefill_s") == pytest.approx(0.0065 + own)
    assert term(route, "b", "queue_s") == pytest.approx(2 * 0.0065), "an idle engine needs three steps for 4,800 tokens"
    assert term(route, "b", "recompute_s") == pytest.approx((2.0 * reuse * 0.25 / 0.75 + 0.5) * own), (
        "the caches are a quarter full in the mean, and half of the backends have prompts to compute"
    )
    more = 10 * 2e-5 + 10 * 1024 * 5e-8
    assert term(route, "a", "decode_s") == pytest.approx(0.1 * 200 * 150 / 350 * more, rel=1e-4)
    assert term(route, "a", "memory_s") == pytest.approx(0.1 * reuse * 0.5205 / 0.4795, rel=1e-4)
    assert term(route, "b", "decode_s") == 0.0


@pytest.mark.parametrize("fill", [0.0, 0.9, 0.999, 1.5])
def test_every_part_of_a_cost_is_bounded(fill: float) -> None:
    load_table = board_of("a", "b", kv_usage=fill, at=1.0)
    for _ in range(2000):
        load_table.reuse.note(1000, 1000)
    route = decide(EXACT, load_table, RoutingRequest(8000, output_tokens=200), rng=RNG)
    own = 8000 * 2.5e-5 + 8e-10 * 8000 * 4000
    for backend in "ab":
        assert 0.0 <= term(route, backend, "recompute_s") <= (2.0 * 19.0 + 0.5 * 4.0) * own * 1.0001
        assert 0.0 <= term(route, backend, "memory_s") <= 0.1 * 49.0 * 1.0001


def test_a_full_match_on_an_overloaded_worker_loses_and_on_a_busy_one_wins() -> None:
    load_table = board_of("a", "b")
    for tokens, first in ((20_000, "a"), (400_000, "b")):
        tell(load_table, "a", float(tokens), queued_tokens=tokens, running=4)
        assert decide(EXACT, load_table, RoutingRequest(32_000), Held(a=500), rng=RNG).backends[0].id == first


def test_equals_are_drawn_evenly() -> None:
    firsts = Counter(decide(HOW, board_of(*"abcd"), RoutingRequest(500), rng=RNG).backends[0].id for _ in range(2000))
    assert all(420 < firsts[one] < 580 for one in "abcd")


@pytest.mark.req("ROUTERS-16")
def test_without_anything_shared_all_get_their_share() -> None:
    outcomes = run(HOW, poisson(30.0, 60.0, RoutingRequest(4000, output_tokens=200)), dict.fromkeys("abcde", 40_000.0), step_s=0.01)
    shares = list(Counter(one.backend for one in outcomes).values())
    assert len(shares) == 5 and statistics.pstdev(shares) / statistics.mean(shares) < 0.1


@pytest.mark.req("ROUTERS-3")
def test_a_hot_prefix_spreads() -> None:
    # one worker computes 40,000 tokens a second; the unshared 1,000 of 120 requests a second are three workers' work
    hot = poisson(120.0, 30.0, RoutingRequest(9000, output_tokens=50), prefix="hot", shared=8000)
    outcomes = [one for one in run(HOW, hot, dict.fromkeys("abcd", 40_000.0), step_s=0.01) if one.at > 10.0]
    shares = Counter(one.backend for one in outcomes)
    assert len(shares) >= 3
    assert 4 * max(shares.values()) / len(outcomes) <= 1.5
    assert statistics.mean(one.hit for one in outcomes) > 0.85


@pytest.mark.req("ROUTERS-1")
def test_what_nobody_has_cached_avoids_a_slow_worker_within_two_seconds() -> None:
    cold = poisson(60.0, 6.0, RoutingRequest(2000, output_tokens=50))
    outcomes = run(HOW, cold, {"a": 4000.0, "b": 40_000.0, "c": 40_000.0, "d": 40_000.0}, step_s=0.01)
    late = [one for one in outcomes if one.at > 2.0]
    assert sum(one.backend == "a" for one in late) / len(late) < 0.5 * 1 / 4


@pytest.mark.req("ROUTERS-2")
def test_affinity_survives_a_high_load_that_is_even() -> None:
    hits = []
    for rate in (2.0, 30.0):  # 24 groups; at 30 a second, 12 % of capacity is left
        groups = [
            poisson(rate / 24, 60.0, RoutingRequest(9000, output_tokens=50), seed=at, prefix=f"g{at}", shared=4500) for at in range(24)
        ]
        arrivals = sorted([one for group in groups for one in group], key=lambda one: one.at)
        outcomes = run(HOW, arrivals, dict.fromkeys("abcd", 40_000.0), step_s=0.01)
        hits.append(statistics.mean(one.hit for one in outcomes if one.at > 20.0))
    assert hits[1] > 0.9 * hits[0] > 0.4


@pytest.mark.req("ROUTERS-4")
def test_no_short_request_waits_behind_a_pending_long_prompt() -> None:
    load_table, rng = board_of("a", "b", "c"), random.Random(5)
    load_table.charge("a", 100_000, 100_200, 1.0)
    for one in "bc":
        load_table.charge(one, 100, 200, 1.0)
    firsts = Counter(decide(HOW, load_table, RoutingRequest(100, output_tokens=20), rng=rng).backends[0].id for _ in range(300))
    assert firsts["a"] == 0


def test_a_common_prefix_pulls_nobody_and_a_rare_one_does() -> None:
    load_table = board_of("a", "b", "c")
    everywhere = Held(common=60, a=60, b=60, c=60)
    firsts = Counter(decide(HOW, load_table, RoutingRequest(5000), everywhere, rng=RNG).backends[0].id for _ in range(300))
    assert min(firsts.values()) > 60
    assert decide(EXACT, load_table, RoutingRequest(5000), Held(common=60, a=60, b=70, c=60), rng=RNG).backends[0].id == "b"


def test_the_session_stays_by_a_margin_that_is_no_lock() -> None:
    load_table = board_of("a", "b")
    patient = policy_instance("predicted_latency", choice=Choice(explore_share=0.0, sticky_s=0.5))
    for queued, holder, patient_holder in ((1_600, "a", "a"), (10_000, "b", "a"), (40_000, "b", "b")):  # 0.04, 0.25 and 1 s
        tell(load_table, "a", float(queued), queued_tokens=queued)
        assert decide(EXACT, load_table, RoutingRequest(500), rng=RNG, holder="a").backends[0].id == holder
        assert decide(patient, load_table, RoutingRequest(500), rng=RNG, holder="a").backends[0].id == patient_holder
    tell(load_table, "a", 50_000.0, queued_tokens=10_000)
    assert (
        decide(patient, load_table, RoutingRequest(500, ttft_slo_s=0.8), rng=RNG, holder="a").backends[0].id == "b"
    )  # 0.2 s are the margin then


def test_a_session_that_went_on_elsewhere_does_not_come_back() -> None:
    """Another gateway process had its last turn, so the holder that this one remembers has less of the prompt."""
    load_table = board_of("a", "b")
    for blocks, first in ((60, "a"), (70, "b")):
        assert decide(EXACT, load_table, RoutingRequest(5000), Held(a=60, b=blocks), rng=RNG, holder="a").backends[0].id == first


def test_long_contexts_that_wait_take_longer_than_short_ones() -> None:
    load_table = board_of("a", "b")
    load_table.charge("a", 5_000, 5_000, 1.0, cached_tokens=90_000)
    load_table.charge("b", 6_000, 6_000, 1.0)
    assert decide(EXACT, load_table, RoutingRequest(2000, output_tokens=10), rng=RNG).backends[0].id == "b"


def test_memory_costs_as_much_as_is_used_again() -> None:
    costs = []
    for cached in (450, 900):
        load_table = board_of("a", "b", at=1.0)
        tell(load_table, "a", 1.0, running=20, kv_usage=0.7)
        for _ in range(1000):
            load_table.reuse.note(1000, cached)
        costs.append([term(decide(EXACT, load_table, RoutingRequest(500), rng=RNG), "a", name) for name in ("recompute_s", "memory_s")])
    assert all(0 < half == pytest.approx(0.5 * whole, rel=1e-3) for half, whole in zip(*costs, strict=True))


def test_a_copy_is_cheap_while_memory_is_free_and_dear_when_it_is_short() -> None:
    """A holder with a queue of a quarter of a second, and an idle engine without the prompt."""
    for fill, first in ((0.05, "b"), (0.9, "a")):
        load_table = board_of("a", "b", kv_usage=fill, at=1.0)
        for _ in range(1000):
            load_table.reuse.note(1000, 800)
        tell(load_table, "a", 1.0, queued_tokens=10_000, kv_usage=fill)
        assert decide(EXACT, load_table, RoutingRequest(6000, output_tokens=100), Held(a=90), rng=RNG).backends[0].id == first


def test_work_costs_what_it_delays_but_not_where_others_want_the_copy_too() -> None:
    load_table = board_of(*"abcde", at=1.0)
    request, own = RoutingRequest(6400), 6400 * 2.5e-5 + 8e-10 * 6400 * 3200
    for waiting, price in (("", 0.0), ("a", 0.25), ("ab", 2 / 3), ("abcd", 4.0), ("abcde", 4.0)):
        for one in waiting:
            tell(load_table, one, 2.0, queued_tokens=1000)
        route = decide(EXACT, load_table, request, Held(a=90), rng=RNG)
        assert term(route, "e", "recompute_s") == pytest.approx(0.5 * price * own)
        for matched in (Held(a=90, b=85), Held(), Held(common=90, a=90, b=90, c=90, d=90, e=90)):
            assert term(decide(EXACT, load_table, request, matched, rng=RNG), "e", "recompute_s") == 0.0


def test_a_prompt_of_one_step_goes_where_fewer_sequences_decode() -> None:
    load_table = board_of("a", "b", at=1.0)
    tell(load_table, "a", 1.0, running=100, kv_usage=0.1)
    tell(load_table, "b", 1.0, running=10, queued_tokens=100, kv_usage=0.1)
    assert decide(EXACT, load_table, RoutingRequest(500, output_tokens=1), rng=RNG).backends[0].id == "b"


def test_one_in_a_hundred_explores_but_never_one_in_a_hurry() -> None:
    load_table, rng = board_of("a", "b"), random.Random(3)
    tell(load_table, "a", 1.0, queued_tokens=8000)
    firsts = Counter(decide(HOW, load_table, RoutingRequest(500), rng=rng).backends[0].id for _ in range(4000))
    assert 5 < firsts["a"] < 40
    assert all(decide(HOW, load_table, RoutingRequest(500, ttft_slo_s=1.0), rng=rng).backends[0].id == "b" for _ in range(1000))
    tell(load_table, "a", 2.0, queued_tokens=80_000)  # and never where it would cost two seconds
    assert all(decide(HOW, load_table, RoutingRequest(500), rng=rng).backends[0].id == "b" for _ in range(1000))


def test_a_faster_backend_may_have_the_longer_queue() -> None:
    load_table = board_of("a", "b")
    load_table.set_rates("a", Rates(*[value / 2 for value in UNKNOWN_RATES]))
    tell(load_table, "a", 1.0, queued_tokens=12_000)
    tell(load_table, "b", 1.0, queued_tokens=9_000)
    assert decide(EXACT, load_table, RoutingRequest(2000, output_tokens=10), rng=RNG).backends[0].id == "a"


def test_an_adapter_that_is_loaded_is_preferred_until_that_costs_more_than_loading() -> None:
    load_table, adapters = board_of("a", "b"), Adapters({"a"}, {}, 0.5)
    request, pool = RoutingRequest(500, lora="x"), pool_of("a", "b")
    for queued, first in ((10_000, "a"), (60_000, "b")):
        tell(load_table, "a", float(queued), queued_tokens=queued)
        route = place(request, pool, load_table, EXACT, Circumstances(1.0, adapters=adapters), RNG)
        assert route.backends[0].id == first
    assert term(route, "b", "adapter_s") == 0.5


def test_one_that_warms_up_gets_little() -> None:
    pool = pool_of("a", "b", Backend("c", "p", Availability.UP, "", warming_since=1.0))
    went = spread(EXACT, board_of(*"abc"), [RoutingRequest(2000, output_tokens=50)] * 90, rng=RNG, pool=pool)
    assert went["c"] <= 9 and abs(went["a"] - went["b"]) <= 2


@pytest.mark.req("ROUTERS-6")
def test_not_to_know_how_full_a_cache_is_does_not_make_it_empty() -> None:
    load_table = board_of("a", "b", kv_usage=0.9, at=1.0)
    load_table.add("c")
    load_table.report("c", running=0, waiting=0, queued_tokens=0, read_at=1.0, asked_at=1.0)
    for _ in range(1000):
        load_table.reuse.note(1000, 1000)
    route = decide(EXACT, load_table, RoutingRequest(500), rng=RNG)
    assert term(route, "c", "memory_s") >= term(route, "a", "memory_s") > 0.5


def test_longer_sessions_stay_where_their_prefix_is() -> None:
    # 12 agents on 4 workers, each turn 2,000 tokens longer than the last
    turns = [
        Arrival(0.9 * turn + 0.07 * agent, RoutingRequest(20_000 + 2000 * turn, output_tokens=100), f"agent{agent}", 20_000 + 2000 * turn)
        for turn in range(30)
        for agent in range(12)
    ]
    outcomes = run(HOW, sorted(turns, key=lambda one: one.at), dict.fromkeys("abcd", 40_000.0), step_s=0.005)
    assert statistics.mean(one.hit for one in outcomes[24:]) > 0.9
    assert len(Counter(one.backend for one in outcomes)) == 4


def test_who_would_be_slower_per_token_than_was_promised_takes_nothing_while_another_would_not() -> None:
    load_table = board_of("a", "b")
    tell(load_table, "a", 1.0, running=60, kv_usage=0.3)
    tell(load_table, "b", 1.0, queued_tokens=60_000)
    request = RoutingRequest(2000, output_tokens=50)
    assert decide(EXACT, load_table, request, rng=RNG).backends[0].id == "a"
    steps = [
        load_table.step_s[row]
        + load_table.step_s_seq[row] * (load_table.decoding[row] + 1)
        + load_table.step_s_token[row] * (load_table.decoding_ctx[row] + 2025)
        for row in (0, 1)
    ]
    assert steps[1] * 1.1 < steps[0]
    between = (steps[0] + steps[1]) / 2
    kept = decide(EXACT, load_table, RoutingRequest(2000, output_tokens=50, tpot_slo_s=between), rng=RNG)
    assert kept.backends[0].id == "b"
    assert (term(kept, "a", "late_s"), term(kept, "b", "late_s")) == (60.0, 0.0)
    for promised in (steps[1] / 2, steps[0] * 2):
        other = decide(EXACT, load_table, RoutingRequest(2000, output_tokens=50, tpot_slo_s=promised), rng=RNG)
        assert other.backends[0].id == "a", "nobody keeps it, or both do"


def zoned(crossing_s: float, *, seconds: float = 0.0, there: str = "z2") -> tuple[str, Route]:
    """The backend that a request of zone z1 goes to, where the one in its own zone has so many seconds of prompts to compute."""
    load_table = board_of("here", "there")
    load_table.set_facts("here", BackendFacts(region="z1"))
    load_table.set_facts("there", BackendFacts(region=there))
    tell(load_table, "here", 1.0, queued_tokens=round(seconds / load_table.prefill_s_token[load_table.row_of["here"]]))
    how = policy_instance("predicted_latency", {"crossing_s": crossing_s, "work": 0.0}, choice=Choice(explore_share=0.0))
    route = decide(how, load_table, RoutingRequest(1000, region="z1"), rng=RNG)
    return route.backends[0].id, route


@pytest.mark.parametrize("crossing_s", [0.05, 0.2, 1.0])
def test_the_own_zone_is_preferred_unless_its_delay_is_longer_by_what_a_crossing_costs(crossing_s: float) -> None:
    """Delays that differ from the price of a crossing by less than the tie margin (0.02 s) may go either way."""
    delays = [step * 0.01 for step in range(int((crossing_s + 0.3) * 100))]
    ruled = [(zoned(crossing_s, seconds=seconds)) for seconds in delays]
    paid = [term(route, "here", "queue_s") + 0.0 for _, route in ruled]
    for (chosen, route), waits_s in zip(ruled, paid, strict=True):
        assert (term(route, "here", "crossing_s"), term(route, "there", "crossing_s")) == (0.0, crossing_s)
        more_s = waits_s + term(route, "here", "prefill_s") + term(route, "here", "decode_s")
        more_s -= sum(term(route, "there", name) for name in ("queue_s", "prefill_s", "decode_s"))
        if abs(more_s - crossing_s) > 0.02:
            assert chosen == ("here" if more_s < crossing_s else "there")
    assert {chosen for chosen, _ in ruled} == {"here", "there"}


def test_a_crossing_costs_nothing_where_it_is_off_or_a_zone_is_not_known() -> None:
    for crossing_s, there in ((0.0, "z2"), (0.2, "")):
        _, route = zoned(crossing_s, there=there)
        assert term(route, "there", "crossing_s") == 0.0
    load_table = board_of("a", "b")
    load_table.set_facts("a", BackendFacts(region="z1"))
    how = policy_instance("predicted_latency", {"crossing_s": 0.2})
    assert term(decide(how, load_table, RoutingRequest(1000), rng=RNG), "a", "crossing_s") == 0.0


def test_two_zones_at_60_percent_load_cross_less_and_wait_little_more(record_property: Callable[[str, object], None]) -> None:
    """Two zones of four engines each in one fleet, and as many requests from each."""
    found, words = {}, []
    zones = {f"{zone}{n}": zone for zone in ("a", "b") for n in range(4)}
    arrivals = [poisson(4.8, 120.0, RoutingRequest(4000, output_tokens=100, region=zone), seed=seed) for zone, seed in (("a", 3), ("b", 4))]
    asked = sorted([arrival for each in arrivals for arrival in each], key=lambda arrival: arrival.at)
    for crossing_s in (0.0, 0.05, 0.2):
        how = policy_instance("predicted_latency", {"crossing_s": crossing_s})
        outcomes = run(how, asked, dict.fromkeys(zones, 8000.0), regions=zones, step_s=0.005)
        crossed = statistics.mean(arrival.request.region != zones[one.backend] for arrival, one in zip(asked, outcomes, strict=True))
        ttfts = sorted(one.ttft for one in outcomes)
        found[crossing_s] = crossed, statistics.mean(ttfts)
        words.append(f"{crossing_s:g}: {crossed:.1%}, {statistics.mean(ttfts):.3f} s, {ttfts[len(ttfts) * 99 // 100]:.3f} s")
    record_property("figure", "; ".join(words))
    assert 0.4 < found[0.0][0] < 0.6
    assert found[0.2][0] < found[0.05][0] < found[0.0][0] / 2
    assert found[0.05][1] < found[0.0][1] + 0.01 and found[0.2][1] < found[0.0][1] + 0.05
