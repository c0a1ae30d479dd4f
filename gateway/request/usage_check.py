"""Compares the usage that an engine reports with what was asked of it and seen of its answer, before anything is billed.

The bounds are those of `tenancy.estimate.usage_bounds`. A report outside them is billed at the bound; the request's Record and its row of
the ledger carry the report, a counter and a line of the log name the backend, and a backend that keeps doing it goes out of rotation where
its pool can spare it (`backends.health`). A report below the bounds is billed and named alike, and counts nothing against the backend: an
engine that shortens prompts by a setting of its own reports less.
"""

from typing import Final

import structlog

from domain.ask import Ask
from domain.usage import Usage
from gateway.deps import Deps
from gateway.story import AttemptFacts, Story
from routing.fleet import Backend
from tenancy.estimate import billable, output_seen, usage_bounds

log = structlog.get_logger("tidegate.usage")

BYTES_A_TOKEN: Final = 3
"""A prompt whose report has more tokens than one for so many bytes is counted, where nobody has counted it before and its pool has the
model's tokenizer. Usual text has four bytes a token and more, so honest engines seldom cause a count."""


async def check_usage(
    reported: Usage, facts: AttemptFacts, ask: Ask, story: Story, deps: Deps, *, backend: Backend, seen_bytes: int
) -> None:
    """Write the usage to bill, and the report where it is implausible, to the facts of an attempt that is over.

    Suspends only while a long prompt is counted that nobody had counted; the facts are within the bounds known so far meanwhile.

    Args:
        reported: the counts as the engine wrote them.
        seen_bytes: bytes of the reply as it came.
    """
    asked, pool = story.asked, backend.pool
    counted = asked.prompt.tokens if asked.prompt is not None and asked.prompt.counted and not ask.media else asked.counted
    context_tokens = deps.context_tokens.get(pool)
    seen = output_seen(ask, reported, seen_bytes)
    bounds = usage_bounds(ask, counted, context_tokens, seen)
    facts.usage = billable(reported, bounds, seen_bytes)
    if counted is None and reported.prompt_tokens * BYTES_A_TOKEN > ask.prompt_bytes and deps.prompt_counts.exact(ask, pool):
        counted = await deps.prompt_counts.count(ask, pool, asked.caller.tenant if asked.caller is not None else "")
        bounds = usage_bounds(ask, counted, context_tokens, seen)
        facts.usage = billable(reported, bounds, seen_bytes)
    if facts.cached is not None and facts.cached > facts.usage.prompt_tokens:
        facts.cached = facts.usage.prompt_tokens
    if bounds.hold(reported):
        return
    facts.reported = in_words(reported)
    health = deps.live.health.get(backend.id)
    if health is not None and health.misreported(facts.reported, deps.clock(), above=bounds.exceeded_by(reported)):
        log.warning(
            "implausible usage",
            backend=backend.id,
            pool=pool,
            request_id=story.own_id,
            reported=facts.reported,
            billed=in_words(facts.usage),
        )


def in_words(usage: Usage) -> str:
    """Counts of tokens in words, for the ledger, the access log and operators."""
    return f"prompt {usage.prompt_tokens}, completion {usage.completion_tokens}"
