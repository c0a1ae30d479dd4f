"""What the router learns from finished attempts: how far to trust each backend's cache state, how fast engines are, how many tokens a
text makes, and how long answers get."""

from typing import Final

from domain.ask import Ask
from gateway.deps import Deps
from gateway.placing.demands import route_of
from gateway.placing.placing import Placing
from gateway.placing.stake import Stake
from gateway.story import Story

MIN_STEPS: Final = 8
"""Decode steps from which on their mean time counts: the first few tokens of an answer come together."""


def learn(ask: Ask, placing: Placing, stake: Stake, story: Story, deps: Deps) -> None:
    """A whole answer came. Where nobody else was up there is nothing to learn for but the backend's limit."""
    attempt = story.attempt
    usage, first, last = attempt.usage, attempt.first_event_at, attempt.last_event_at
    steps = usage.completion_tokens / ask.sequences - 1 if usage is not None and ask.sequences else 0.0
    step_s: float | None = None
    if steps >= MIN_STEPS and first is not None and last is not None and last > first:
        step_s = (last - first) / steps
    if stake.limiter is not None and ask.stream and step_s is not None:
        stake.limiter.ended(step_s)
    if len(placing.pool.up) == 1:
        return
    prompt, demand = placing.prompt, placing.demand
    prompt_tokens = demand.prompt_tokens
    if usage is not None and usage.prompt_tokens:
        prompt_tokens = usage.prompt_tokens
        if prompt is not None:
            deps.prompts.learn(prompt, placing.pool.name, prompt_tokens)
            if attempt.cached is not None:
                predicted = placing.held_tokens(stake.backend)
                deps.grounds.compared(stake.backend, predicted, attempt.cached)
                placing.ground.board.reuse.found(prompt_tokens, attempt.cached)
                deps.count_prefix(placing.pool.name, stake.backend, predicted, attempt.cached)
        if ask.sequences:
            template = prompt.template if prompt is not None else 0
            each = -(-usage.completion_tokens // ask.sequences)
            deps.lengths.note(demand.tenant, route_of(ask, placing.pool), template, each, ask.max_output_tokens)
    if ask.stream and placing.adapter is None and first is not None:  # an adapter's load is no speed of its engine
        cached = attempt.cached if attempt.cached is not None else placing.held_tokens(stake.backend)
        _calibrate(stake, prompt_tokens, cached, first - stake.at, step_s, deps)


def _calibrate(stake: Stake, prompt_tokens: int, cached: float, ttft_s: float, step_s: float | None, deps: Deps) -> None:
    """Give the backend's latency model one sample: its time to first token, and the mean time of a decode step."""
    calibration = deps.grounds.to_learn(stake.backend)
    if calibration is None:
        return
    calibration.first_token(max(1.0, prompt_tokens - cached), (prompt_tokens + cached) / 2, stake.queued, ttft_s, stake.queued_ctx)
    if step_s is not None:
        then, now = stake.began, stake.now()
        calibration.step((then[0] + now[0]) / 2, (then[1] + now[1]) / 2, step_s)
    deps.grounds.learned(stake.backend, calibration)
