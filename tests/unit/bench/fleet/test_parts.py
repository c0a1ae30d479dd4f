import random

from bench.fleet.parts import dealt, scored, scored_figures, split
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import RequestEnd, none_yet
from routing.simulation.turns import TraceRequest, Workload

FLEET = FleetFile.model_validate({"engines": [{"machine": "h100-8b"}]})


def _sessions(count: int, each: int) -> Workload:
    turns: list[TraceRequest] = []
    for session in range(count):
        for turn in range(each):
            turns.append(TraceRequest(10.0 * session, 100, 5, session=session + 1, after=len(turns) - 1 if turn else -1, think_s=1.0))
    return Workload("w", turns)


def test_both_parts_together_are_the_trace_and_sessions_stay_whole() -> None:
    workload = _sessions(10, 3)
    open_part, sealed = split(workload, sealed=False), split(workload, sealed=True)
    assert [turn.session for turn in open_part.turns] == sorted([*range(1, 9)] * 3)
    assert [turn.session for turn in sealed.turns] == [9, 9, 9, 10, 10, 10]
    assert [turn.after for turn in sealed.turns] == [-1, 0, 1, -1, 3, 4]
    assert sealed.turns[0].at_s == 0.0


def test_the_cut_does_not_split_a_session() -> None:
    workload = _sessions(3, 5)  # 80 % of 15 turns are in the middle of the last session
    assert len(split(workload, sealed=False).turns) == 15
    assert split(workload, sealed=True).turns == []


def test_only_requests_without_a_tenant_are_dealt_and_a_session_to_one() -> None:
    workload = _sessions(30, 2)
    workload.turns.append(TraceRequest(0.0, 1, 1, tenant="own"))
    turns = dealt(workload, random.Random).turns
    assert turns[-1].tenant == "own"
    assert all(turns[at].tenant == turns[at + 1].tenant for at in range(0, 60, 2))
    assert len({turn.tenant for turn in turns}) > 5


def test_the_earliest_fifth_is_not_scored() -> None:
    workload = Workload("w", [TraceRequest(float(9 - at), 100, 5) for at in range(10)])
    assert scored(workload) == list(range(8))
    outcomes = none_yet(10)
    for at in range(10):
        outcomes.state[at] = RequestEnd.DONE
        outcomes.first[at] = 1.0 if at < 8 else 1000.0
        outcomes.ended[at] = outcomes.first[at] + 1.0
        outcomes.engine[at] = 0
    found = scored_figures(workload, FLEET, outcomes, scored(workload))
    assert (found.requests, found.ttft_mean_s) == (8, 1.0)
