"""What `tidegate simulate` says of yesterday's access log, beside what it says of the traffic itself.

A workload is simulated under two policies of which one is known to be better. The log that a gateway would have written under the better
one is replayed under both, and the report has to find the difference that there truly is: the log has no prompt, only keyed hashes.
"""

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from domain.clock import Rng
from domain.usage import Usage
from gateway.record import Record, RoutedPrompt
from gateway.telemetry.access_log import line_of
from routing.policy_instance import policy_instance
from routing.ports import RoutingRequest
from routing.prefix.index import IndexMatch, PrefixIndex
from routing.simulation.comparison import Result, compare
from routing.simulation.fleet import SimulatedFleet
from routing.simulation.fleet_file import FleetFile
from routing.simulation.traces import load
from routing.simulation.turns import Workload
from routing.simulation.workloads import WORKLOADS

FLEET = FleetFile.model_validate({"engines": [{"machine": "h100-8b", "count": 8}]})
REQUESTS = 1_000
BETTER, WORSE = "predicted_latency", "round_robin"
POLICIES = {name: partial(policy_instance, name) for name in (BETTER, WORSE)}


def dice(name: str) -> Rng:
    return random.Random(f"3 {name}")


def compared(workload: Workload) -> Result:
    return compare(lambda _: workload, FLEET, POLICIES, [dice], lambda policy, number, done: None)


def logged(workload: Workload, file: Path, monkeypatch: pytest.MonkeyPatch, *, chains: bool = True) -> None:
    """Writes the access log of a gateway that serves the workload under the better policy."""
    known: dict[int, int] = {}
    plain = PrefixIndex.match

    def noting(index: PrefixIndex, chain: Sequence[int], *more: Any) -> IndexMatch:
        match = plain(index, chain, *more)
        known[id(chain)] = max(match.blocks.values(), default=0)
        return match

    with monkeypatch.context() as patched:
        patched.setattr(PrefixIndex, "match", noting)
        outcomes = SimulatedFleet(FLEET, workload, POLICIES[BETTER], dice).run()
    lines = []
    for at, turn in enumerate(workload.turns):
        request = RoutingRequest(turn.prompt_tokens, turn.chain, workload.block_tokens, session=turn.session)
        record = Record(
            f"r{at}",
            1_790_000_000.0 + outcomes.arrived[at],
            "ok",
            200,
            outcomes.ended[at] - outcomes.arrived[at],
            0.0,
            tenant="acme",
            model="chat",
            usage=Usage(turn.prompt_tokens, turn.output_tokens, cached_tokens=outcomes.cached[at]),
            routed=RoutedPrompt(request, known[id(turn.chain)]),
        )
        lines.append(line_of(record, chain_key="00000000" if chains else ""))
    file.write_bytes(b"".join(lines))


@pytest.mark.parametrize("name", [pytest.param("chat", marks=pytest.mark.slow), "shared-prefix"])
def test_the_report_finds_the_difference_that_there_truly_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name](dice).first(REQUESTS)
    truth = compared(workload).policies[1].against_first
    assert truth["ttft_mean_s"].clear
    assert truth["hit_rate"].clear, "the planted difference"
    logged(workload, tmp_path / "access.log", monkeypatch)
    found = compared(load(tmp_path / "access.log", dice)).policies[1].against_first
    for figure, difference in found.items():
        print(figure, truth[figure], difference)
        assert difference.low <= truth[figure].mean <= difference.high, figure


def test_a_log_without_chains_says_that_it_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS["chat"](dice).first(200)
    logged(workload, tmp_path / "access.log", monkeypatch, chains=False)
    assert "chain" not in json.loads((tmp_path / "access.log").read_bytes().splitlines()[0])
    assert "200 of 200 requests have no prompt chain" in compared(load(tmp_path / "access.log", dice)).notes[0]
