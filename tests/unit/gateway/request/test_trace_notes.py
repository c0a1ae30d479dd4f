"""The notes of a request's course, and who decides about its trace."""

import asyncio
import secrets
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from backends.ports import Call
from domain.faults import Fault, Kind
from gateway.request.trace_notes import MAX_ATTEMPTS, MAX_STEPS, AttemptNote, TraceNotes, TraceTerms, Tracing, trace_ids
from gateway.story import Story
from policies.compile import compiled
from policies.schema import PolicyDocument
from policies.traces import TracePolicy

TERMS = TraceTerms(0.25, 60.0, 5.0)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def ids() -> Iterator[str]:
    return (f"{at:016x}" for at in count(1))


def tracing(terms: TraceTerms = TERMS, *, callers_flag: bool = True, engines_always: bool = False) -> Tracing:
    return Tracing(terms, ids().__next__, callers_flag=callers_flag, engines_always=engines_always)


def story_of(notes: TraceNotes, policy: TracePolicy | None = None) -> Story:
    story = Story("req-1", 0.0, 0.0, 0.0, "req-1", trace=notes)
    if policy is not None:
        documents = [PolicyDocument(tenant="*", traces=policy)]
        story.asked.tenant_policy = compiled(documents).everyone
    return story


def sent(tracing_: Tracing, story: Story) -> bytes:
    note = tracing_.attempt(story, "e0", ("127.0.0.1", 8000), "vllm", 1.0)
    return note.traced(Call("POST", "/", b"", "req-1", b"callers")).traceparent or b""


@given(trace_id=st.integers(min_value=1, max_value=2**128 - 1), ratio=st.floats(0, 1))
def test_the_ratio_keeps_the_traces_that_opentelemetrys_own_sampler_keeps(trace_id: int, ratio: float) -> None:
    notes = TraceNotes(f"{trace_id:032x}", SPAN, 0.0)
    tracing(TraceTerms(ratio, 1.0, 1.0)).settle(notes, None)
    kept = TraceIdRatioBased(ratio).should_sample(None, trace_id, "name").decision is Decision.RECORD_AND_SAMPLE
    assert notes.sampled is kept


@pytest.mark.parametrize("flag", [0, 1, 2, 3])
def test_the_callers_flag_counts_only_where_the_settings_say_so(flag: int) -> None:
    context = f"00-{TRACE}-{SPAN}-{flag:02x}".encode()
    for ratio in (0.0, 1.0):
        for callers_flag in (True, False):
            made = tracing(TraceTerms(ratio, 1.0, 1.0), callers_flag=callers_flag)
            story = story_of(made.opened(context, b"a=b", 0.0))
            value = sent(made, story).decode()
            notes = story.trace
            assert notes is not None
            assert (notes.trace_id, notes.parent_id, notes.state) == (TRACE, SPAN, "a=b")
            assert notes.sampled is (bool(flag & 1) if callers_flag else ratio == 1.0)
            assert value == f"00-{TRACE}-{notes.attempts[0].span_id}-{flag & 2 | notes.sampled:02x}"


def test_engines_are_told_to_record_everything_where_the_settings_say_so() -> None:
    for always, flags in ((True, b"03"), (False, b"02")):
        made = tracing(TraceTerms(0.0, 1.0, 1.0), engines_always=always)
        assert sent(made, story_of(made.opened(None, None, 0.0)))[-2:] == flags


def test_a_policy_changes_what_it_names_and_a_tenant_that_is_not_traced_keeps_the_callers_context() -> None:
    made = tracing()
    cases = [
        (TracePolicy(), TERMS),
        (TracePolicy(ratio=1.0), TraceTerms(1.0, 60.0, 5.0)),
        (TracePolicy(slow_s=2.0, slow_ttft_s=1.0), TraceTerms(0.25, 2.0, 1.0)),
        (TracePolicy(enabled=False), None),
    ]
    for policy, terms in cases:
        story = story_of(made.opened(None, None, 0.0), policy)
        value = sent(made, story)
        assert story.trace is not None
        assert story.trace.terms == terms
        assert (value == b"callers") is (terms is None)


def test_what_is_decided_stays_and_reaches_every_attempt() -> None:
    made = tracing(TraceTerms(1.0, 1.0, 1.0))
    story = story_of(made.opened(None, None, 0.0))
    first = sent(made, story)
    story.asked.tenant_policy = story_of(made.opened(None, None, 0.0), TracePolicy(enabled=False)).asked.tenant_policy
    second = sent(made, story)
    assert first[:36] == second[:36]
    assert first[36:52] != second[36:52]
    assert first[-2:] == second[-2:] == b"03"


def test_steps_and_attempts_are_bounded() -> None:
    made = tracing()
    story = story_of(made.opened(None, None, 0.0))
    assert story.trace is not None
    for at in range(200):
        story.trace.begin("admit", float(at))
        sent(made, story)
    assert len(story.trace.steps) == MAX_STEPS
    assert len(story.trace.attempts) == MAX_ATTEMPTS


async def test_a_call_ends_with_its_fault_or_given_up() -> None:
    loop = asyncio.get_running_loop()
    fault = Fault(Kind.ENGINE_ERROR, "no")
    for end in ("answered", "failed", "given up", "under way", "broken"):
        outcome: asyncio.Future[Fault | None] = loop.create_future()
        if end == "given up":
            outcome.cancel()
        elif end == "broken":
            outcome.set_exception(OSError())
        elif end != "under way":
            outcome.set_result(fault if end == "failed" else None)
        note = AttemptNote(SPAN, "e0", ("h", 1), "vllm", "m", "req-1", 0.0)
        note.over(2.0, outcome)
        assert (note.ended_at, note.fault, note.cancelled) == (2.0, fault if end == "failed" else None, end in ("given up", "under way"))


def test_ids_are_never_zero_and_never_the_same() -> None:
    zeros = iter(["0" * 1024])
    new_id = trace_ids(lambda n: next(zeros, None) or secrets.token_hex(n))
    drawn = [new_id() for _ in range(1000)]
    assert len(set(drawn)) == 1000
    assert {len(one) for one in drawn} == {16}
    assert "0" * 16 not in drawn
