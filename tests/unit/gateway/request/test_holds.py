"""Signs of life: when they are due, what they say, and what a request is charged in the end."""

import pytest

from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.usage import Usage
from gateway.request.holds import CHECKPOINT_TOKENS, MAX_BEATS, OpenHold, OpenHolds
from gateway.story import Story
from tenancy.drift import spent_in
from tenancy.hold import BEAT_S, RELEASED, Hold
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.prices import Price, TokenRates
from tests.stories import with_facts

GROUP = Group("acme", (line_of(Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 10**6), 0.0),))
PRICE = Price("p", "m", "*", 0.0, TokenRates(2_000_000, 1_000_000, 3_000_000, 3_000_000))


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(holds: OpenHolds, name: str = "r1", groups: tuple[Group, ...] = (GROUP,), choices: int = 1) -> OpenHold:
    story = with_facts(Story(name, 0.0, 0.0, 0.0, name), choices=choices)
    held = Amounts(100, choices * 50, PRICE.worst_units(100, choices * 50), PRICE.worst_nanousd(100, choices * 50))
    return holds.open(Hold(name, TenantId("acme"), held, groups), PRICE, story, 25, 50, choices)


def test_a_beat_is_due_after_its_time_or_after_enough_tokens() -> None:
    time = Time()
    holds = OpenHolds(time)
    one, other = opened(holds, "r1"), opened(holds, "r2")
    assert holds.due(time.now + BEAT_S - 0.1) == []
    other.story.attempt.events = CHECKPOINT_TOKENS
    assert [beat.hold.id for beat in holds.due(time.now + 1)] == ["r2"]
    assert holds.due(time.now + 1) == [], "said once"
    assert [beat.hold.id for beat in holds.due(time.now + BEAT_S)] == ["r1"]
    holds.close(one)
    holds.close(other)
    assert (len(holds), holds.due(time.now + 100)) == (0, [])


def test_one_that_goes_on_as_another_is_told_of() -> None:
    told: list[OpenHold] = []
    holds = OpenHolds(Time(), dropped=told.append)
    one, other = opened(holds, "r1"), opened(holds, "r2")
    holds.close(other)
    holds.drop(one)
    assert (told, len(holds)) == ([one], 0)


def test_requests_without_limits_have_nothing_to_say() -> None:
    holds = OpenHolds(Time())
    opened(holds, groups=())
    assert (len(holds), holds.due(10**6)) == (1, [])


def test_one_call_takes_a_bounded_number() -> None:
    holds = OpenHolds(Time())
    for n in range(MAX_BEATS + 3):
        opened(holds, str(n))
    assert [len(holds.due(10**6)), len(holds.due(10**6)), len(holds.due(10**6))] == [MAX_BEATS, 3, 0]


def test_nothing_delivered_is_nothing_to_charge_for() -> None:
    beat = opened(OpenHolds(Time())).beat()
    assert beat.delivered == Amounts(requests=1)
    assert beat.at_most == beat.hold.amounts


def test_a_beat_never_says_more_than_was_held() -> None:
    one = opened(OpenHolds(Time()))
    one.story.attempt.events = 10**6
    assert all(said <= held for said, held in zip(one.beat().delivered.vector(), one.hold.amounts.vector(), strict=True))


def test_what_finished_choices_were_held_for_is_given_back() -> None:
    one = opened(OpenHolds(Time()), choices=4)
    one.story.attempt.events, one.story.attempt.choices_over = 30, 3
    assert one.beat().at_most == one.hold.amounts, "strictly, an event may have been many tokens"
    one.story.asked.statistical = True
    assert one.beat().at_most.output_tokens == 30 + 50
    assert one.beat().at_most.cost_nanousd == PRICE.worst_nanousd(100, 80)
    one.story.attempt.choices_over = 4
    assert one.beat().at_most.output_tokens == 30


def test_the_engines_word_comes_first() -> None:
    one = opened(OpenHolds(Time()))
    one.story.attempt.events, one.story.attempt.usage = 9, Usage(80, 7, 30)
    closing = one.closing()
    assert (closing.word, closing.usage) == ("settle", Usage(80, 7, 30))
    assert one.charged(closing) == Amounts(80, 7, 87, 50 * 2 + 30 * 1 + 7 * 3)


def test_a_broken_answer_is_charged_for_what_was_counted() -> None:
    one = opened(OpenHolds(Time()))
    one.story.attempt.events, one.story.settled.fault = 9, Fault(Kind.BROKEN_STREAM, "x")
    assert (one.closing().word, one.closing().usage) == ("estimate", Usage(25, 9))


@pytest.mark.parametrize(
    ("kind", "requests"), [(Kind.ENGINE_ERROR, 0), (Kind.NO_BACKEND, 0), (Kind.REFUSED_BY_ENGINE, 1), (Kind.CLIENT_GONE, 1)]
)
def test_what_never_ran_is_free_and_counts_as_a_request_only_when_its_caller_is_at_fault(kind: Kind, requests: int) -> None:
    one = opened(OpenHolds(Time()))
    one.story.settled.fault = Fault(kind, "x")
    assert one.closing() == RELEASED
    assert one.charged(RELEASED) == Amounts(requests=requests)


def test_a_caller_that_leaves_while_its_prompt_is_computed_pays_for_the_prompt() -> None:
    one = opened(OpenHolds(Time()))
    one.story.settled.fault, one.story.tried.attempts = Fault(Kind.CLIENT_GONE, "x"), 1
    assert (one.closing().word, one.closing().usage) == ("estimate", Usage(25, 0))


def test_an_answer_that_outgrows_what_is_held_is_topped_up_with_the_next_look() -> None:
    time = Time()
    holds = OpenHolds(time)
    story = with_facts(Story("r1", 0.0, 0.0, 0.0, "r1"), choices=2)
    held = Amounts(100, 20, PRICE.worst_units(100, 20), PRICE.worst_nanousd(100, 20))
    one = holds.open(Hold("r1", TenantId("acme"), held, (GROUP,)), PRICE, story, 25, 50, 2)
    story.attempt.events = 20
    assert holds.due(time.now + 1) == []
    said = []
    for story.attempt.events in (21, 42, 43, 87, 100, 200):
        said += [(beat.delivered.output_tokens, beat.at_most.output_tokens) for beat in holds.due(time.now + 1)]
    assert said == [(21, 42), (43, 86), (87, 100), (100, 100)], "twice what came, never more than two choices of 50; then as ever"
    assert one.beat().at_most == Amounts(100, 100, PRICE.worst_units(100, 100), PRICE.worst_nanousd(100, 100))
    story.settled.fault = Fault(Kind.BROKEN_STREAM, "x")
    assert one.closing().usage == Usage(25, 100), "charged for what came, also beyond what was held at first"


def test_a_caller_that_leaves_before_any_engine_was_called_pays_for_no_token() -> None:
    """While it waits for an adapter to be loaded, say: the way to an engine has begun by then, and nothing was sent."""
    one = opened(OpenHolds(Time()))
    one.story.settled.fault, one.story.dispatched_at = Fault(Kind.CLIENT_GONE, "x"), 1.0
    assert one.closing() == RELEASED


@pytest.mark.req("R9")
def test_a_lost_request_is_charged_as_a_reaped_hold_is() -> None:
    told: list[OpenHold] = []
    one = opened(OpenHolds(Time(), told.append))
    assert told == [one]
    one.story.asked.caller = Caller(TenantId("acme"), ProjectId("default"), KeyId("k1"))
    one.story.own_id, one.story.at_unix, one.story.attempt.last_event_at, one.story.asked.user = "r1", 7.5, 0.25, "ann"
    row = one.lost()
    assert (row.request_id, row.at_unix_ms, row.tenant, row.key_id, row.user) == ("r1", 7500, "acme", "k1", "ann")
    assert (row.closing, row.outcome, row.usage, row.cost_nanousd) == ("lost", "lost", Usage(), 0), "nothing came: the request alone"
    assert spent_in([row], Level.TENANT, None)[0].amounts == one.beat().delivered
    one.story.attempt.events = 9
    row = one.lost()
    assert (row.usage, row.units, row.cost_nanousd, row.price_id, row.duration_ms) == (Usage(25, 9), 34, 25 * 2 + 9 * 3, "p", 250)
    assert spent_in([row], Level.TENANT, None)[0].amounts == one.beat().delivered, "or a comparison would take one for the other's drift"
    one.story.attempt.events = 10**6
    assert one.lost().usage.completion_tokens == 50, "never more than it may make"
    one.story.attempt.usage = Usage(20, 30)
    assert one.lost().usage == Usage(20, 30)


def test_who_leaves_after_it_was_taken_back_from_its_engine_is_charged_for_nothing_computed_there():
    hold = opened(OpenHolds(Time()))
    story = hold.story
    story.tried.attempts, story.placed.pulled_back = 1, True
    story.settled.fault = Fault(Kind.CLIENT_GONE, "gone")
    assert hold.closing() == RELEASED
    story.tried.attempts = 2
    assert hold.closing().usage == Usage(25, 0), "once another engine was called, the prompt is"


def test_who_leaves_while_no_engine_can_be_reached_is_charged_for_nothing():
    hold = opened(OpenHolds(Time()))
    story = hold.story
    story.tried.attempts, story.placed.returned = 3, 3
    story.settled.fault = Fault(Kind.CLIENT_GONE, "gone")
    assert hold.closing() == RELEASED
    story.tried.attempts = 4
    assert hold.closing().usage == Usage(25, 0)
