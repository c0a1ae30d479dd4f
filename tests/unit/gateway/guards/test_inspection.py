"""Texts on trial: asked of a worker over its socket, and judged by rules as somebody has written them."""

import asyncio
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.guards.inspection import JudgeAsked, TextJudged, WorkersGuards, answers, judged_by_rules, judged_for
from gateway.process.snapshots import WorkerSnapshot
from gateway.process.worker_link import WorkerLink, collect, worker_socket
from policies.compile import compiled
from policies.schema import PolicyDocument

RULES = [
    {"id": "bombs", "kind": "words", "mode": "block", "words": ["bomb"]},
    {"id": "asked", "kind": "words", "mode": "flag", "words": ["rude"], "default_on": False},
    {"id": "calls", "kind": "tools", "mode": "block", "allow": ["search"], "on": ["tool_arguments"]},
]
DOCUMENT = {"tenant": "acme", "models": [{"name": "sim", "pool": "chat"}], "guards": {"rules": RULES}}


@pytest.fixture
async def deps() -> Any:
    policies = compiled([PolicyDocument.model_validate(DOCUMENT)])
    loop = asyncio.get_running_loop()
    return SimpleNamespace(live=SimpleNamespace(policies=policies), unpredictable=random.Random(1), loop=loop, detectors={})


def body(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


def results(judged: TextJudged) -> list[tuple[str, str]]:
    assert not judged.refusal, judged.refusal
    return [(one["path"], one["action"]) for one in msgspec.json.decode(judged.verdicts)["results"]]


async def test_a_workers_policy_in_force_judges(deps: Any) -> None:
    judged = await judged_for(JudgeAsked("acme", "default", body(input=["a bomb", "how rude"])), deps)
    assert results(judged) == [("input[0]", "block"), ("input[1]", "pass")]
    assert [rule.id for rule in judged.rules] == ["bombs", "calls"]
    asked = await judged_for(JudgeAsked("acme", "default", body(input="how rude", guardrails=["asked"])), deps)
    assert results(asked) == [("input", "flag")]
    call = {"id": "c", "type": "function", "function": {"name": "delete", "arguments": "{}"}}
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    whole = await judged_for(JudgeAsked("acme", "default", body(input={"model": "sim", "messages": messages})), deps)
    assert "block" in [action for _, action in results(whole)], "rules over whole calls judge, too"


@pytest.mark.parametrize(
    ("tenant", "fields", "param"),
    [
        ("bolt", {"input": "x"}, "tenant"),
        ("acme", {"input": "x", "model": "other"}, "model"),
        ("acme", {"input": "x", "guardrails": ["none"]}, "guardrails"),
        ("acme", {"input": []}, "input"),
    ],
)
async def test_a_question_that_cannot_be_answered_names_its_field(deps: Any, tenant: str, fields: dict[str, Any], param: str) -> None:
    judged = await judged_for(JudgeAsked(tenant, "default", body(**fields)), deps)
    assert (judged.param, bool(judged.refusal)) == (param, True)


async def test_a_worker_is_asked_over_its_socket(tmp_path: Path, deps: Any) -> None:
    asking = WorkersGuards(tmp_path)
    question = JudgeAsked("acme", "default", body(input="a bomb"))
    assert await asking.judge(question) is None, "there is no worker"
    ready = WorkerSnapshot(index=0, pid=os.getpid(), state="ready", started_at=1.0)
    link = WorkerLink(worker_socket(tmp_path, 0, os.getpid()), lambda _: ready, None, answers(lambda: deps))
    await link.start()
    try:
        assert await collect(tmp_path, with_metrics=False)
        judged = await asking.judge(question)
        assert judged is not None
        assert results(judged) == [("input", "block")]
    finally:
        await link.close()


def test_rules_as_written_judge_and_their_mistakes_have_a_place() -> None:
    judged = judged_by_rules("rules:\n  - {id: people, kind: pii, mode: redact, types: [email]}\n", body(input="to ann@example.com"))
    assert results(judged) == [("input", "change")]
    wrong = judged_by_rules("rules:\n  - {id: people, kind: pii, mood: redact}\n", body(input="x"))
    assert wrong.param == "rules"
    assert wrong.refusal.startswith("rules:2:"), "the line is named"
