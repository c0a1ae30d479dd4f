"""The decision in one line, as routing itself makes the decision, for several policies."""

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import pytest

from gateway.placement.decisions import Explained, decision, reason
from routing.fleet import Availability, Backend, Fleet, Pool
from routing.load import LoadTable
from routing.policy_instance import policy_instance
from routing.ports import UNMATCHED, Circumstances, Match, RoutingRequest
from routing.rates import Rates
from routing.registry import POLICIES
from routing.schedule import place

REQUEST = RoutingRequest(200, chain=(1, 2, 3), exact=False)
RATES = Rates(0.01, 1e-4, 0.0, 0.01, 1e-5, 1e-8)
"""A prompt of 200 tokens takes 10 + 20 ms."""


class Held(NamedTuple):
    blocks: Mapping[str, float]
    common: float = 0.0


def explained(
    policy: str,
    load_table: LoadTable | None = None,
    match: Match = UNMATCHED,
    params: dict[str, float] | None = None,
    request: RoutingRequest = REQUEST,
    **states: str,
) -> Explained:
    """The explained decision between the backends a and b, or those named with the reason why they are not up."""
    states = states or {"a": "", "b": ""}
    if load_table is None:
        load_table = LoadTable(())
        for name in states:
            load_table.add(name, RATES)
    backends = tuple(Backend(name, "p", Availability.DOWN if why else Availability.UP, why) for name, why in states.items())
    pool = Fleet({"p": Pool("p", "m", "1", "vllm", backends)}).pools["p"]
    route = place(request, pool, load_table, policy_instance(policy, params), Circumstances(0.0, match), random.Random(3))
    return decision(route, request, ("r",), 0.0, "m", "p").explained()


def test_the_cached_part_of_the_prompt_and_the_times_to_the_first_token() -> None:
    found = explained("predicted_latency", match=Held({"b": 2.0}))
    assert found.reason == "b: 0 waiting, 128 of about 200 prompt tokens cached, expected first token 17 ms; a: 30 ms"
    counted = explained("predicted_latency", match=Held({"b": 2.0}), request=msgspec.structs.replace(REQUEST, exact=True))
    assert "128 of 200 prompt tokens" in counted.reason


def test_the_times_do_not_change_with_the_weight_that_the_policy_gives_them() -> None:
    assert "expected first token 17 ms; a: 30 ms" in explained("predicted_latency", match=Held({"b": 2.0}), params={"ttft": 3.0}).reason
    assert "both cost 0 ms" in explained("predicted_latency", match=Held({"b": 2.0}), params={"ttft": 0.0}).reason


@pytest.mark.parametrize(("states", "words"), [({"a": "", "b": ""}, "both"), ({"a": "", "b": "", "c": ""}, "all 3")])
def test_a_tie_is_called_one(states: dict[str, str], words: str) -> None:
    found = explained("predicted_latency", **states)
    tie = f": 0 waiting, 0 of about 200 prompt tokens cached; {words} would take 30 ms to the first token"
    why = ", prompts that begin like this one go to the chosen one"
    assert found.reason == found.chosen + tie + why


def test_what_waits_is_counted_and_a_busy_backend_is_slower() -> None:
    load_table = LoadTable(())
    for name in "ab":
        load_table.add(name, RATES)
    load_table.charge("a", 1000, 1000, 0.0)
    load_table.charge("b", 2000, 2000, 0.0)
    assert explained("predicted_latency", load_table).reason == (
        "a: 1 waiting, 0 of about 200 prompt tokens cached, expected first token 135 ms; b: 245 ms"
    )


def test_where_the_times_do_not_show_why_it_is_said() -> None:
    load_table = LoadTable(())
    load_table.add("a", RATES)
    load_table.add("b", RATES._replace(step_s=0.5))
    assert explained("predicted_latency", load_table).reason.startswith(
        "a: 0 waiting, 0 of about 200 prompt tokens cached; both would take"
    )
    assert explained("predicted_latency", load_table).reason.endswith("b costs 4634 ms more in all, mostly to generate the answer")
    kept = msgspec.structs.replace(explained("predicted_latency"), why="session")
    assert reason(kept).endswith("both would take 30 ms to the first token, the conversation stays where its last turn was")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("least_load", "a: 1 waiting, 0 of about 200 prompt tokens cached, cost 2 requests; b: 3 requests"),
        ("lmetric", "a: 1 waiting, 0 of about 200 prompt tokens cached, cost 2400 tokens x requests; b: 6600 tokens x requests"),
        ("dynamo_cost", "a: 1 waiting, 0 of about 200 prompt tokens cached, cost 137.5 blocks; b: 262.5 blocks"),
        ("round_robin", "a: 1 waiting, 0 of about 200 prompt tokens cached, cost 0 steps; b: 1 step"),
    ],
)
def test_policies_that_expect_no_times_give_their_costs_with_the_unit(policy: str, words: str) -> None:
    load_table = LoadTable("ab")
    load_table.charge("a", 1000, 1000, 0.0)
    for _ in range(2):
        load_table.charge("b", 1000, 1000, 0.0)
    assert explained(policy, load_table).reason == words


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_a_line_that_names_every_backend(policy: str) -> None:
    found = explained(policy, a="", b="", c="no answer")
    assert found.reason.startswith(f"{found.chosen}: 0 waiting, ")
    assert found.reason.endswith("; not eligible: c (no answer)")
    assert "\n" not in found.reason


def test_one_backend_no_backend_and_many_backends() -> None:
    assert explained("predicted_latency", a="", b="no answer").reason == "a: the only backend that is up; not eligible: b (no answer)"
    assert explained("predicted_latency", match=Held({"a": 1.0}), a="", b="no answer").reason == (
        "a: 0 waiting, 64 of about 200 prompt tokens cached, expected first token 24 ms, the only backend that can serve it; "
        "not eligible: b (no answer)"
    )
    assert explained("predicted_latency", a="away", b="away").reason == "no backend can serve it: a (away), b (away)"
    many = explained("predicted_latency", match=Held({"a": 1.0}), **dict.fromkeys("abcdefg", ""))
    assert many.reason.endswith(": 30 ms and 3 more")
    assert many.reason.count("30 ms") == 3


def test_a_large_pool_says_how_many_were_not_compared() -> None:
    found = explained("predicted_latency", **{f"b{at}": "" for at in range(30)})
    compared = len(found.contenders)
    assert compared < 10
    assert found.reason.endswith(f"; {30 - compared} more cannot be better by their load, and were not compared")
