"""What is compared: a workload, the fleet it runs on, and how dense "half", "most" and "over" are for it."""

from pathlib import Path
from typing import Any, NamedTuple

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


def source(case: Case, traces: Path | None, speed: float, limit: int, dice: Dice) -> Workload | None:
    """None where its trace is not here."""
    if case.source in WORKLOADS:
        workload = WORKLOADS[case.source](dice)
    elif traces is None or not (traces / case.source).exists():
        return None
    else:
        workload = load(traces / case.source, dice)
    return workload.scaled(speed).first(min(limit, case.limit))
