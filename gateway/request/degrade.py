"""The degradation ladder of a tenant's policy: the steps for a request that would wait too long or be refused. Pure.

A request is degraded before anything is reserved, so that the limits, the price and the rights of the answering model apply from the
start, and no reservation has to be moved.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.http.openai.sizes import trimmed
from gateway.queue import refusals
from gateway.queue.waiter import WaitForecast
from gateway.request.permissions import exists_for
from policies.compile import ModelRule, TenantPolicy
from policies.ladder import Mark, Trim
from tenancy.rights import Allowed

HEADER: Final = b"x-tidegate-degrade"
NEVER: Final = b"never"
TRIMMED: Final = "trim_output_tokens"
MODEL: Final = "model"
STEPS: Final = (TRIMMED, MODEL)
"""The names of steps; a step to another model is `model=NAME`."""


class Descent(msgspec.Struct, frozen=True):
    """The degraded request, with the steps that were taken and those that were passed over."""

    ask: Ask
    rule: ModelRule
    taken: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Steps that were due and not taken, each with the reason; for operators."""
    refused: tuple[str, Fault] | None = None
    """Where no step helped: the word for metrics, and the Fault for the caller."""


def may_degrade(ask: Ask, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the ladder applies to this request. Embeddings are never degraded: vectors of two models cannot be compared.

    Raises:
        Fault: INVALID_VALUE where the header has any value but `never`.
    """
    header = headers.get(HEADER)
    if header is None:
        return ask.endpoint.generates
    if header.strip().lower() != NEVER:
        raise Fault(Kind.INVALID_VALUE, f"The header '{HEADER.decode()}' is '{NEVER.decode()}', or left away.")
    return False


def descend(
    ask: Ask,
    asked: ModelRule,
    policy: TenantPolicy,
    allowed: Allowed,
    forecast: Callable[[Ask, ModelRule], WaitForecast | None],
    dice: float,
    sticky: str = "",
) -> Descent:
    """Apply the due steps of the ladder in order, until the request would not have to wait or a `queue` or `refuse` step ends the ladder.

    Args:
        asked: the rule of the model that the request asks for.
        forecast: the wait that a request would have now; None where no backend is up: no step helps in an outage.
        dice: a random number from 0 to 1; spreads the retries of refused callers.
        sticky: the sticky key, which selects the pool where several serve a model.
    """
    wait = forecast(ask, asked)
    rule = asked
    model_step = ""
    taken: list[str] = []
    passed_over: list[str] = []
    for step in policy.degrade if wait is not None else ():
        assert wait is not None
        if not wait.waits or (step is Mark.QUEUE and wait.refused is None):
            break
        if step is Mark.REFUSE or step is Mark.CACHE_ONLY:
            wait = wait if wait.refused is not None else WaitForecast(True, wait.wait_s, _at_once(wait.wait_s, dice))
            break
        if isinstance(step, Mark) or (wait.refused is None and wait.wait_s < step.after_s):
            continue
        if isinstance(step, Trim):
            shorter = trimmed(ask, step.output_tokens)
            if shorter is not ask:
                ask = shorter
                taken = [TRIMMED]
            continue
        if asked.name not in step.of or step.model == rule.name:
            continue
        smaller = policy.models[step.model].shared(sticky)
        with_smaller, obstacle = _forecast_with(smaller, wait, ask, allowed, forecast)
        if with_smaller is None:
            passed_over.append(f"{MODEL}={step.model}: {obstacle}")
        else:
            rule, wait = smaller, with_smaller
            model_step = f"{MODEL}={smaller.name}"
    if wait is not None and wait.refused is not None:
        return Descent(ask, asked, (), tuple(passed_over), wait.refused)
    return Descent(ask, rule, (*taken, model_step) if model_step else tuple(taken), tuple(passed_over))


def _forecast_with(
    smaller: ModelRule, wait: WaitForecast, ask: Ask, allowed: Allowed, forecast: Callable[[Ask, ModelRule], WaitForecast | None]
) -> tuple[WaitForecast | None, str]:
    """The wait with a smaller model; None, and the reason, where the request would not be served sooner by that model."""
    if not exists_for(allowed, smaller):
        return None, "the caller may not use it"
    with_smaller = forecast(ask, smaller)
    if with_smaller is None:
        return None, "no backend is up"
    if not with_smaller.waits or (with_smaller.refused is None and (wait.refused is not None or with_smaller.wait_s < wait.wait_s)):
        return with_smaller, ""
    return None, "its turn would come no sooner"


def _at_once(wait_s: float, dice: float) -> tuple[str, Fault]:
    return refusals.TOO_LONG, refusals.too_long(wait_s, 0.0, dice)
