"""Laws of who gives way first, and of how many may."""

from hypothesis import given
from hypothesis import strategies as st

from domain.priority import Class
from gateway.queue.preempt import AGAIN_S, BURST, PER_S, PreemptibleRequest, PreemptionPace, first_to_give_way


@given(st.lists(st.tuples(st.sampled_from([Class.DEFAULT, Class.BATCH]), st.integers(0, 9)), max_size=12))
def test_the_lowest_class_gives_way_first_and_of_it_the_one_sent_last(drawn: list[tuple[Class, int]]) -> None:
    order = first_to_give_way([PreemptibleRequest(tier, float(at), None) for tier, at in drawn])
    assert [(one.tier, one.sent_at) for one in order] == sorted([(tier, float(at)) for tier, at in drawn], reverse=True)


@given(st.lists(st.floats(0.0, 0.5), max_size=400))
def test_no_more_give_way_over_any_time_than_a_burst_and_the_rate(gaps: list[float]) -> None:
    pace, now, gave = PreemptionPace(), 1000.0, 0
    for gap in gaps:
        now += gap
        if pace.allows(now):
            pace.gave_way()
            gave += 1
    assert gave <= BURST + (now - 1000.0) * PER_S


def test_as_many_as_the_rate_do_for_ever() -> None:
    pace, now, gave = PreemptionPace(), 0.0, 0
    for _ in range(10_000):
        now += 0.01
        if pace.allows(now):
            pace.gave_way()
            gave += 1
    assert gave >= 100.0 * PER_S


def test_after_a_look_that_found_nobody_there_is_a_pause() -> None:
    pace = PreemptionPace()
    assert pace.allows(1.0)
    pace.found_none(1.0)
    assert not pace.allows(1.0 + AGAIN_S / 2)
    assert pace.allows(1.0 + AGAIN_S)
