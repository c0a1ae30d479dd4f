"""Laws of the breaker, on any course of events."""

from hypothesis import given
from hypothesis import strategies as st

from tenancy.stores.valkey.breaker import FAILURES, NodeBreaker

EVENTS = st.lists(st.tuples(st.sampled_from(["ok", "failed", "probe"]), st.floats(0, 1)), max_size=60)


@given(EVENTS)
def test_it_is_open_after_five_failures_in_a_row_and_only_then(events):
    breaker, now, row = NodeBreaker(), 0.0, 0
    for event, later_s in events:
        now += later_s
        if event == "ok":
            breaker.succeeded()
            row = 0
        elif event == "failed":
            row += 1
            assert breaker.failed(now) == (row == FAILURES), "it says so once"
        else:
            assert not (breaker.may_probe(now) and breaker.closed)
        assert breaker.closed == (row < FAILURES)
        assert breaker.untroubled == (row == 0)


@given(EVENTS)
def test_probes_keep_their_distance_from_each_other_and_from_failures(events):
    breaker, now, last = NodeBreaker(failures=1, probe_s=0.25), 0.0, -1.0
    for event, later_s in events:
        now += later_s
        if event == "ok":
            breaker.succeeded()
        elif event == "failed":
            breaker.failed(now)
            last = now
        elif breaker.may_probe(now):
            assert now - last >= 0.25 - 1e-9
            last = now


def test_half_open_lets_one_through_and_a_good_answer_closes():
    breaker = NodeBreaker(failures=2, probe_s=1.0)
    breaker.failed(0.0)
    assert breaker.closed
    breaker.failed(0.1)
    assert not breaker.closed and not breaker.may_probe(1.0)
    assert breaker.may_probe(1.1) and not breaker.may_probe(1.2)
    breaker.failed(1.2)
    assert not breaker.may_probe(2.1) and breaker.may_probe(2.2)
    breaker.succeeded()
    assert breaker.closed and not breaker.may_probe(9.0)
