"""What is compared: a workload, the fleet it runs on, and how dense "half", "most" and "over" are for it."""

import json
import random
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.fleet.parts import split
from domain.clock import Rng
from routing.simulation.fleet_file import FleetFile
from routing.simulation.traces import load
from routing.simulation.turns import Dice, Workload
from routing.simulation.workloads import WORKLOADS


class Case(NamedTuple):
    name: str
    """As figures name it: `ttft_mean_s:NAME`."""
    source: str
    """A made-up workload, or a file or folder below --traces."""
    fleet: dict[str, Any]
    speeds: tuple[float, float, float]
    """Arrivals times so much: well within what the fleet can do, near it, above it."""
    limit: int = 20_000

    @property
    def steady(self) -> str:
        """The workload that arrives at an even rate: a load in shares of the capacity has a meaning for that only."""
        return f"{self.source}-steady" if f"{self.source}-steady" in WORKLOADS else self.source


EIGHT = {"machine": "h100-8b", "count": 8}
BIG = {"machine": "h100-70b-tp4", "count": 8}
KILLED = [
    {"at_s": 60.0, "engine": 1, "kind": "kill", "for_s": 60.0},
    {"at_s": 120.0, "engine": 2, "kind": "slow", "for_s": 60.0, "factor": 6.0},
    {"at_s": 180.0, "engine": 3, "kind": "stall", "for_s": 10.0},
]

HANDING_OVER = {"kv_bytes_token": 131_072, "bandwidth_gb_s": 50.0}
"""Of Llama 3.1 8B in bfloat16, between machines."""

CASES = (
    Case("shared-prefix", "shared-prefix", {"engines": [EIGHT]}, (1.0, 2.0, 3.0)),
    Case("conversation", "trace-mooncake/conversation_first20min.jsonl.gz", {"engines": [BIG]}, (0.6, 1.0, 1.3)),
    Case("synthetic", "trace-mooncake/synthetic.jsonl.gz", {"engines": [BIG]}, (0.6, 1.0, 1.3)),
    Case("agents", "trace-claude-code", {"engines": [EIGHT]}, (0.5, 1.0, 1.5), 8_000),
    Case("no-sharing", "no-sharing", {"engines": [EIGHT]}, (0.6, 1.0, 1.4)),
    Case("hot-prefix", "hot-prefix", {"engines": [EIGHT]}, (0.6, 1.0, 1.5)),
    Case("hetero", "chat", {"engines": [{**EIGHT, "count": 4}, {**EIGHT, "count": 4, "slower": 2.0}]}, (0.6, 1.0, 1.5)),
    Case("noisy-tenant", "noisy-tenant", {"engines": [EIGHT]}, (0.6, 1.0, 1.3)),
    Case("faults", "chat", {"engines": [EIGHT], "faults": KILLED}, (0.6, 1.0, 1.5)),
    Case("pd", "mixed-lengths", {"engines": [EIGHT], "disaggregation": HANDING_OVER}, (1.0, 1.5, 2.0)),
    Case("pd-whole", "mixed-lengths", {"engines": [EIGHT]}, (1.0, 1.5, 2.0)),
    Case("lora", "lora", {"engines": [{**EIGHT, "lora_slots": 4}]}, (0.6, 1.0, 1.5)),
)


def dice(seed: int) -> Dice:
    """Generators that are the same in every run with this seed."""

    def one(name: str) -> Rng:
        return random.Random(f"{seed} {name}")

    return one


def source(case: Case, traces: Path | None, speed: float, limit: int, dice: Dice) -> Workload | None:
    """None where its trace is not here."""
    if case.source in WORKLOADS:
        workload = WORKLOADS[case.source](dice)
    elif traces is None or not (traces / case.source).exists():
        return None
    else:
        workload = load(traces / case.source, dice)
    return workload.scaled(speed).first(min(limit, case.limit))


CAPACITIES: Final = Path(__file__).with_name("capacity.json")
"""Written by `python -m bench.fleet.capacity`."""


def case_of(name: str) -> Case:
    """The case of this name.

    Raises:
        ValueError: there is none.
    """
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(f"there is no workload {name!r}; there are {', '.join(case.name for case in CASES)}")


@cache
def _capacities() -> dict[str, float]:
    found: dict[str, dict[str, float]] = json.loads(CAPACITIES.read_text()) if CAPACITIES.exists() else {}
    return {name: one["speed"] for name, one in found.items()}


def capacity_of(case: Case) -> float:
    """How much denser than the workload's own arrivals its fleet can just follow.

    Raises:
        ValueError: it was not measured.
    """
    if case.name not in _capacities():
        raise ValueError(
            f"{CAPACITIES}: has no capacity of {case.name}; `python -m bench.fleet.capacity --workloads {case.name}` measures it"
        )
    return _capacities()[case.name]


def most_tokens(case: Case) -> int:
    """The longest prompt and answer together that every engine of the case's fleet takes."""
    kinds = FleetFile.model_validate(case.fleet).engines
    return min(min(kind.timing.kv_tokens - 16, kind.context_tokens) for kind in kinds)


def prepared(case: Case, traces: Path | None, dice: Dice, *, sealed: bool, limit: int) -> Workload | None:
    """The part of a workload that may run, without what no engine could take; None where its trace is not here. Made-up workloads have no
    sealed part: fresh seeds are theirs."""
    if case.steady in WORKLOADS:
        workload = WORKLOADS[case.steady](dice)
    elif traces is None or not (traces / case.source).exists():
        return None
    else:
        workload = split(load(traces / case.source, dice), sealed=sealed)
    return workload.without_oversize(most_tokens(case)).first(limit).with_answers()
