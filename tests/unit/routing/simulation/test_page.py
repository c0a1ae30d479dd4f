"""The page: it needs nothing from outside, and names from a trace cannot become markup."""

import random
from functools import partial

from domain.clock import Rng
from routing.policy_instance import policy_instance
from routing.simulation.comparison import compare, shown
from routing.simulation.fleet_file import Engines, FleetFile
from routing.simulation.page import page
from routing.simulation.turns import Dice, TraceRequest, Workload


def dice(seed: int) -> Dice:
    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def make(_: Dice) -> Workload:
    return Workload("<script>", [TraceRequest(i * 0.1, 500, 5) for i in range(30)], notes=["a <b> note"])


def test_markup_is_escaped_and_intervals_are_shown() -> None:
    told: list[int] = []
    fleet = FleetFile(engines=[Engines(machine="h100-8b", count=2)])
    result = compare(
        make,
        fleet,
        {name: partial(policy_instance, name) for name in ("random", "p2c")},
        [dice(0), dice(1)],
        lambda policy, seed, done: told.append(done),
    )
    html = page(result, [("title", "<svg></svg>")])
    assert "<script" not in html
    assert "a &lt;b&gt; note" in html
    assert html.count("<svg>") == 1
    assert {one.policy for one in result.policies} == {"random", "p2c"}
    assert all(shown("goodput", one) == "100.0%" for one in result.policies)
    assert told[-1] == 30
