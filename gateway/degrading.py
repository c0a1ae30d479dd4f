"""The degradation ladder of a tenant's policy: what a request is given instead, when it would wait too long or be refused. Pure.

It is gone down before anything is reserved, so that the limits, the price and the rights of the model that answers hold from then on,
and nothing has to be moved.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from domain.ask import Ask
from domain.faults import Fault, Kind
from gateway.admission import exists_for
from gateway.http.openai.sizes import trimmed
from gateway.queueing import refusals
from gateway.queueing.waiter import Outlook
from policies.compile import ModelRule, TenantPolicy
from policies.ladder import Mark, Trim
from tenancy.rights import Allowed

HEADER: Final = b"x-tidegate-degrade"
NEVER: Final = b"never"
TRIMMED: Final = "trim_output_tokens"
MODEL: Final = "model"
STEPS: Final = (TRIMMED, MODEL)
"""What steps are called; a model's is `model=NAME`."""


class Descent(msgspec.Struct, frozen=True):
    """Where a request came to on the ladder, and how."""

    ask: Ask
    rule: ModelRule
    taken: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    """Steps that were due and not taken, and why; for operators."""
    refused: tuple[str, Fault] | None = None
    """Nothing on it was of use: how the wait ended, and what the caller is told."""


def may_degrade(ask: Ask, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the request can be given something else. Embeddings cannot: another model's are of no use beside the first one's.

    Raises:
        Fault: INVALID_VALUE, the header says anything but `never`.
    """
    given = headers.get(HEADER)
    if given is None:
        return ask.endpoint.generates
    if given.strip().lower() != NEVER:
        raise Fault(Kind.INVALID_VALUE, f"The header '{HEADER.decode()}' is '{NEVER.decode()}', or left away.")
    return False


def descend(
    ask: Ask,
    asked: ModelRule,
    policy: TenantPolicy,
    allowed: Allowed,
    outlook: Callable[[Ask, ModelRule], Outlook | None],
    dice: float,
    sticky: str = "",
) -> Descent:
    """Go down as far as needed, and no further.

    Args:
        outlook: what a request would meet now; None where nobody is up, which no step is for.
        dice: 0 to 1; spreads those who are refused.
        sticky: what a request is dealt out by, where several pools serve a model.
    """
    now = outlook(ask, asked)
    rule, moved = asked, ""
    taken: list[str] = []
    passed: list[str] = []
    for step in policy.degrade if now is not None else ():
        assert now is not None
        if not now.waits or (step is Mark.QUEUE and now.refused is None):
            break
        if step is Mark.REFUSE:
            now = now if now.refused is not None else Outlook(True, now.wait_s, _at_once(now.wait_s, dice))
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
        other, there, why = _looked_at(policy.models[step.model].shared(sticky), now, ask, allowed, outlook)
        if why or there is None:
            passed.append(f"{MODEL}={step.model}: {why}")
        else:
            rule, now, moved = other, there, f"{MODEL}={other.name}"
    if now is not None and now.refused is not None:
        return Descent(ask, asked, (), tuple(passed), now.refused)
    return Descent(ask, rule, (*taken, moved) if moved else tuple(taken), tuple(passed))


def _looked_at(
    other: ModelRule, now: Outlook, ask: Ask, allowed: Allowed, outlook: Callable[[Ask, ModelRule], Outlook | None]
) -> tuple[ModelRule, Outlook | None, str]:
    """A smaller model, what the request would meet there, and why not to go there; empty where it is better off."""
    if not exists_for(allowed, other):
        return other, None, "the caller may not use it"
    there = outlook(ask, other)
    if there is None:
        return other, None, "no backend is up"
    if not there.waits or (there.refused is None and (now.refused is not None or there.wait_s < now.wait_s)):
        return other, there, ""
    return other, there, "its turn would come no sooner"


def _at_once(wait_s: float, dice: float) -> tuple[str, Fault]:
    return refusals.TOO_LONG, refusals.too_long(wait_s, 0.0, dice)
