"""A simulated gateway process counts and learns as the gateway does."""

import random

import pytest

from routing.calibration import Calibration
from routing.policy_instance import policy_instance
from routing.ports import Adapters
from routing.registry import POLICIES
from routing.residency import SPREAD, TERM
from routing.simulation.fleet_file import FleetFile
from routing.simulation.replica import Replica
from routing.simulation.turns import TraceRequest, fresh_chain

BLOCK = 64


class Seen(Calibration):
    """Shows what is learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[float, float, float]] = []

    def step(self, sequences: float, ctx_tokens: float, step_s: float, prompts_s: float = 0.0) -> None:
        self.steps.append((sequences, ctx_tokens, step_s))


def replica(policy: str = "predicted_latency") -> Replica:
    fleet = FleetFile.model_validate({"engines": [{"machine": "h100-8b", "count": 2}], "signals": {"kv_events": False}})
    return Replica(0, ["a", "b"], fleet, BLOCK, policy_instance(policy), random.Random(0))


def test_what_an_engine_holds_of_a_prompt_takes_no_second_place_in_its_cache() -> None:
    one = replica()
    chain = fresh_chain(4096, BLOCK, 1)
    first, now = TraceRequest(0.0, 4096, 10, chain), 0.0
    request, route, split = one.route(first, 0.0, now, None, "")
    sent = one.send(request, route, split, now)
    one.prefilled(sent, 0, 0.2)
    one.begun(sent, 0.2)
    one.done(first, sent, 0.5)

    again, route, split = one.route(TraceRequest(1.0, 4160, 10, [*chain, *fresh_chain(64, BLOCK, 2)]), 0.0, 1.0, None, "")
    row = one.load_table.row_of[sent.backend]
    assert route.ranked[0][0].id == sent.backend
    assert route.matched[0] == 4096
    one.send(again, route, split, 1.0)
    assert one.load_table.kv_tokens[row] == 64 + again.output_tokens


def test_output_is_expected_to_be_as_long_as_answers_were() -> None:
    one = replica()
    for at in range(16):
        turn, now = TraceRequest(float(at), 128, 30, fresh_chain(128, BLOCK, 3, at)), float(at)
        request, route, split = one.route(turn, 0.0, now, None, "")
        sent = one.send(request, route, split, now)
        one.prefilled(sent, 0, now + 0.1)
        one.begun(sent, now + 0.1)
        one.done(turn, sent, now + 0.5)
    assert one.route(TraceRequest(20.0, 128, 30), 0.0, 20.0, None, "")[0].output_tokens in range(30, 34)  # eight buckets in every doubling


def test_steps_are_learned_with_the_batch_of_the_whole_answer() -> None:
    """Not with the load at its end, when others have come or gone."""
    one = replica()
    turn = TraceRequest(0.0, 128, 21, fresh_chain(128, BLOCK, 4))
    request, route, split = one.route(turn, 0.0, 0.0, None, "")
    sent = one.send(request, route, split, 0.0)
    one._speeds[sent.backend] = seen = Seen()
    one.load_table.report(sent.backend, running=1, waiting=0, queued_tokens=0, kv_usage=0.1, kv_capacity=10_000, read_at=0.1, asked_at=0.1)
    one.prefilled(sent, 0, 0.2)
    one.begun(sent, 0.2)
    one.load_table.report(sent.backend, running=5, waiting=0, queued_tokens=0, kv_usage=0.3, kv_capacity=10_000, read_at=0.9, asked_at=0.9)
    one.done(turn, sent, 1.2)
    ((sequences, tokens, step_s),) = seen.steps
    assert sequences == 3, "one at the first token, five at the end"
    assert tokens > 2 * 128, "the others' contexts are taken for this process's mean"
    assert step_s == pytest.approx(0.05)


@pytest.mark.parametrize("policy", [name for name, one in POLICIES.items() if not one.in_seconds])
def test_policies_without_seconds_get_the_adapter_affinity_of_the_gateway(policy: str) -> None:
    one = replica(policy)
    turn = TraceRequest(0.0, 128, 10, lora="x")
    for there in ("a", "b"):
        _, route, _ = one.route(turn, 0.0, 0.0, Adapters([there], {}), "")
        best, terms = route.ranked[0]
        assert (best.id, terms[-1]) == (there, 0)
        assert route.extra == (TERM,)
    for _ in range(SPREAD + 1):
        one.load_table.charge("b", 1, 1, 0.0)
    least = replica("least_load")
    least.load_table = one.load_table
    assert least.route(turn, 0.0, 0.0, Adapters(["b"], {}), "")[1].ranked[0][0].id == "a"


def test_the_default_counts_the_seconds_of_a_load_itself() -> None:
    _, route, _ = replica().route(TraceRequest(0.0, 128, 10, lora="x"), 0.0, 0.0, Adapters(["b"], {}), "")
    assert (route.ranked[0][0].id, route.extra) == ("b", ())
