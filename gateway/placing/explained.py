"""A routing decision explained to people: every candidate with every cost term, and the reason why each of the others lost. Pure."""

from typing import Final

import msgspec

from routing.schedule import Route

CLOSE: Final = {
    "session": "costs nearly the same; the conversation stays where its last turn was",
    "match": "costs nearly the same; the other holds more of the prompt",
    "fewest requests": "costs nearly the same; the other has fewer requests",
    "dice": "is as good; the dice took the other",
    "explored": "costs no more; the other was tried to measure it",
}
"""The reason that a loser is given when equals were told apart, by `Route.why`."""


class Contender(msgspec.Struct, frozen=True, omit_defaults=True):
    """One backend of the pool in one decision."""

    backend: str
    cost: float | None = None
    """In the policy's own unit; the least wins. None for a backend that was not eligible."""
    held_tokens: float = 0.0
    """Tokens of the prompt in its KV cache, weighted by the trust in its index."""
    terms: dict[str, float] = {}
    lost: str = ""
    """Why the backend was not chosen; empty for the chosen one."""


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision. Holds only the length of the prompt."""

    request_id: str
    at_unix: float
    tenant: str
    model: str
    pool: str
    policy: str
    chosen: str
    """The backend that was tried first; empty when no backend could serve."""
    prompt_tokens: int
    output_tokens: int
    output_tokens_p90: int
    contenders: tuple[Contender, ...]
    """Best first, then the backends that were not eligible."""
    lora: str = ""
    session: bool = False
    """Whether the request named a conversation."""
    chain_blocks: int = 0
    """Whole blocks of the prompt that were looked up in the prefix index; 0 when there was nothing to look up."""
    why: str = ""
    """What decided among candidates of nearly the same cost; empty when the least cost did."""
    served_by: str = ""
    """The backend that answered, where it is known and differs from `chosen`."""
    split: str = ""
    """Whether prefill and decode run on two backends and why, with both sides' terms; empty where the pool has no disaggregation, or
    the request cannot be split."""
    queued: str = ""
    """How the request's wait in the queue ended, or `waiting`; empty when it did not wait."""
    queued_s: float = 0.0
    queued_ahead: int = 0
    """Tokens queued ahead of the request when its wait began."""
    asked_model: str = ""
    """The model that was asked for, where an alias, a rule or the degradation ladder let `model` answer instead."""
    steps: tuple[str, ...] = ()
    """The steps of the tenant's degradation ladder that were applied to the request."""
    passed_over: tuple[str, ...] = ()
    """The steps that were due and not applied, each with the reason."""
    rule: str = ""
    """The rule of the tenant's policy that matched the request; empty for none."""
    rollout: str = ""
    """The rollout that assigned the request to an arm, and the arm: `v2: canary`; empty for none."""
    fell_back: tuple[str, ...] = ()
    """The models before `model` that could not answer, and how each failed: `big: overloaded`."""


def contenders(route: Route) -> tuple[Contender, ...]:
    """Every backend of a route, with the reason why it lost."""
    names = route.terms
    candidates = []
    best: dict[str, float] = {}
    for at, (backend, values) in enumerate(route.ranked):
        terms = dict(zip(names, values, strict=True))
        held = route.matched[at] if at < len(route.matched) else 0.0
        lost = "" if at == 0 else _lost(route, at, best, terms)
        best = terms if at == 0 else best
        candidates.append(Contender(backend.id, route.costs[at], held, terms, lost))
    candidates += [Contender(backend.id, lost=backend.reason or backend.state.value) for backend in route.excluded]
    return tuple(candidates)


def _lost(route: Route, at: int, best: dict[str, float], terms: dict[str, float]) -> str:
    more = route.costs[at] - route.costs[0]
    if more <= 0 or (at == 1 and route.why and more < abs(route.costs[0])):
        return CLOSE.get(route.why, "costs the same; the dice decided")
    worse = sorted(((value - best[name], name) for name, value in terms.items() if value > best[name]), reverse=True)[:2]
    parts = ", ".join(f"{name} +{by:.3g}" for by, name in worse)
    return f"costs {more:.3g} more" + (f" ({parts})" if parts else "")
