"""What finished attempts teach the router: whom to believe about caches, how fast engines are, how many tokens text makes, and how long
answers get."""

from typing import Final

from backends.limiter import Limiter
from domain.ask import Ask
from gateway.deps import Deps
from gateway.placing.demands import route_of
from gateway.placing.placing import Placing
from gateway.placing.stake import Stake
from gateway.story import Story

MIN_STEPS: Final = 8
"""Tokens of an answer from which on the time of one is told: the first few come together."""


def learn(ask: Ask, placing: Placing, stake: Stake, story: Story, deps: Deps) -> None:
    """A whole answer came. Where nobody else was up there is nothing to learn for but the backend's limit."""
    if stake.limiter is not None and ask.stream and story.usage_reported:
        _pace(stake.limiter, story, ask.sequences)
    if len(placing.pool.up) == 1:
        return
    prompt, demand = placing.prompt, placing.demand
    usage = story.usage if story.usage_reported else None
    prompt_tokens = demand.prompt_tokens
    if usage is not None and usage.prompt_tokens:
        prompt_tokens = usage.prompt_tokens
        if prompt is not None:
            deps.prompts.learn(prompt, placing.pool.name, prompt_tokens)
            if story.cached is not None:
                predicted = placing.held_tokens(stake.backend)
                deps.grounds.compared(stake.backend, predicted, story.cached)
                placing.ground.board.reuse.found(prompt_tokens, story.cached)
                deps.count_prefix(placing.pool.name, stake.backend, predicted, story.cached)
        if ask.sequences:
            template = prompt.template if prompt is not None else 0
            each = -(-usage.completion_tokens // ask.sequences)
            deps.lengths.note(demand.tenant, route_of(ask, placing.pool), template, each, ask.max_output_tokens)
    if ask.stream and placing.adapter is None:  # an adapter's load is no speed of its engine
        cached = story.cached if story.cached is not None else placing.held_tokens(stake.backend)
        _time(stake, story, prompt_tokens, cached, usage.completion_tokens if usage is not None else 0, ask.sequences, deps)


def _pace(limiter: Limiter, story: Story, sequences: int) -> None:
    first, last, usage = story.first_event_at, story.last_event_at, story.usage
    if usage is None or first is None or last is None or not sequences:
        return
    steps = usage.completion_tokens / sequences - 1
    if steps >= MIN_STEPS and last > first:
        limiter.ended((last - first) / steps)


def _time(stake: Stake, story: Story, prompt_tokens: int, cached: float, completion_tokens: int, sequences: int, deps: Deps) -> None:
    first, last = story.first_event_at, story.last_event_at
    calibration = deps.grounds.to_learn(stake.backend)
    if calibration is None or first is None or last is None:
        return
    uncached, ctx = max(1.0, prompt_tokens - cached), (prompt_tokens + cached) / 2
    calibration.first_token(uncached, ctx, stake.queued, first - stake.at, stake.queued_ctx)
    steps = completion_tokens / sequences - 1 if sequences else 0
    if steps >= MIN_STEPS and last > first:
        then, now = stake.began, stake.now()
        calibration.step((then[0] + now[0]) / 2, (then[1] + now[1]) / 2, (last - first) / steps)
    deps.grounds.learned(stake.backend, calibration)
