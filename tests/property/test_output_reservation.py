"""Statistical reservations: how far a limit can be overshot is what is published in docs/reference/limits.md, whatever the answers do."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from domain.ask import Ask, Endpoint
from domain.identity import TenantId
from domain.usage import Usage
from gateway.request.holds import OpenHold, OpenHolds
from gateway.story import Story
from tenancy.estimate import OutputQuantiles, worst_case
from tenancy.hold import Admitted, Hold
from tenancy.limits import Amounts, Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.prices import FREE
from tenancy.quota import Quota
from tests.scale import scaled
from tests.stories import with_facts

AMOUNT = 2000
CAP = 400
ACME = TenantId("acme")
GROUP = Group("acme", (line_of(Limit(Scope(Level.TENANT, "acme"), Meter.OUTPUT_TOKENS, Window.EVER, AMOUNT), 0.0),))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(1, 3), st.one_of(st.integers(1, 60), st.integers(1, CAP))),
        st.tuples(st.just("write"), st.integers(1, 80), st.just(0)),
        st.tuples(st.just("beat"), st.just(0), st.just(0)),
    ),
    min_size=20,
    max_size=120,
)


@dataclass
class Request:
    """One under way: `length` is what it will have made in the end, all sequences together."""

    one: OpenHold
    length: int


@dataclass
class Site:
    """One worker with its counters, and the books of an onlooker who knows how long every answer gets."""

    usual: int | None
    quota: Quota = field(default_factory=Quota)
    now: float = 0.0
    under_way: list[Request] = field(default_factory=list)
    beyond: int = 0
    """What the requests open at the last admission made, or will make, beyond what was held of them then."""

    def __post_init__(self) -> None:
        self.holds = OpenHolds(lambda: self.now)

    def state(self) -> Any:
        return self.quota.look(GROUP, round(self.now * 1e6))[0]

    def ask(self, n: int, length: int) -> None:
        name = f"r{self.now}"
        ask = Ask(Endpoint.CHAT, "m", b"{}", True, False, n, 10, CAP, n)
        hold = Hold(name, ACME, worst_case(ask, 5, CAP, FREE, self.usual), (GROUP,))
        if isinstance(self.quota.admit(hold, round(self.now * 1e6)), Admitted):
            state = self.state()
            assert state.used <= AMOUNT, "no admission while what is used and held is the amount"
            story = with_facts(Story(name, 0.0, 0.0, 0.0, name), choices=n)
            self.under_way.append(Request(self.holds.open(hold, FREE, story, 5, CAP, n), n * length))
            self.beyond = sum(max(0, request.length - request.one.output_held) for request in self.under_way)

    def write(self, tokens: int) -> None:
        for request in list(self.under_way):
            story = request.one.story
            story.attempt.events = min(request.length, story.attempt.events + tokens)
            if story.attempt.events == request.length:
                self.finish(request)

    def finish(self, request: Request) -> None:
        self.under_way.remove(request)
        self.holds.close(request.one)
        request.one.story.attempt.usage = Usage(5, request.length)
        self.quota.settle(request.one.hold, request.one.charged(request.one.closing()), round(self.now * 1e6))

    def beat(self) -> None:
        self.quota.beat(self.holds.due(self.now), round(self.now * 1e6))
        delivered = sum(request.one.story.attempt.events for request in self.under_way)
        assert self.state().held >= delivered, "what was delivered by a beat is held after it"


def run(steps: list[Any], usual: int | None) -> tuple[int, int]:
    site = Site(usual)
    for word, n, length in steps:
        site.now += 0.01
        if word == "ask":
            site.ask(n, length)
        elif word == "write":
            site.write(n)
        else:
            site.beat()
    for request in list(site.under_way):
        site.finish(request)
    return site.state().used, site.beyond


@settings(max_examples=scaled(150, 1500))
@given(STEPS, st.integers(1, 100))
def test_a_limit_is_overshot_by_what_open_answers_make_beyond_what_is_held_and_by_nothing_else(steps: list[Any], usual: int) -> None:
    used, beyond = run(steps, usual)
    assert used <= AMOUNT + beyond


@settings(max_examples=scaled(50, 500))
@given(STEPS)
def test_a_strict_reservation_is_never_overshot(steps: list[Any]) -> None:
    used, beyond = run(steps, None)
    assert used <= AMOUNT
    assert beyond == 0


@given(st.integers(1, CAP), st.integers(0, 10_000), st.integers(1, 8))
def test_never_less_than_a_token_and_never_more_than_the_worst_case(cap: int, usual: int, n: int) -> None:
    ask = Ask(Endpoint.CHAT, "m", b"{}", True, False, n, 10, cap, n)
    likely, worst = worst_case(ask, 5, CAP, FREE, usual), worst_case(ask, 5, CAP, FREE)
    assert n <= likely.output_tokens <= worst.output_tokens
    assert likely.output_tokens == min(worst.output_tokens, n * max(1, -(-usual * 12 // 10)))
    assert likely == Amounts(5, likely.output_tokens, 5 + likely.output_tokens, 0)


def test_what_is_usual_is_learnt_from_the_answers_themselves() -> None:
    quantiles = OutputQuantiles()
    for length in range(1, 101):
        quantiles.note("acme", "m", length, CAP)
    usual = quantiles.usual("acme", "m")
    assert usual is not None
    assert 95 <= usual <= 107
