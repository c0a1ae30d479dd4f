"""The step of `gateway/lifecycle.py` that reserves: a hold on the worst case in every limit at once, before a backend is chosen.

`worst_case` (`tenancy/estimate.py`) says how much; the counter store decides on all limits and reserves in one step: `Quota.admit`
(`tenancy/quota.py`) in memory, `lua/admit.lua` in Valkey.
"""

import asyncio
from typing import Final

from domain.ask import Ask
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.openai.sizes import with_output_cap
from gateway.placement.place import prompt_of, worth_reading
from gateway.prompt.count import BUDGET_S
from gateway.request.holds import OpenHold
from gateway.request.look_up import may_hit
from gateway.request.permissions import MONEY, OUTPUT_METERS, PROMPT_METERS, check_ledger, check_prompt, output_cap
from gateway.request.rate_limit_replies import fault_of, refused_standing
from gateway.story import Story
from gateway.uncancelled import uncancelled
from policies.compile import ModelRule
from policies.ladder import Mark
from tenancy.estimate import likely_prompt, prompt_for_cap, sound_of, worst_case
from tenancy.grant import Grant
from tenancy.hold import Admission, Hold, Refused
from tenancy.limits import UNUSED, Amounts, Meter
from tenancy.prices import FREE
from tenancy.rights import EVERYTHING

SPENT_METERS: Final = frozenset({Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS, Meter.TOKENS, Meter.UNITS, Meter.COST_NANOUSD})
"""Meters that a hit of the cache uses nothing of. Sound is not kept."""
UNCOUNTED: Final = Amounts()
"""The amounts held for a request without limits."""


async def admit(caller: Caller, ask: Ask, rule: ModelRule, grant: Grant, story: Story, deps: Deps) -> tuple[Ask, OpenHold]:
    """Reserve the request's worst case in every limit at once; where the policy reserves statistically, the likely output instead of the
    longest one. A request that makes no engine compute holds nothing but itself. Returns the Ask, with a cap on its output where a limit
    needs one, and the open hold.

    Raises:
        Fault: the prompt is longer than the caller's rights allow, a limit refuses, or a budget limits the request while the ledger's
            disk is full. Nothing is reserved in these cases.
    """
    if story.trace is not None:
        story.trace.begin("admit", deps.clock())
    rights, live, asked, settled = grant.rights, deps.live, story.asked, story.settled
    if not ask.endpoint.computes:
        if rights.max_input_tokens is not None:
            check_prompt(rights, prompt_for_cap(ask, None))
        return ask, await admit_without_tokens(caller, grant, story, deps)
    prices = live.directory.prices
    price = prices.at(rule.name, live.fleet.pools[rule.pool].revision, story.at_unix) if prices.by_model else FREE
    if asked.price_percent != 100:
        price = price.at_percent(asked.price_percent)
    groups = grant.of_every_request if grant.of_every_request is not None else grant.groups(rule.name, asked.user)
    if not groups and rights is EVERYTHING:
        per_sequence = ask.max_output_tokens if ask.max_output_tokens is not None else asked.output_cap
        hold = Hold(story.own_id, caller.tenant, Amounts(0, 0, 0, 0, 1, *sound_of(ask)) if ask.endpoint.sound else UNCOUNTED)
        return ask, deps.holds.open(hold, price, story, likely_prompt(ask, None), per_sequence, ask.sequences)
    meters = 0
    for group in groups:
        meters |= group.meters
    if meters & MONEY and deps.ledger_full():
        check_ledger(meters, deps.rng.random())
    tokens = None
    countable = ask.token_ids is not None or rule.pool in deps.prompt_counts.pools
    if countable and (rights.max_input_tokens is not None or meters & PROMPT_METERS):
        tokens = await _prompt_tokens(caller, ask, rule, story, deps)
    prompt = likely_prompt(ask, tokens)
    if rights.max_input_tokens is not None:
        check_prompt(rights, prompt_for_cap(ask, tokens))
    cap, context_tokens = asked.output_cap, deps.context_tokens.get(rule.pool)
    if context_tokens is not None or rights.max_output_tokens is not None:
        cap = output_cap(rights, cap, context_tokens, prompt)
    if ask.max_output_tokens is None and (rights.max_output_tokens is not None or meters & OUTPUT_METERS):
        ask = with_output_cap(ask, cap)
    usual = deps.outputs.usual(caller.tenant, rule.name) if asked.statistical else None
    hold = Hold(story.own_id, caller.tenant, worst_case(ask, tokens, cap, price, usual), groups)
    if groups:
        # counters in this process never suspend, so no cancellation can interrupt them
        admission = await (deps.counters.admit(hold) if deps.counters.in_process else _admit_remotely(hold, deps))
        settled.degraded = admission.degraded
        settled.choices = ask.choices
        if isinstance(admission, Refused):
            settled.limit_statuses = (refused_standing(admission),)
            fault = fault_of(admission, hold.amounts, deps.rng.random())
            if not (admission.line.meter in SPENT_METERS and _has_cache_only(story) and may_hit(ask, story, deps)):
                raise fault
            # the refusal counts unless the cache has the answer, which takes a request and a slot
            hold = Hold(story.own_id, caller.tenant, Amounts(), groups)
            admission = await (deps.counters.admit(hold) if deps.counters.in_process else _admit_remotely(hold, deps))
            if isinstance(admission, Refused):
                raise fault
            story.placed.put_off = fault
        settled.limit_statuses = admission.limit_statuses
    per_sequence = ask.max_output_tokens if ask.max_output_tokens is not None else cap
    return ask, deps.holds.open(hold, price, story, prompt, per_sequence, ask.sequences)


def _has_cache_only(story: Story) -> bool:
    """Whether the cache answers a tenant whose tokens or money are spent: the last step of its ladder says so."""
    policy = story.asked.tenant_policy
    return policy is not None and policy.degrade[-1:] == (Mark.CACHE_ONLY,)


async def _prompt_tokens(caller: Caller, ask: Ask, rule: ModelRule, story: Story, deps: Deps) -> int | None:
    """The number of the prompt's tokens, exact or an upper bound; None where it is not known in time. A prompt that routing reads anyway
    is read once, and reading and counting share one wait of `BUDGET_S`."""
    begun = deps.clock()
    pool = deps.live.fleet.pools[rule.pool]
    policy = story.asked.tenant_policy
    adapter = deps.loras.adapter(pool.name, rule.lora) if rule.lora else None
    # a model whose adapter the pool does not have is refused by `choose`, where a fallback may answer
    absent = rule.lora and adapter is None
    if policy is None or absent or not worth_reading(ask, pool, policy.routing):
        tokens = await deps.prompt_counts.count(ask, rule.pool, caller.tenant, wait_s=BUDGET_S)
    else:
        prompt = story.asked.prompt = await prompt_of(ask, pool, adapter, caller.tenant, deps, wait_s=BUDGET_S)
        if prompt.counted or prompt.late:
            tokens = prompt.tokens if prompt.counted else None
        else:
            left_s = max(0.0, BUDGET_S - (deps.clock() - begun))
            tokens = await deps.prompt_counts.count(ask, rule.pool, caller.tenant, wait_s=left_s)
    story.asked.read_s += deps.clock() - begun
    if tokens is not None and deps.prompt_counts.exact(ask, rule.pool):
        story.asked.counted = tokens
    return tokens


async def admit_without_tokens(caller: Caller, grant: Grant, story: Story, deps: Deps) -> OpenHold:
    """Admit a request for which no engine computes: it counts as one request in every limit and takes a slot, and uses no tokens and no
    money. The limits of the model that the Story names count, too.

    Raises:
        Fault: a limit refuses; nothing is reserved then.
    """
    asked, settled = story.asked, story.settled
    hold = Hold(story.own_id, caller.tenant, UNCOUNTED, grant.groups(asked.model, asked.user))
    if hold.groups:
        admission = await (deps.counters.admit(hold) if deps.counters.in_process else _admit_remotely(hold, deps))
        settled.degraded = admission.degraded
        if isinstance(admission, Refused):
            settled.limit_statuses = (refused_standing(admission),)
            raise fault_of(admission, hold.amounts, deps.rng.random())
        settled.limit_statuses = admission.limit_statuses
    return deps.holds.open(hold, FREE, story, 0, 0, 1)


async def _admit_remotely(hold: Hold, deps: Deps) -> Admission:
    try:
        return await deps.counters.admit(hold)
    except asyncio.CancelledError:
        # the store may have opened the hold nevertheless, and no other code would settle it
        await uncancelled(deps.counters.settle(hold, UNUSED))
        raise
