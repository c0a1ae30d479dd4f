"""A placing decision as people are told it: every candidate with every term, and why those that were not taken lost. Pure."""

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
"""What decided among equals, by `Route.why`, as it is said to a loser."""


class Contender(msgspec.Struct, frozen=True, omit_defaults=True):
    """One backend of the pool in one decision."""

    backend: str
    cost: float | None = None
    """In the policy's own unit; the least wins. None for one that could not be taken."""
    held_tokens: float = 0.0
    """Tokens of the prompt that it holds, as far as its index is trusted."""
    terms: dict[str, float] = {}
    lost: str = ""
    """Why it was not taken; empty for the one that was."""


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision. Holds nothing of the prompt but its length."""

    request_id: str
    at_unix: float
    tenant: str
    model: str
    pool: str
    policy: str
    chosen: str
    """The backend that was tried first; empty when nobody could serve."""
    prompt_tokens: int
    output_tokens: int
    output_tokens_p90: int
    contenders: tuple[Contender, ...]
    """Best first, then those that could not be taken."""
    lora: str = ""
    session: bool = False
    """Whether it named a conversation."""
    chain_blocks: int = 0
    """Whole blocks of the prompt that were looked up; 0 when nothing could be learned from it."""
    why: str = ""
    """What decided among those that cost nearly the same; empty when the least cost did."""
    served_by: str = ""
    """The backend that answered, where it is known and another one."""
    split: str = ""
    """Whether two backends share it and why, with both sides' terms; empty where the pool shares no requests, or this one cannot be."""
    queued: str = ""
    """How its wait for its turn ended, or `waiting`; empty when it did not wait."""
    queued_s: float = 0.0
    queued_ahead: int = 0
    """Tokens that were to be served before it when its wait began."""
    asked_model: str = ""
    """What it asked for, where `model` answers instead, as an alias, a rule or a ladder says."""
    steps: tuple[str, ...] = ()
    """Of its tenant's degradation ladder, those that it went down."""
    passed_over: tuple[str, ...] = ()
    """Those that were due and not taken, and why."""
    rule: str = ""
    """The rule of its tenant's policy that it came under; empty for none."""
    rollout: str = ""
    """The rollout that dealt it out, and the arm: `v2: canary`; empty for none."""
    fell_back: tuple[str, ...] = ()
    """The models before `model` that could not answer, and how each failed: `big: overloaded`."""


def contenders(route: Route) -> tuple[Contender, ...]:
    """Every backend of a route, with why it lost."""
    names = route.terms
    found = []
    best: dict[str, float] = {}
    for at, (backend, values) in enumerate(route.ranked):
        terms = dict(zip(names, values, strict=True))
        held = route.matched[at] if at < len(route.matched) else 0.0
        lost = "" if at == 0 else _lost(route, at, best, terms)
        best = terms if at == 0 else best
        found.append(Contender(backend.id, route.costs[at], held, terms, lost))
    found += [Contender(one.id, lost=one.reason or one.state.value) for one in route.excluded]
    return tuple(found)


def _lost(route: Route, at: int, best: dict[str, float], mine: dict[str, float]) -> str:
    more = route.costs[at] - route.costs[0]
    if more <= 0 or (at == 1 and route.why and more < abs(route.costs[0])):
        return CLOSE.get(route.why, "costs the same; the dice decided")
    worse = sorted(((value - best[name], name) for name, value in mine.items() if value > best[name]), reverse=True)[:2]
    parts = ", ".join(f"{name} +{by:.3g}" for by, name in worse)
    return f"costs {more:.3g} more" + (f" ({parts})" if parts else "")
