"""Where the time of a finished request went, computed from its line of the access log. Pure.

Steps come one after the other. What is not measured by itself is a remainder: `gateway` is the gateway's own work before the engine is
asked (with the little that it does to hand the first bytes on), `first_token` is what is left of the time to the first token, failed
attempts on other backends included, and `delivery` is what is left of the whole.
"""

from typing import Final

import msgspec

from gateway.telemetry.access_log import AccessLogEntry

NOTES: Final = {
    "body": "the request's bytes arrive",
    "gateway": "the gateway's own work before an engine is asked",
    "queue": "waits for room on an engine",
    "fallback": "models before it that could not answer",
    "lora": "the adapter is loaded",
    "first_token": "the engine reads the prompt; failed attempts are in it",
    "answer": "the engine answers; failed attempts are in it",
    "engine": "an engine is waited for, in vain",
    "guards": "guard rules hold the beginning of the answer back",
    "decode": "the engine writes the answer",
    "cache": "the answer comes from the cache",
    "delivery": "the rest of the answer goes to the caller",
}
"""Each step in words."""


class TimelineStep(msgspec.Struct, frozen=True):
    """One step, in milliseconds from the beginning of the request."""

    step: str
    start_ms: float
    length_ms: float
    note: str


def timeline(entry: AccessLogEntry) -> list[TimelineStep]:
    """The steps that took any time, in their order."""
    lengths_us = _lengths_us(entry)
    steps = []
    start_us = 0
    for name, length_us in lengths_us:
        if length_us > 0:
            steps.append(TimelineStep(name, start_us / 1000, length_us / 1000, NOTES[name]))
            start_us += length_us
    return steps


def slowest_step(steps: list[TimelineStep]) -> tuple[str, float]:
    """The longest step and its milliseconds; an empty name for no step."""
    longest = max(steps, key=lambda step: step.length_ms, default=None)
    return ("", 0.0) if longest is None else (longest.step, longest.length_ms)


def _lengths_us(entry: AccessLogEntry) -> list[tuple[str, int]]:
    before = [
        ("body", entry.body_us),
        ("gateway", entry.overhead_us),
        ("queue", entry.queue_us),
        ("fallback", entry.lost_us),
        ("lora", entry.lora_wait_us),
    ]
    spent_us = sum(length for _, length in before)
    rest_us = max(entry.duration_us - spent_us, 0)
    if entry.cache.startswith("hit-"):
        return [*before, ("cache", rest_us)]
    if entry.attempts == 0:
        return [*before, ("delivery", rest_us)]
    if entry.ttft_us is None:
        return [*before, ("engine", rest_us)]
    first_us = min(max(entry.ttft_us - (spent_us - entry.body_us), 0), rest_us)
    decode_us = entry.decode_us or 0
    held_us = 0 if entry.caller_ttft_us is None else max(entry.caller_ttft_us - entry.ttft_us, 0)
    # what rules hold back comes while the engine already writes: the engine's part is what goes on behind it
    held_us = min(held_us, rest_us - first_us)
    decode_us = min(max(decode_us - held_us, 0), rest_us - first_us - held_us)
    last_us = rest_us - first_us - held_us - decode_us
    first = "first_token" if entry.stream else "answer"
    return [*before, (first, first_us), ("guards", held_us), ("decode", decode_us), ("delivery", last_us)]
