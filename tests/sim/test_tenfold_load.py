"""Ten times the load that engines can answer, of four priority classes, through a whole gateway on virtual time: the steady scenario of
`bench.overload` (R19). Virtual time has no CPU time: how long a refusal takes here is how long it is put off."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

import tests.world.gateways
from backends.simengine.settings import SimSettings
from bench.overload.plan import ENGINES, KV_TOKENS, SEQUENCES, SLO_TTFT_S, SLOWER, TENANTS, Phase, planned
from bench.results_file import percentile
from policies.compile import compiled
from policies.schema import PolicyDocument
from tests.world.callers import MODEL, Ask, Manners, send
from tests.world.gateways import SLOWED
from tests.world.neighbours import BEGINS_S, NAMES, Neighbours, planned_ask
from tests.world.plan import Coming
from tests.world.world import BEGAN_S

CAPACITY_PER_S = 28.2
"""Answers of the four engines when they always have more to do (docs/numbers.md): the peak."""
MULTIPLE = 10.0
WARM_S, COUNTED_S = 8.0, 16.0
SETTLED_S = 4.0
"""Of the overload; refusals count after it. The queue predicts from what it has seen, so that it lets too many wait when a load comes of a
sudden."""


class Steady(Neighbours):
    """Twenty tenants who together ask for what four engines can answer, and then for ten times that; a twentieth of the requests is
    critical."""

    policies = compiled(
        [
            PolicyDocument.model_validate(
                {
                    "tenant": "*",
                    "models": [{"name": MODEL, "pool": "chat"}],
                    "class": "critical",
                    "max_wait_s": 1.5,
                    "ttft_slo_s": SLO_TTFT_S,
                }
            )
        ]
    )

    def __init__(self, run_dir: Path) -> None:
        phases = [Phase(WARM_S, CAPACITY_PER_S), Phase(COUNTED_S, MULTIPLE * CAPACITY_PER_S)]
        self.planned = planned("tenfold 0", phases, range(TENANTS))
        self.of_class: dict[str, list[Ask]] = {}
        comings = [
            Coming(
                BEGINS_S + one.at_s,
                at,
                NAMES[one.tenant],
                "g0",
                Manners(max_tokens=one.output, headers=(("x-tidegate-class", one.tier),), leaves_after_s=10.0),
            )
            for at, one in enumerate(self.planned)
        ]
        sim = SimSettings(models=(MODEL,), speed=1 / SLOWER, preset="h100-8b", max_num_seqs=SEQUENCES, kv_tokens=KV_TOKENS)
        super().__init__(run_dir, tuple(f"e{number}" for number in range(ENGINES)), sim, comings, WARM_S + COUNTED_S)

    def run(self) -> None:
        """With queues that look for requests whose wait is over as often as they do outside of worlds: here they decide."""
        with patch.object(tests.world.gateways, "SLOWED", tuple(slowed for slowed in SLOWED if slowed[1] != "SWEEP_S")):
            super().run()

    async def _ask(self, one: Coming) -> None:
        plan = self.planned[one.number]
        ask = planned_ask(one.number, plan, one.manners)
        self.asks.append(ask)
        if plan.at_s >= WARM_S:
            self.of_class.setdefault(plan.tier, []).append(ask)
        await send(ask, one.gateway, self.loop)

    def goodput_per_s(self) -> float:
        """Answers whose first token came within the objective, per second."""
        counted = [
            one
            for tenant in (True, False)
            for one in self.records(of_noisy=tenant, from_s=WARM_S)
            if one.outcome == "ok" and one.ttft_s is not None and one.ttft_s <= SLO_TTFT_S
        ]
        return len(counted) / COUNTED_S

    def success(self, tier: str) -> float:
        """Share of a class's requests that got a whole answer."""
        return sum(ask.status == 200 and ask.whole for ask in self.of_class[tier]) / len(self.of_class[tier])

    def refusals_s(self) -> list[float]:
        """How long each refusal took, from the sending of the request to the end of the reply."""
        since = BEGAN_S + BEGINS_S + WARM_S + SETTLED_S
        counted = [ask for asks in self.of_class.values() for ask in asks if ask.began_at >= since]
        return [ask.ended_at - ask.began_at for ask in counted if ask.status in (429, 503)]


@pytest.mark.slow
@pytest.mark.req("R19")
def test_ten_times_the_load_costs_little_goodput_no_critical_request_and_is_refused_at_once(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    steady = Steady(tmp_path)
    goodput, refused_s, success = steady.goodput_per_s(), steady.refusals_s(), steady.success("critical")
    refused_ms = 1000 * percentile(refused_s, 0.99)
    record_property(
        "figure",
        f"{goodput:.1f} answers/s in time of {CAPACITY_PER_S}; {success:.1%} of {len(steady.of_class['critical'])} critical requests; "
        f"{len(refused_s)} refusals, p99 {refused_ms:.1f} ms",
    )
    assert goodput >= 0.8 * CAPACITY_PER_S
    assert success >= 0.99
    assert len(refused_s) > 0.8 * MULTIPLE * CAPACITY_PER_S * (COUNTED_S - SETTLED_S), "it was no overload"
    assert refused_ms <= 20.0
