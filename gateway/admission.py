"""Between the caller's rights and the request: what it may ask for, and the cap its output gets. Pure.

Models and adapters that are not allowed do not exist for the caller, whichever level says so; everything else that is refused
names the scope that refuses, so that somebody can be asked.
"""

from collections.abc import Mapping
from typing import Final

from domain.ask import Ask
from domain.faults import Fault, Kind, Retry
from domain.priority import CLASSES, Class
from policies.compile import ModelRule, TenantPolicy
from tenancy.limits import Group, Meter, bits
from tenancy.rights import EVERYTHING, Allowed, Cap

MONEY: Final = bits(Meter.COST_NANOUSD)
OUTPUT_METERS: Final = bits(Meter.OUTPUT_TOKENS, Meter.TOKENS, Meter.UNITS, Meter.COST_NANOUSD)
"""Limits under which a request must carry a cap on its output, or it could use more than was reserved."""
PROMPT_METERS: Final = bits(Meter.INPUT_TOKENS, Meter.TOKENS, Meter.UNITS, Meter.COST_NANOUSD)
"""Limits for which it is worth counting the prompt."""
TOOLS: Final = frozenset({"tools", "functions"})
CLASS_HEADER: Final = b"x-tidegate-class"
RETRY_HEADER: Final = b"x-stainless-retry-count"
"""How often OpenAI's client libraries have asked for the same before."""


def exists_for(allowed: Allowed, rule: ModelRule) -> bool:
    """Whether a model of the policy is there for this caller."""
    return allowed.refuses_model(rule.name) is None and (not rule.lora or allowed.refuses_lora(rule.lora) is None)


def sticky_key(ask: Ask, user: str, own_id: str) -> str:
    """What a request is dealt out by: its conversation, else its end user, else itself."""
    return ask.session or user or own_id


def urgency(policy: TenantPolicy, allowed: Allowed, ask: Ask, headers: Mapping[bytes, bytes]) -> tuple[Class, bool]:
    """The request's class, and whether its client says that it has asked for this before.

    The class is the lowest of what policy, rights and the request itself say. A request that asks for more than it may have gets
    what it may have, so that a client need not know what that is.

    Raises:
        Fault: INVALID_VALUE when the header names no class.
    """
    found = max(policy.priority_class, allowed.priority_class)
    word = headers.get(CLASS_HEADER)
    if word is not None:
        wanted = CLASSES.get(word.decode("latin-1").strip().lower())
        if wanted is None:
            message = f"Invalid value for the header '{CLASS_HEADER.decode()}': send one of {', '.join(CLASSES)}, or leave it away."
            raise Fault(Kind.INVALID_VALUE, message)
        found = max(found, wanted)
    tries = headers.get(RETRY_HEADER)
    return Class.BATCH if ask.flex else found, tries is not None and tries.isdigit() and tries.strip(b"0") != b""


def check_parameters(allowed: Allowed, ask: Ask) -> None:
    """What the request asks for, against the caps.

    Raises:
        Fault: NOT_PERMITTED for the endpoint or tools, INVALID_VALUE for a number above its cap.
    """
    if allowed is EVERYTHING:
        return
    refusing = allowed.refuses_endpoint(ask.endpoint.value)
    if refusing is not None:
        raise Fault(Kind.NOT_PERMITTED, f"{ask.endpoint.value} may not be used here (set for {refusing}).")
    if allowed.tools_refused_by is not None and not TOOLS.isdisjoint(ask.names):
        raise Fault(Kind.NOT_PERMITTED, f"Requests may not carry tools here (set for {allowed.tools_refused_by}).", param="tools")
    _within(allowed.max_choices, ask.choices, "n", "choices")
    _within(allowed.max_logprobs, ask.logprobs, "logprobs", "log-probabilities per token")
    if ask.max_output_tokens is not None:
        _within(allowed.max_output_tokens, ask.max_output_tokens, "max_tokens", "output tokens")


def check_prompt(allowed: Allowed, tokens: int) -> None:
    """The prompt's length against its cap. Raises Fault INVALID_VALUE."""
    _within(allowed.max_input_tokens, tokens, None, "input tokens")


def output_cap(allowed: Allowed, policy_cap: int, context_tokens: int | None, prompt_tokens: int) -> int:
    """Output tokens per sequence for a request without a cap of its own: what the policy says, at most what rights allow, and no
    more than the engine's context has room for."""
    cap = policy_cap
    if allowed.max_output_tokens is not None:
        cap = min(cap, allowed.max_output_tokens.value)
    if context_tokens is not None:
        cap = min(cap, max(1, context_tokens - prompt_tokens))
    return cap


def check_ledger(groups: tuple[Group, ...], draw: float) -> None:
    """To be asked while usage cannot be made durable: a budget that a crash would forget is not spent from.

    Args:
        draw: 0 to 1; spreads those who try again.

    Raises:
        Fault: QUOTA_UNKNOWN when money limits the request; what is not limited by money goes on.
    """
    if counts(groups, MONEY):
        why = "What this request costs cannot be written down right now, and a budget limits it. Try again shortly."
        raise Fault(Kind.QUOTA_UNKNOWN, why, retry=Retry(should=True, after_s=5.0 + 5.0 * draw), detail="the ledger's disk is full")


def counts(groups: tuple[Group, ...], meters: int) -> bool:
    """Whether any limit counts one of these meters."""
    for group in groups:  # noqa: SIM110 - a generator costs as much as the rest of the request's admission
        if group.meters & meters:
            return True
    return False


def _within(cap: Cap | None, value: int, param: str | None, what: str) -> None:
    if cap is not None and value > cap.value:
        message = f"This request has {value} {what}, and at most {cap.value} are allowed (set for {cap.scope})."
        raise Fault(Kind.INVALID_VALUE, message, param=param)
