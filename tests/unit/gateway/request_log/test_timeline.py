"""The timeline of a request: its steps follow each other without a gap and make up its whole duration."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request_log.timeline import NOTES, slowest_step, timeline
from gateway.telemetry.access_log import AccessLogEntry

AT = datetime(2026, 9, 21, tzinfo=UTC)


def entry(**fields: Any) -> AccessLogEntry:
    base: dict[str, Any] = {"outcome": "ok", "status": 200, "duration_us": 0, "overhead_us": 0}
    return AccessLogEntry(AT, "req-1", **(base | fields))


def lengths(**fields: Any) -> dict[str, float]:
    return {step.step: step.length_ms for step in timeline(entry(**fields))}


def test_a_streamed_answer() -> None:
    assert lengths(
        duration_us=1_000_000, overhead_us=2000, body_us=1000, queue_us=300_000, ttft_us=400_000, decode_us=580_000, attempts=1, stream=True
    ) == {"body": 1, "gateway": 2, "queue": 300, "first_token": 98, "decode": 580, "delivery": 19}


def test_a_plain_answer_a_cached_one_and_a_refusal() -> None:
    assert lengths(duration_us=500_000, overhead_us=2000, ttft_us=499_000, attempts=1) == {"gateway": 2, "answer": 497, "delivery": 1}
    assert lengths(duration_us=5000, overhead_us=2000, cache="hit-exact", stream=True) == {"gateway": 2, "cache": 3}
    assert lengths(duration_us=5000, overhead_us=5000, outcome="token_limit", status=429) == {"gateway": 5}
    assert lengths(duration_us=9000, overhead_us=1000, outcome="first_token_timeout", attempts=1) == {"gateway": 1, "engine": 8}


def test_fallbacks_adapters_and_guards_have_steps_of_their_own() -> None:
    steps = lengths(
        duration_us=100_000,
        overhead_us=1000,
        lost_us=20_000,
        lora_wait_us=30_000,
        ttft_us=61_000,
        caller_ttft_us=71_000,
        decode_us=30_000,
        attempts=2,
        stream=True,
    )
    assert steps == {"gateway": 1, "fallback": 20, "lora": 30, "first_token": 10, "guards": 10, "decode": 20, "delivery": 9}


def test_the_slowest_step_is_named() -> None:
    assert slowest_step(timeline(entry(duration_us=9000, queue_us=8000))) == ("queue", 8.0)
    assert slowest_step([]) == ("", 0.0)


lengths_us = st.integers(0, 10**9)


@given(
    st.fixed_dictionaries(
        {name: lengths_us for name in ("duration_us", "overhead_us", "body_us", "queue_us", "lost_us", "lora_wait_us")}
        | {name: st.none() | lengths_us for name in ("ttft_us", "decode_us", "caller_ttft_us")}
        | {"attempts": st.integers(0, 3), "stream": st.booleans(), "cache": st.sampled_from(("", "miss", "hit-exact"))}
    )
)
def test_steps_follow_each_other_and_are_the_whole(fields: dict[str, Any]) -> None:
    steps = timeline(entry(**fields))
    end = 0.0
    for step in steps:
        assert step.length_ms > 0
        assert step.start_ms == pytest.approx(end)
        assert step.note == NOTES[step.step]
        end = step.start_ms + step.length_ms
    known = sum(fields[name] for name in ("overhead_us", "body_us", "queue_us", "lost_us", "lora_wait_us"))
    assert end * 1000 == pytest.approx(max(known, fields["duration_us"]))
