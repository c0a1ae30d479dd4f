"""Questions about routing decisions: the admin process asks, and the workers answer.

`WorkersExplain` is the client in the admin process. `answers` are a worker's handlers: past decisions, and where a request would go
now (`supposed`).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.deps import Deps
from gateway.http.openai import check_caps, interpret
from gateway.http.openai.prompts import with_prompt
from gateway.http.translations import Translations
from gateway.placement.decision_log import find_written
from gateway.placement.decisions import Explained, decision
from gateway.placement.place import decide, prepare
from gateway.process.worker_link import Answer, ask_every, ask_newest
from gateway.request.permissions import sticky_key
from gateway.request.policy_match import Asked, match_policy
from gateway.request.prefill import split_request
from gateway.rollouts.dealing import deal, deal_prompt
from gateway.story import Story
from policies.caps import USUAL_CAPS
from policies.rollout.in_force import in_words
from tenancy.rights import EVERYTHING

EXPLAIN_LINE: Final = b"explain\n"
"""Begins a question about a past request; the request's id follows, and its tenant on a line of its own where one is named."""
WOULD_LINE: Final = b"would\n"
"""Begins a question about a supposed request; a `Would` in MessagePack follows."""
WITHIN_S: Final = 1.0
"""Time limit for an answer about a supposed request: a long prompt takes a while to be tokenized."""


class Would(msgspec.Struct, frozen=True):
    """The question where a request would go now."""

    tenant: str
    endpoint: str
    body: bytes
    """The request body as a caller would send it."""
    project: str = ""
    """A project of the tenant; empty for a project that its policy does not name."""


class NoPlacement(msgspec.Struct, frozen=True):
    """Why the supposed request would be refused."""

    message: str
    param: str = ""


class WouldAnswer(msgspec.Struct, frozen=True):
    """The decision, or the refusal; exactly one of them is set."""

    explained: Explained | None = None
    refusal: NoPlacement | None = None


class Explaining(Protocol):
    """Answers questions about routing decisions."""

    async def of(self, request_id: str, tenant: str = "") -> Explained | None:
        """The decision about a request; None when none is kept. Of several decisions the last one.

        Args:
            request_id: an id of the gateway, or the caller's own where the tenant is named.
            tenant: empty for any.
        """
        ...

    async def would(self, asked: Would) -> WouldAnswer | None:
        """Where the request would go now; None when no worker answers."""
        ...


class WorkersExplain:
    """Asks the workers of this gateway, then reads what is kept on disk.

    Args:
        folder: where workers write their decisions; None where they write none.
    """

    def __init__(self, run_dir: Path, folder: Path | None = None) -> None:
        self._run_dir = run_dir
        self._folder = folder

    async def of(self, request_id: str, tenant: str = "") -> Explained | None:
        question = f"{request_id}\n{tenant}" if tenant else request_id
        answers = await ask_every(self._run_dir, EXPLAIN_LINE + question.encode("ascii", "replace"))
        decisions = [msgspec.msgpack.decode(answer, type=Explained) for answer in answers]
        newest = max(decisions, key=lambda decision: decision.at_unix, default=None)
        if newest is not None or self._folder is None:
            return newest
        return await asyncio.to_thread(find_written, self._folder, request_id, tenant)

    async def would(self, asked: Would) -> WouldAnswer | None:
        answer = await ask_newest(self._run_dir, WOULD_LINE + msgspec.msgpack.encode(asked), WITHIN_S)
        return msgspec.msgpack.decode(answer, type=WouldAnswer) if answer else None


SUPPOSED: Final = "supposed"
"""Stands in for the request id of a request that is not sent."""


class NoDice:
    """An `Rng` without chance: a decision that is not carried out explores nothing, and takes the first of equal candidates."""

    def random(self) -> float:
        """The largest value below 1, above every share of requests that is drawn."""
        return 1.0 - 2**-53

    def randrange(self, _stop: int, /) -> int:
        """Always 0, the first of equals."""
        return 0


def answers(deps_of: Callable[[], Deps | None]) -> dict[bytes, Answer]:
    """The handlers of questions, by the line that begins a question. They answer nothing while the worker has not loaded its keys and
    policies (`deps_of` gives None)."""

    async def explain(question: bytes) -> bytes:
        deps = deps_of()
        request_id, _, tenant = question.decode("ascii", "replace").partition("\n")
        explained = deps.decisions.find(request_id, tenant) if deps is not None else None
        return b"" if explained is None else msgspec.msgpack.encode(explained)

    async def would(question: bytes) -> bytes:
        deps = deps_of()
        asked = msgspec.msgpack.decode(question, type=Would)
        return b"" if deps is None else msgspec.msgpack.encode(await supposed(asked, deps))

    return {EXPLAIN_LINE: explain, WOULD_LINE: would}


async def supposed(asked: Would, deps: Deps) -> WouldAnswer:
    """Where the request would go now. It is not admitted, counted, sent or remembered, and draws no random numbers."""
    policies = deps.live.policies
    tenant_policy = policies.for_tenant(asked.tenant)
    caps, links = (USUAL_CAPS, False) if tenant_policy is None else (tenant_policy.widest_caps, tenant_policy.may_fetch_images)
    try:
        endpoint, body = Translations(deps.salt_secret, deps.wall, deps.new_id).chat_of(asked.endpoint, asked.body)
        ask = interpret(endpoint, body, caps=caps, links=links)
    except Fault as fault:
        return WouldAnswer(refusal=_refused(fault))
    dice = NoDice()
    now = deps.clock()
    now_unix = deps.wall()
    caller = Caller(TenantId(asked.tenant), ProjectId(asked.project), KeyId(""))
    key = sticky_key(ask, ask.user, SUPPOSED)
    story = Story(SUPPOSED, now, now_unix, now, SUPPOSED)
    story.asked.user = ask.user
    story.asked.caller = caller
    if ask.template is not None:
        try:
            choose_version = partial(deal_prompt, ask, caller, {}, story, deps)
            ask, _ = with_prompt(ask, policies.prompts_for(asked.tenant), key, choose_version)
        except Fault as fault:
            return WouldAnswer(refusal=_refused(fault))
    match = match_policy(policies, Asked(ask, caller, ask.user, {}, now_unix), EVERYTHING, key)
    if match is None:
        message = f"The policy of tenant {asked.tenant!r} has no model {ask.model[:64]!r}."
        return WouldAnswer(refusal=NoPlacement(message, "request.model"))
    policy = story.asked.tenant_policy = match.policy
    try:
        check_caps(ask, policy.caps)
    except Fault as fault:
        return WouldAnswer(refusal=_refused(fault))
    rule = deal(match.model, ask, asked.tenant, policy, {}, story, deps)
    try:
        placement = decide(await prepare(ask, rule, {}, story, deps), deps, dice)
    except Fault as fault:
        return WouldAnswer(refusal=_refused(fault))
    pool = placement.pool
    route = placement.route
    story.placed.lora = placement.request.lora
    if pool.has_roles or pool.name in deps.sharing:
        try:
            route = split_request(ask, placement, story, deps, dice)
        except Fault as fault:
            return WouldAnswer(refusal=_refused(fault))
    split = story.placed.shared.split if story.placed.shared is not None else None
    would_be = decision(route, placement.request, (SUPPOSED,), now_unix, rule.name, pool.name)
    would_be.split = split
    would_be.asked_model = ask.model if ask.model != rule.name else ""
    would_be.rule = match.rule
    would_be.rollout = in_words(story.asked.dealt, story.asked.dealt_prompt)
    return WouldAnswer(would_be.explained())


def _refused(fault: Fault) -> NoPlacement:
    return NoPlacement(f"The request would be refused: {fault.message}", f"request.{fault.param}" if fault.param else "")
