"""The caller's rights applied to a request: allowed models, endpoints and parameters, its class, the cap on its output. Pure.

A model or adapter that is not allowed does not exist for the caller, whichever level forbids it; every other refusal names the scope
that refuses, so that the caller knows whom to ask.
"""

from collections.abc import Mapping
from typing import Final

from domain import retry_after
from domain.ask import Ask
from domain.faults import Fault, Kind
from domain.priority import CLASSES, Class
from policies.compile import ModelRule, TenantPolicy
from tenancy.limits import Meter, bits
from tenancy.rights import Allowed, Cap

MONEY: Final = bits(Meter.COST_NANOUSD)
OUTPUT_METERS: Final = bits(Meter.OUTPUT_TOKENS, Meter.TOKENS, Meter.UNITS, Meter.COST_NANOUSD)
"""Meters of limits under which a request must carry a cap on its output, or it could use more than was reserved."""
PROMPT_METERS: Final = bits(Meter.INPUT_TOKENS, Meter.TOKENS, Meter.UNITS, Meter.COST_NANOUSD)
"""Meters of limits that need the prompt counted."""
TOOLS: Final = frozenset({"tools", "functions"})
CLASS_HEADER: Final = b"x-tidegate-class"
RETRY_HEADER: Final = b"x-stainless-retry-count"
"""The header in which OpenAI's client libraries count the retries of a request."""


def exists_for(allowed: Allowed, rule: ModelRule) -> bool:
    """Whether a model of the policy exists for this caller."""
    return allowed.refuses_model(rule.name) is None and (not rule.lora or allowed.refuses_lora(rule.lora) is None)


def sticky_key(ask: Ask, user: str, own_id: str) -> str:
    """The sticky key, which decides a request's share of a rule, pool or rollout: its conversation, else its end user, else its own id."""
    return ask.session or user or own_id


def urgency(policy: TenantPolicy, allowed: Allowed, ask: Ask, headers: Mapping[bytes, bytes]) -> tuple[Class, bool]:
    """The request's class, and whether its client library marks the request as a retry.

    The class is the lowest one of policy, rights and request. A request that asks for a higher class than allowed gets the
    highest class that is allowed, so that a client need not know its limit.

    Raises:
        Fault: INVALID_VALUE when the header names no class.
    """
    lowest = max(policy.priority_class, allowed.priority_class)
    class_name = headers.get(CLASS_HEADER)
    if class_name is not None:
        asked_class = CLASSES.get(class_name.decode("latin-1").strip().lower())
        if asked_class is None:
            message = f"Invalid value for the header '{CLASS_HEADER.decode()}': send one of {', '.join(CLASSES)}, or leave it away."
            raise Fault(Kind.INVALID_VALUE, message)
        lowest = max(lowest, asked_class)
    retries = headers.get(RETRY_HEADER)
    return Class.BATCH if ask.flex else lowest, retries is not None and retries.isdigit() and retries.strip(b"0") != b""


def check_parameters(allowed: Allowed, ask: Ask, route: str = "") -> None:
    """Check endpoint, tools and parameters against the caller's rights.

    Args:
        route: the route where the request came, if it is not that of its endpoint; a right to either of them is enough.

    Raises:
        Fault: NOT_PERMITTED for the endpoint or tools, INVALID_VALUE for a number above its cap.
    """
    refusing_scope = allowed.refuses_endpoint(ask.endpoint.path)
    if refusing_scope is not None and not (route and allowed.refuses_endpoint(route) is None):
        raise Fault(Kind.NOT_PERMITTED, f"{route or ask.endpoint.path} may not be used here (set for {refusing_scope}).")
    if allowed.tools_refused_by is not None and not TOOLS.isdisjoint(ask.names):
        raise Fault(Kind.NOT_PERMITTED, f"Requests may not carry tools here (set for {allowed.tools_refused_by}).", param="tools")
    _check_cap(allowed.max_choices, ask.choices, "n", "choices")
    _check_cap(allowed.max_logprobs, ask.logprobs, "logprobs", "log-probabilities per token")
    if ask.max_output_tokens is not None:
        _check_cap(allowed.max_output_tokens, ask.max_output_tokens, "max_tokens", "output tokens")


def check_prompt(allowed: Allowed, tokens: int) -> None:
    """Check the prompt's length against its cap. Raises Fault: INVALID_VALUE."""
    _check_cap(allowed.max_input_tokens, tokens, None, "input tokens")


def output_cap(allowed: Allowed, policy_cap: int, context_tokens: int | None, prompt_tokens: int) -> int:
    """Output tokens per sequence of a request without a cap of its own: the policy's cap, within the rights and the room that the
    prompt leaves in the engine's context."""
    cap = policy_cap
    if allowed.max_output_tokens is not None:
        cap = min(cap, allowed.max_output_tokens.value)
    if context_tokens is not None:
        cap = min(cap, max(1, context_tokens - prompt_tokens))
    return cap


def check_ledger(meters: int, draw: float) -> None:
    """Refuse a request that a budget limits. Called while usage cannot be made durable: a crash would lose the record of the spending.

    Args:
        meters: a bit for each meter that a limit of the request counts.
        draw: a random number from 0 to 1; spreads the retries of refused callers.

    Raises:
        Fault: QUOTA_UNKNOWN where a limit on money counts the request.
    """
    if meters & MONEY:
        message = "What this request costs cannot be written down right now, and a budget limits it. Try again shortly."
        raise Fault(Kind.QUOTA_UNKNOWN, message, retry=retry_after.of_unknown_spend(draw), detail="the ledger's disk is full")


def _check_cap(cap: Cap | None, value: int, param: str | None, unit: str) -> None:
    if cap is not None and value > cap.value:
        message = f"This request has {value} {unit}, and at most {cap.value} are allowed (set for {cap.scope})."
        raise Fault(Kind.INVALID_VALUE, message, param=param)
