from math import log
from typing import Any

import msgspec
import pytest

from domain.rollouts import StoredRollout
from policies.rollout.document import RolloutDocument, text_of
from policies.rollout.progress import RolloutState, Status, abort, begin, close, promote, tick
from policies.rollout.samples import ArmSums, Interval, Tally
from policies.rollout.state import CLOSED, UnreadableRollout, brief, read, standing, state_text


def stored(state: RolloutState | None = None, **fields: Any) -> StoredRollout:
    document = RolloutDocument.model_validate(
        {"name": "v2", "baseline": "a", "canary": "b", "warm_up_s": 0.0, "warm_up_requests": 0, "margins": {"itl": 0.05}, **fields}
    )
    state = state or begin(document.plan("ro"), 100.0)
    return StoredRollout("ro", "v2", text_of(document), state_text(state), 1, True, 100.0, 100.0)


def changed(one: StoredRollout, state: RolloutState, *, open_: bool = True) -> StoredRollout:
    return msgspec.structs.replace(one, state=state_text(state), open=open_)


def test_what_is_stored_is_read_back_with_all_that_was_counted() -> None:
    one = stored()
    found = read(one)
    sums = ArmSums(60, {"itl": Tally(60, 60 * log(0.012))})
    for index in range(10, 40):
        found = msgspec.structs.replace(found, state=tick(found.plan, found.state, index * 10.0, [Interval(index, sums, sums)]).state)
    assert read(changed(one, found.state)).state == found.state


def test_one_that_runs_says_where_it_is_and_how_long() -> None:
    one = stored(shadow={"share": 0.3})
    now = standing(one, read(one), 160.0)
    assert (now.status, now.phase, now.phases, now.share, now.mirrored) == ("running", "shadow", 6, 0.0, 0.3)
    assert (now.spent_s, now.counted, now.judgement, now.findings) == (60.0, 0, "undecided", ())
    found = read(one)
    state = promote(found.plan, found.state, 160.0).state
    now = standing(changed(one, state), msgspec.structs.replace(found, state=state), 170.0)
    assert (now.phase, now.phase_index, now.share, now.mirrored, now.entered_unix, now.spent_s) == ("1 %", 1, 0.01, 0.0, 160.0, 10.0)


def test_findings_come_with_their_words_and_no_number_that_json_cannot_write() -> None:
    one = stored()
    found = read(one)
    sums = ArmSums(60, {"itl": Tally(60, 60 * log(0.012))})
    state = tick(found.plan, found.state, 120.0, [Interval(10, sums, sums)]).state
    now = standing(changed(one, state), msgspec.structs.replace(found, state=state), 120.0)
    (finding,) = now.findings
    assert (finding.metric, finding.high, finding.requests) == ("itl", None, 60)
    assert "too early to say" in finding.words
    assert b"Infinity" not in msgspec.json.encode(brief(now))
    assert b"null" in msgspec.json.encode(brief(now))


def test_nobody_is_on_the_canary_of_one_that_is_over() -> None:
    one = stored(steps=[{"share": 0.5}, {"share": 1.0}])
    found = read(one)
    done = promote(found.plan, found.state, 100.0).state
    in_force = standing(changed(one, done), msgspec.structs.replace(found, state=done), 100.0)
    assert (in_force.status, in_force.share) == ("done", 1.0)
    over = close(found.plan, done)
    closed = standing(changed(one, over, open_=False), msgspec.structs.replace(found, state=over), 900.0)
    assert (closed.status, closed.share, closed.spent_s) == (CLOSED, 0.0, 0.0)
    back = abort(found.plan, found.state, 100.0, "no").state
    aborted = standing(changed(one, back, open_=False), msgspec.structs.replace(found, state=back), 900.0)
    assert (aborted.status, aborted.share) == (Status.ROLLED_BACK.value, 0.0)


@pytest.mark.parametrize(
    "fields",
    [
        {"document": "{"},
        {"document": '{"name": "v2"}'},
        {"state": "{}"},
        {"state": "[" * 5000},
        {"document": '{"name":"v2","baseline":"a","canary":"b","stages":[]}'},
    ],
)
def test_what_this_version_does_not_know_cannot_be_read(fields: dict[str, str]) -> None:
    with pytest.raises(UnreadableRollout):
        read(msgspec.structs.replace(stored(), **fields))


def test_a_phase_that_the_plan_does_not_have_cannot_be_read() -> None:
    one = stored()
    with pytest.raises(UnreadableRollout):
        read(changed(one, msgspec.structs.replace(read(one).state, phase=9)))
