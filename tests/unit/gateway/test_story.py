import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.record import GAP_BOUNDS_S, OK
from gateway.story import Story
from policies.compile import compiled
from policies.schema import PolicyDocument


def story(started: float = 10.0) -> Story:
    return Story("req-1", started, 1_700_000_000.0, started)


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=50))
def test_gaps_are_as_many_as_events_less_one_and_add_up(gaps: list[float]) -> None:
    told, now = story(), 10.0
    told.attempt.note_event(now)
    for gap in gaps:
        now += gap
        told.attempt.note_event(now)
    record = told.close(now)
    assert sum(record.gaps) == len(gaps) == record.events - 1
    assert record.decode_s == pytest.approx(sum(gaps), abs=1e-6)


@pytest.mark.parametrize(("gap", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (8.0, len(GAP_BOUNDS_S) - 1), (8.1, len(GAP_BOUNDS_S))])
def test_a_gap_falls_into_the_bucket_whose_bound_it_does_not_exceed(gap: float, bucket: int) -> None:
    told = story(0.0)
    told.attempt.note_event(0.0)
    told.attempt.note_event(gap)
    assert told.close(gap).gaps[bucket] == 1


def test_one_event_has_no_gap_and_no_decode_time() -> None:
    told = story()
    told.attempt.note_event(11.5)
    record = told.close(12.0)
    assert (record.ttft_s, record.decode_s, record.gaps) == (1.5, None, ())


def test_overhead_is_ours_alone() -> None:
    told = story(10.0)
    told.body_at = 13.0  # a slow caller
    told.queue_s = 2.0
    told.dispatched_at = 15.25  # 0.25 s of ours
    told.attempt.answer_at = 20.0  # a slow engine
    told.attempt.handed_on_at = 20.5  # 0.5 s of ours
    assert told.close(30.0).overhead_s == pytest.approx(0.75)


@pytest.mark.parametrize(("queue_s", "kept"), [(0.25, True), (0.75, False)])
def test_the_promised_time_to_the_first_token_counts_the_time_in_the_queue(queue_s: float, kept: bool) -> None:
    """Callers wait for the queue as they wait for the engine: here the engine takes 0.5 s, and 1 s is promised."""
    told = story(10.0)
    told.asked.stream = True
    told.asked.tenant_policy = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": [], "ttft_slo_s": 1.0})]).for_tenant(
        "acme"
    )
    told.queue_s = queue_s
    told.dispatched_at = 10.0 + queue_s
    told.attempt.note_event(10.5 + queue_s)
    record = told.close(11.5)
    assert (record.ttft_s, record.promises) == (0.5 + queue_s, (("ttft", kept),))


def test_overhead_of_a_refusal_ends_with_it() -> None:
    told = story(10.0)
    told.body_at = 10.5
    assert told.close(10.75).overhead_s == pytest.approx(0.25)


def test_a_record_says_who_what_and_how_it_ended() -> None:
    told = story()
    told.asked.caller = Caller(TenantId("acme"), ProjectId("web"), KeyId("id10"))
    told.settled.fault = Fault(Kind.ENGINE_BUSY, "busy", detail="503 from the engine")
    told.settled.status = 503
    record = told.close(11.0)
    assert (record.tenant, record.project, record.key_id) == ("acme", "web", "id10")
    assert (record.outcome, record.status, record.detail, record.duration_s) == ("engine_busy", 503, "503 from the engine", 1.0)
    assert story().close(11.0).outcome == OK
