"""A ladder is gone down as far as needed and no further, and never to a model that is no better off or not the caller's."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.queue import refusals
from gateway.queue.waiter import WaitForecast
from gateway.request.degrade import Descent, descend, may_degrade
from policies.compile import ModelRule, compiled
from policies.schema import PolicyDocument
from tenancy.limits import Level, Scope
from tenancy.rights import EVERYTHING, Allowed, Rights, combined

FREE = WaitForecast()
REFUSED = WaitForecast(True, 30.0, (refusals.TOO_LONG, refusals.too_long(30.0, 10.0, 0.0)))
TRIM, MEDIUM, SMALL = {"trim_output_tokens": 64}, {"model": "medium"}, {"model": "small"}


def waits(seconds: float) -> WaitForecast:
    return WaitForecast(True, seconds)


def asked(**fields: Any) -> Ask:
    document = {"model": "big", "messages": [{"role": "user", "content": "hi"}], **fields}
    return interpret(Endpoint.CHAT, json.dumps(document).encode())


def went(
    steps: list[Any], allowed: Allowed = EVERYTHING, model: str = "big", ask: Ask | None = None, **forecasts: WaitForecast | None
) -> Descent:
    """A request for `model` goes down `steps`; the queues of models that are not named are empty."""
    models = [{"name": name, "pool": name} for name in ("big", "medium", "small", "coder")]
    policy = compiled([PolicyDocument.model_validate({"tenant": "t", "models": models, "degrade": steps})]).for_tenant("t")
    assert policy is not None
    return descend(ask or asked(max_tokens=500), policy.models[model], policy, allowed, lambda _, rule: forecasts.get(rule.name, FREE), 0.0)


def test_where_nobody_waits_nothing_is_changed() -> None:
    ask = asked(max_tokens=500)
    found = went([TRIM, SMALL], ask=ask)
    assert found == Descent(ask, ModelRule("big", "big"))
    assert found.ask is ask


def test_an_outage_is_no_overload() -> None:
    assert went([TRIM, SMALL], big=None).taken == ()


@pytest.mark.parametrize(
    ("steps", "forecasts", "model", "taken"),
    [
        ([TRIM, SMALL], {"big": waits(0)}, "small", ("trim_output_tokens", "model=small")),
        ([{**TRIM, "after_s": 1.0}, {**SMALL, "after_s": 5.0}], {"big": waits(0.9)}, "big", ()),
        ([{**TRIM, "after_s": 1.0}, {**SMALL, "after_s": 5.0}], {"big": waits(1.0)}, "big", ("trim_output_tokens",)),
        ([{**TRIM, "after_s": 1.0}, {**SMALL, "after_s": 5.0}], {"big": waits(6)}, "small", ("trim_output_tokens", "model=small")),
        ([{**SMALL, "after_s": 60.0}], {"big": REFUSED}, "small", ("model=small",)),
        (["queue", SMALL], {"big": waits(9)}, "big", ()),
        (["queue", SMALL], {"big": REFUSED}, "small", ("model=small",)),
        ([MEDIUM, SMALL], {"big": waits(9), "medium": waits(3)}, "small", ("model=small",)),
        ([MEDIUM, SMALL], {"big": waits(9), "medium": waits(3), "small": waits(4)}, "medium", ("model=medium",)),
        ([MEDIUM, SMALL], {"big": waits(9)}, "medium", ("model=medium",)),
        ([MEDIUM], {"big": REFUSED, "medium": waits(30)}, "medium", ("model=medium",)),
        ([SMALL, TRIM], {"big": waits(9)}, "small", ("model=small",)),
        ([{**SMALL, "of": ["coder"]}], {"big": waits(9)}, "big", ()),
    ],
)
def test_steps_are_taken_in_order_until_it_need_not_wait_so_long(
    steps: list[Any], forecasts: dict[str, WaitForecast], model: str, taken: tuple[str, ...]
) -> None:
    found = went(steps, **forecasts)
    assert (found.rule, found.taken, found.refused) == (ModelRule(model, model), taken, None)
    assert found.ask.max_output_tokens == (64 if "trim_output_tokens" in taken else 500)


def test_a_ladder_only_leads_down() -> None:
    found = went([MEDIUM, SMALL], model="small", small=waits(9))
    assert (found.rule.name, found.taken, found.passed_over) == ("small", (), ())
    assert went([MEDIUM, SMALL], model="medium", medium=waits(9)).taken == ("model=small",)


@pytest.mark.parametrize(
    ("there", "why"), [(waits(9), "its turn would come no sooner"), (REFUSED, "its turn would come no sooner"), (None, "no backend is up")]
)
def test_a_model_that_is_no_better_off_is_passed_over_and_that_is_said(there: WaitForecast | None, why: str) -> None:
    found = went([SMALL], big=waits(9), small=there)
    assert (found.rule.name, found.taken, found.passed_over) == ("big", (), (f"model=small: {why}",))


def test_a_model_that_is_not_the_callers_is_passed_over_and_that_is_said() -> None:
    allowed = combined([(Scope(Level.KEY, "k"), Rights(models=frozenset({"big"})))])
    found = went([SMALL], allowed, big=waits(9))
    assert (found.rule.name, found.taken, found.passed_over) == ("big", (), ("model=small: the caller may not use it",))


def test_who_is_refused_everywhere_is_refused_for_what_it_asked() -> None:
    found = went([TRIM, SMALL], big=REFUSED, small=REFUSED)
    assert (found.rule.name, found.taken, found.refused) == ("big", (), REFUSED.refused)


def test_nobody_waits_where_the_ladder_says_refuse() -> None:
    for forecasts in ({"big": waits(1)}, {"big": REFUSED}):
        found = went(["refuse"], **forecasts)
        assert found.refused is not None
        assert (found.refused[0], found.refused[1].kind) == (refusals.TOO_LONG, Kind.OVERLOADED)
    assert went([SMALL, "refuse"], big=waits(1)).rule.name == "small"


def test_an_answer_that_is_short_anyway_is_not_trimmed() -> None:
    found = went([TRIM], ask=asked(max_tokens=64), big=waits(9))
    assert (found.taken, found.ask.max_output_tokens) == ((), 64)


def test_callers_may_opt_out_and_embeddings_are_out() -> None:
    assert may_degrade(asked(), {})
    assert not may_degrade(asked(), {b"x-tidegate-degrade": b" Never"})
    assert not may_degrade(interpret(Endpoint.EMBEDDINGS, b'{"model":"m","input":"x"}'), {})
    with pytest.raises(Fault) as caught:
        may_degrade(asked(), {b"x-tidegate-degrade": b"no"})
    assert caught.value.kind is Kind.INVALID_VALUE
