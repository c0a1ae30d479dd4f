"""The degradation ladder of a tenant's policy: the steps for a request that would wait too long or be refused. Pure.

A request goes down the ladder before anything is reserved, so that the limits, the price and the rights of the model that answers hold
from then on, and no reservation has to be moved.
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
    """How far a request went down the ladder, and by which steps."""

    ask: Ask
    rule: ModelRule
    taken: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Steps that were due and not taken, each with the reason; for operators."""
    refused: tuple[str, Fault] | None = None
    """Where no step helped: how the wait ended, and the Fault for the caller."""


def may_degrade(ask: Ask, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the ladder is for this request. Embeddings never degrade: another model's vectors are of no use beside the first one's.

    Raises:
        Fault: INVALID_VALUE, the header says anything but `never`.
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
    outlook: Callable[[Ask, ModelRule], WaitForecast | None],
    dice: float,
    sticky: str = "",
) -> Descent:
    """Go down the ladder as far as needed, and no further.

    Args:
        asked: the rule of the model that the request asks for.
        outlook: the wait that a request would meet now; None where no backend is up, for which there is no step.
        dice: 0 to 1; spreads the callers that are refused.
        sticky: the key by which a request is dealt out, where several pools serve a model.
    """
    now = outlook(ask, asked)
    rule = asked
    model_step = ""
    taken: list[str] = []
    passed_over: list[str] = []
    for step in policy.degrade if now is not None else ():
        assert now is not None
        if not now.waits or (step is Mark.QUEUE and now.refused is None):
            break
        if step is Mark.REFUSE:
            now = now if now.refused is not None else WaitForecast(True, now.wait_s, _at_once(now.wait_s, dice))
            break
        if isinstance(step, Mark) or (now.refused is None and now.wait_s < step.after_s):
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
        with_smaller, obstacle = _outlook_with(smaller, now, ask, allowed, outlook)
        if with_smaller is None:
            passed_over.append(f"{MODEL}={step.model}: {obstacle}")
        else:
            rule, now = smaller, with_smaller
            model_step = f"{MODEL}={smaller.name}"
    if now is not None and now.refused is not None:
        return Descent(ask, asked, (), tuple(passed_over), now.refused)
    return Descent(ask, rule, (*taken, model_step) if model_step else tuple(taken), tuple(passed_over))


def _outlook_with(
    smaller: ModelRule, now: WaitForecast, ask: Ask, allowed: Allowed, outlook: Callable[[Ask, ModelRule], WaitForecast | None]
) -> tuple[WaitForecast | None, str]:
    """The outlook of the request with a smaller model; None, and the reason, where the request is no better off there."""
    if not exists_for(allowed, smaller):
        return None, "the caller may not use it"
    there = outlook(ask, smaller)
    if there is None:
        return None, "no backend is up"
    if not there.waits or (there.refused is None and (now.refused is not None or there.wait_s < now.wait_s)):
        return there, ""
    return None, "its turn would come no sooner"


def _at_once(wait_s: float, dice: float) -> tuple[str, Fault]:
    return refusals.TOO_LONG, refusals.too_long(wait_s, 0.0, dice)
