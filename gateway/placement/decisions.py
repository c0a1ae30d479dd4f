"""The routing decisions about the last requests of this worker, kept for `tidegate explain`; bounded.

A `Decision` keeps only values that routing computed anyway; of a prompt only its length is kept. On demand they are put into words
(`Explained`): every candidate with every cost term, the reason why each of the others lost, and all of it in one line (`reason`).
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.record import Record
from routing.disaggregation import Split
from routing.ports import RoutingRequest
from routing.schedule import ALONE, Route

CLOSE: Final = {
    "session": "costs nearly the same; the conversation stays where its last turn was",
    "match": "costs nearly the same; the other holds more of the prompt",
    "fewest requests": "costs nearly the same; the other has fewer requests",
    "rendezvous": "is as good; prompts that begin like this one go to the other",
    "dice": "is as good; the dice took the other",
    "explored": "costs no more; the other was tried to measure it",
}
"""Why a backend lost among candidates of nearly equal cost, by `Route.why`."""


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
    waiting: float | None = None
    """Requests that waited at the backend when the decision was made; None where they were not looked at."""
    first_token_s: float | None = None
    """Seconds to the first token that the policy expected of the backend; None where the policy estimates none."""


class Ended(msgspec.Struct, frozen=True, gc=False):
    """How a request ended; times are seconds."""

    outcome: str
    """`ok` or the fault's kind."""
    status: int
    duration_s: float
    queue_s: float
    first_token_s: float | None
    """From the request's last byte to the first event of the answer; None for none, and for an answer that was not streamed."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Explained(msgspec.Struct, frozen=True, omit_defaults=True):
    """One decision. Holds only the length of the prompt."""

    request_id: str
    """The gateway's own id."""
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
    exact: bool = True
    """Whether `prompt_tokens` was counted and not estimated."""
    unit: str = ""
    """Unit of the costs, in words; empty where they have none."""
    reason: str = ""
    """The decision in one line for people."""
    caller_request_id: str = ""
    """The caller's own `x-request-id`; empty where it sent none."""
    cache: str = ""
    """What the answer cache did, once the request has ended: `hit-exact`, `miss`, …; empty where the policy has none."""
    cache_age_s: float = 0.0
    """Of a hit, seconds since the answer was made."""
    ended: Ended | None = None
    """How the request ended; None while it runs, and where its worker ended first."""
    rested_s: float = 0.0
    """Seconds without requests before this one, where the pool was at rest: its engines' load was read up to two seconds before."""
    guards: str = ""
    """What guard rules said, in words, once the request has ended; empty without any."""


def contenders(route: Route) -> tuple[Contender, ...]:
    """Every backend of a route, with the reason why it lost."""
    names = route.terms
    candidates = []
    best: dict[str, float] = {}
    for rank, (backend, values) in enumerate(route.ranked):
        terms = dict(zip(names, values, strict=True))
        held = route.matched[rank] if rank < len(route.matched) else 0.0
        lost = "" if rank == 0 else _lost(route, rank, best, terms)
        best = terms if rank == 0 else best
        waiting = route.waiting[rank] if rank < len(route.waiting) else None
        candidates.append(Contender(backend.id, route.costs[rank], held, terms, lost, waiting, route.first_token_s(rank)))
    candidates += [Contender(backend.id, lost=backend.reason or backend.state.value) for backend in route.excluded]
    return tuple(candidates)


def _lost(route: Route, rank: int, best: dict[str, float], terms: dict[str, float]) -> str:
    more = route.costs[rank] - route.costs[0]
    if more <= 0 or (rank == 1 and route.why and more < abs(route.costs[0])):
        return CLOSE.get(route.why, "costs the same; the dice decided")
    worse = sorted(((value - best[name], name) for name, value in terms.items() if value > best[name]), reverse=True)[:2]
    parts = ", ".join(f"{name} +{by:.3g}" for by, name in worse)
    return f"costs {more:.3g} more" + (f" ({parts})" if parts else "")


NAMED: Final = 3
"""Most backends that the reason names beside the chosen one, and as many that were not eligible."""

DECIDED: Final = {
    "session": "the conversation stays where its last turn was",
    "match": "the chosen one holds more of the prompt",
    "fewest requests": "the chosen one has fewer requests",
    "rendezvous": "prompts that begin like this one go to the chosen one",
    "dice": "drawn at random",
    "explored": "tried to measure it",
    "destination": "the endpoint picker in front named the chosen one",
    "room": "the chosen one has room, and there was no time left to wait for the better one",
}
"""What decided in favour of the chosen backend among nearly equal ones, by `Route.why`."""


def reason(explained: Explained) -> str:
    """The decision in one line: what the chosen backend had waiting and cached, the seconds to the first token that the policy expected of
    each backend (a policy that estimates none: the costs in its unit), and what decided where those do not show it."""
    ranked = [contender for contender in explained.contenders if contender.cost is not None]
    out = [f"{contender.backend} ({contender.lost})" for contender in explained.contenders if contender.cost is None]
    if not ranked:
        return f"no backend can serve it: {_few(out) or 'the pool has none'}"
    chosen, *rivals = ranked
    facts = [f"{chosen.waiting:.0f} waiting"] if chosen.waiting is not None else []
    if explained.chain_blocks and explained.why != ALONE:
        about = "" if explained.exact else "about "
        facts.append(f"{chosen.held_tokens:.0f} of {about}{explained.prompt_tokens} prompt tokens cached")
    values, kind, unit = _compared(ranked, explained.unit)
    texts = [_in_unit(value, unit) for value in values]
    others = ""
    if explained.why == ALONE:
        facts.append("the only backend that is up")
    elif not rivals:
        facts += [f"{kind} {texts[0]}", "the only backend that can serve it"]
    elif texts.count(texts[0]) == len(texts):
        each = "both" if len(rivals) == 1 else f"all {len(texts)}"
        what = f"would take {texts[0]} to the first token" if kind == FIRST_TOKEN else f"cost {texts[0]}"
        others = f"{each} {what}, {_decided(explained, 1)}"
    else:
        facts.append(f"{kind} {texts[0]}")
        slower = [value > values[0] and text != texts[0] for value, text in zip(values, texts, strict=True)]
        others = _few(
            [f"{ranked[n].backend}: {texts[n]}" + ("" if slower[n] else f" ({_decided(explained, n)})") for n in range(1, len(ranked))]
        )
    not_eligible = f"not eligible: {_few(out)}" if out else ""
    return "; ".join(filter(None, (f"{chosen.backend}: {', '.join(facts)}" if facts else chosen.backend, others, not_eligible)))


FIRST_TOKEN: Final = "expected first token"


def _compared(ranked: list[Contender], unit: str) -> tuple[list[float], str, str]:
    """The values by which people compare the backends, their name and their unit."""
    first_tokens = [contender.first_token_s for contender in ranked if contender.first_token_s is not None]
    if len(first_tokens) == len(ranked):
        return first_tokens, FIRST_TOKEN, "s"
    return [contender.cost or 0.0 for contender in ranked], "cost", unit


TERM_WORDS: Final = {
    "queue_s": "for what waits there",
    "prefill_s": "to read the prompt",
    "adapter_s": "to load the adapter",
    "decode_s": "to generate the answer",
    "recompute_s": "for computing what another backend has cached",
    "memory_s": "for want of memory",
    "late_s": "for missing the promised time",
    "crossing_s": "for being in another zone",
    "load_s": "for its load",
    "evict_s": "for the cache that it would lose",
}
"""Terms of the cost in words, for the one line; `tidegate explain` lists them by their names."""


def _decided(explained: Explained, rank: int) -> str:
    """What decided against a backend that looked as good as the chosen one."""
    chosen, rival = explained.contenders[0], explained.contenders[rank]
    more = (rival.cost or 0.0) - (chosen.cost or 0.0)
    if more <= 0 or (rank == 1 and explained.why):
        return DECIDED.get(explained.why, "drawn at random")
    by, name = max(((value - chosen.terms.get(name, 0.0), name) for name, value in rival.terms.items()), default=(0.0, ""))
    return f"{rival.backend} costs {_in_unit(more, explained.unit)} more in all" + (
        f", mostly {TERM_WORDS.get(name, name)}" if by > 0 else ""
    )


def _in_unit(amount: float, unit: str) -> str:
    """An amount for people: short times in milliseconds, and `1 request` instead of `1 requests`."""
    if unit == "s":
        millis = amount * 1000
        return f"{amount:.3g} s" if millis >= 10_000 else f"{millis:.0f} ms" if millis >= 10 else f"{millis:.2g} ms"
    return f"{amount + 0.0:.4g} {unit.removesuffix('s') if amount == 1 else unit}".rstrip()


def _few(words: list[str]) -> str:
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more} more" if more > 0 else "")


MAX_DECISIONS: Final = 1_000
"""Decisions kept."""

MAX_CANDIDATES: Final = 20_000
"""Candidates over all decisions kept: bounds memory alike for pools of two backends and of a thousand."""


class Decision(msgspec.Struct, gc=False, eq=False):
    """The routing decision about one request."""

    route: Route
    ids: tuple[str, ...]
    """The gateway's own ids: the whole request's, and after a fallback the one that the last model's engines and the ledger have."""
    at_unix: float
    tenant: str
    model: str
    pool: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_p90: int
    blocks: int
    lora: str
    session: bool
    exact: bool
    size: int
    """The number of backends in the decision."""
    split: Split | None = None
    """The decision about disaggregated prefill and decode; None where the pool has none."""
    served_by: str = ""
    """The backend that was tried last."""
    queued: str = ""
    """How the request's wait in the queue ended, or "waiting"; empty when it did not wait."""
    queued_s: float = 0.0
    queued_ahead: int = 0
    """Tokens queued ahead of the request when its wait began."""
    asked_model: str = ""
    steps: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()
    rule: str = ""
    rollout: str = ""
    fell_back: tuple[str, ...] = ()
    caller_id: str = ""
    """The caller's own id, which is unique for nobody; empty for none."""
    cache: str = ""
    cache_age_s: float = 0.0
    guards: str = ""
    rested_s: float = 0.0
    ended: Ended | None = None
    taken: bool = False
    """Whether it has been taken for writing to disk, so that a fact that comes later needs another writing."""

    def known_as(self, request_id: str, tenant: str) -> bool:
        """Whether the decision is about this request.

        Args:
            request_id: an id of the gateway, or the caller's own where the tenant is named.
            tenant: empty for any.
        """
        if tenant and tenant != self.tenant:
            return False
        return request_id in self.ids or (tenant != "" and request_id == self.caller_id != "")

    def explained(self) -> Explained:
        """The decision in words and numbers."""
        route = self.route
        chosen = route.ranked[0][0].id if route.ranked else ""
        explained = Explained(
            self.ids[0],
            self.at_unix,
            self.tenant,
            self.model,
            self.pool,
            route.policy,
            chosen,
            self.prompt_tokens,
            self.output_tokens,
            self.output_tokens_p90,
            contenders(route),
            self.lora,
            self.session,
            self.blocks,
            route.why,
            self.served_by if self.served_by != chosen else "",
            self.split.sentence() if self.split is not None else "",
            self.queued,
            self.queued_s,
            self.queued_ahead,
            self.asked_model,
            self.steps,
            self.passed_over,
            self.rule,
            self.rollout,
            self.fell_back,
            self.exact,
            route.unit,
            caller_request_id=self.caller_id,
            cache=self.cache,
            cache_age_s=self.cache_age_s,
            ended=self.ended,
            rested_s=self.rested_s,
            guards=self.guards,
        )
        words = reason(explained) if route.policy else _not_placed(explained)
        if route.others:
            words += f"; {route.others} more cannot be better by their load, and were not compared"
        if self.rested_s:
            words += f"; the first after {self.rested_s:.0f} s without requests, by the load of up to two seconds before"
        return msgspec.structs.replace(explained, reason=words)


def _not_placed(explained: Explained) -> str:
    """Why no backend was asked."""
    if explained.cache.startswith("hit"):
        return "answered from the cache; no backend was asked"
    return "refused by guard rules; no backend was asked"


def decision(route: Route, request: RoutingRequest, ids: tuple[str, ...], at_unix: float, model: str, pool: str) -> Decision:
    """The values of one request's placement that are kept."""
    return Decision(
        route,
        ids,
        at_unix,
        request.tenant,
        model,
        pool,
        request.prompt_tokens,
        request.output_tokens,
        request.output_tokens_p90,
        len(request.chain),
        request.lora,
        request.session != 0,
        request.exact,
        len(route.ranked) + len(route.excluded),
    )


NOT_PLACED: Final = Route("", (), (), why=ALONE)
"""Stands for the route of a request that the cache answered, or that guard rules refused."""


def _without_backend(record: Record) -> Decision:
    """The entry of a request that the cache answered, or that guard rules refused."""
    gateway_id = record.gateway_id or record.request_id
    ids = (gateway_id,) if record.own_id == gateway_id else (gateway_id, record.own_id)
    entry = Decision(NOT_PLACED, ids, record.at_unix, record.tenant, record.model, "", 0, 0, 0, 0, record.lora, False, True, 1)
    entry.asked_model, entry.rule = record.asked_model, record.rule
    if record.request_id != gateway_id:
        entry.caller_id = record.request_id
    return entry


class Decisions:
    """The last decisions, found by the gateway's ids of the request, or by its tenant and its caller's own id.

    `written` is called once with each decision, where decisions are written to disk as well.
    """

    __slots__ = ("_by_age", "_by_id", "_candidates", "_max_candidates", "_max_decisions", "written")

    def __init__(self, max_decisions: int = MAX_DECISIONS, max_candidates: int = MAX_CANDIDATES) -> None:
        self._by_age: deque[Decision] = deque()
        self._by_id: dict[str | tuple[str, str], Decision] = {}
        self._candidates = 0
        self._max_decisions = max_decisions
        self._max_candidates = max_candidates
        self.written: Callable[[Decision], None] | None = None

    def __len__(self) -> int:
        return len(self._by_age)

    def keep(self, decision: Decision) -> None:
        """Keep one more decision and drop the oldest ones. A caller's id that is used again finds its last request."""
        by_age = self._by_age
        by_id = self._by_id
        by_age.append(decision)
        for request_id in decision.ids:
            by_id[request_id] = decision
        if decision.caller_id:
            by_id[decision.tenant, decision.caller_id] = decision
        if self.written is not None:
            self.written(decision)
        self._candidates += decision.size
        while (len(by_age) > self._max_decisions or self._candidates > self._max_candidates) and len(by_age) > 1:
            oldest = by_age.popleft()
            self._candidates -= oldest.size
            keys: tuple[str | tuple[str, str], ...] = (*oldest.ids, (oldest.tenant, oldest.caller_id))
            for key in keys:
                if by_id.get(key) is oldest:
                    del by_id[key]

    def end(self, decision: Decision | None, record: Record) -> None:
        """Note how a request ended.

        Args:
            decision: the last one about the request; None where it was not placed. An answer of the cache is then kept as an entry, and
                so is the refusal of guard rules.
        """
        said = record.guards
        is_new = decision is None and (record.cache.startswith("hit") or (said is not None and said.by != ""))
        if is_new:
            decision = _without_backend(record)
        if decision is None:
            return
        usage = record.usage
        not_kept = f", not kept: {record.not_kept}" if record.not_kept else ""
        decision.cache = f"{record.cache}{f', similar: {record.resembled}' if record.resembled else ''}{not_kept}"
        decision.cache_age_s = record.cache_age_s
        decision.guards = "" if said is None else said.sentence
        decision.ended = Ended(
            record.outcome,
            record.status,
            record.duration_s,
            record.queue_s,
            record.ttft_s,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
        )
        if is_new:
            self.keep(decision)
        elif decision.taken and self.written is not None:
            self.written(decision)

    def find(self, request_id: str, tenant: str = "") -> Explained | None:
        """The decision about a request; None when there was none, or it has been dropped.

        Args:
            request_id: an id of the gateway, or the caller's own where the tenant is named.
            tenant: empty for any.
        """
        found = self._by_id.get(request_id) or self._by_id.get((tenant, request_id))
        return found.explained() if found is not None and found.known_as(request_id, tenant) else None
