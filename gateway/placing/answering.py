"""A worker's answers to the admin process about its routing decisions: past ones, and where a request would go now."""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from domain.ask import Endpoint
from domain.faults import Fault
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.admission import sticky_key
from gateway.deps import Deps
from gateway.http.openai import interpret
from gateway.http.openai.prompts import with_prompt
from gateway.placing.decisions import decision
from gateway.placing.explaining import EXPLAIN_LINE, WOULD_LINE, Refusal, Would, WouldAnswer
from gateway.placing.placing import decide, prepare
from gateway.rollouts.dealing import deal, deal_prompt
from gateway.ruling import Asked, match_policy
from gateway.sharing import split_request
from gateway.story import Story
from gateway.worker_link import Answer
from policies.rollout.in_force import in_words
from tenancy.rights import EVERYTHING

SUPPOSED: Final = "supposed"
"""Stands in for the request id of a request that is not sent."""


class NoDice:
    """An `Rng` that draws no chance: a decision that nobody follows explores nothing, and takes the first of equal candidates."""

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
        explained = deps.decisions.find(question.decode("ascii", "replace")) if deps is not None else None
        return b"" if explained is None else msgspec.msgpack.encode(explained)

    async def would(question: bytes) -> bytes:
        deps = deps_of()
        asked = msgspec.msgpack.decode(question, type=Would)
        return b"" if deps is None else msgspec.msgpack.encode(await supposed(asked, deps))

    return {EXPLAIN_LINE: explain, WOULD_LINE: would}


async def supposed(asked: Would, deps: Deps) -> WouldAnswer:
    """Where the request would go now. It is not admitted, counted, sent or remembered, and draws no random numbers."""
    try:
        ask = interpret(Endpoint(asked.endpoint), asked.body)
    except Fault as fault:
        return WouldAnswer(refusal=_refused(fault))
    dice = NoDice()
    now = deps.clock()
    now_unix = deps.wall()
    caller = Caller(TenantId(asked.tenant), ProjectId(asked.project), KeyId(""))
    key = sticky_key(ask, ask.user, SUPPOSED)
    story = Story(SUPPOSED, now, now_unix, now, SUPPOSED)
    story.asked.user = ask.user
    if ask.template is not None:
        try:
            dealt = partial(deal_prompt, ask, caller, {}, story, deps)
            ask, _ = with_prompt(ask, deps.live.policies.prompts_for(asked.tenant), key, dealt)
        except Fault as fault:
            return WouldAnswer(refusal=_refused(fault))
    match = match_policy(deps.live.policies, Asked(ask, caller, ask.user, {}, now_unix), EVERYTHING, key)
    if match is None:
        message = f"The policy of tenant {asked.tenant!r} has no model {ask.model[:64]!r}."
        return WouldAnswer(refusal=Refusal(message, "request.model"))
    policy = match.policy
    rule = deal(match.model, ask, asked.tenant, policy, {}, story, deps)
    placing = decide(await prepare(ask, rule, policy, asked.tenant, {}, deps), deps, dice)
    pool = placing.pool
    route = placing.route
    story.placed.lora = placing.demand.lora
    if pool.halves or pool.name in deps.sharing:
        try:
            route = split_request(ask, placing, story, deps, dice)
        except Fault as fault:
            return WouldAnswer(refusal=_refused(fault))
    split = story.placed.shared.split if story.placed.shared is not None else None
    would_be = decision(route, placing.demand, (SUPPOSED,), now_unix, rule.name, pool.name, split)
    would_be.asked_model = ask.model if ask.model != rule.name else ""
    would_be.rule = match.rule
    would_be.rollout = in_words(story.asked.dealt, story.asked.dealt_prompt)
    return WouldAnswer(would_be.explained())


def _refused(fault: Fault) -> Refusal:
    return Refusal(f"The request would be refused: {fault.message}", f"request.{fault.param}" if fault.param else "")
