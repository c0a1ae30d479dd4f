"""Bodies of `/v1/guard` and `/v1/moderations`: texts that stand in the body and can be answered, or a refusal that names a field."""

import json
from pathlib import Path
from typing import Any

import pytest

from domain.faults import Fault
from gateway.http.faults import render
from gateway.http.openai.guard_texts import (
    DIRECTIONS,
    MAX_TEXTS,
    OPENAI_CATEGORIES,
    guard_question,
    moderation_question,
    render_moderations,
    render_verdicts,
)
from guardrails.verdict import GuardVerdict
from tests.fuzz.mutation import Target

SEEDS = [
    b'{"input":"a text"}',
    b'{"input":["a","b"],"direction":"output","model":"sim","guardrails":["extra"]}',
    b'{"input":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"model":"omni-moderation-latest","user":"ann"}',
    b'{"input":{"model":"sim","messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"tool","content":"b"}]}}',
    b'{"input":{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}],"tools":[{"description":"c"}]}}',
    b'{"input":{"prompt":["a",[1,2]],"suffix":"b","documents":[{"text":"c"}]}}',
]
PIECES = [
    *(b'"input"', b'"direction"', b'"model"', b'"guardrails"', b'"messages"', b'"prompt"', b'"role"', b'"tool"', b'"content"', b'"text"'),
    *(b'"type"', b'"tool_calls"', b'"function"', b'"arguments"', b'"documents"', b'"image_url"', b'"output"', b"[]", b"{}", b"null", b"7"),
    *(b'""', b'"\\ud83d\\ude00"', b'"\\ud800"', b'"\\u0000"', b"\xff", b"[" * 70, b"1e999", b"18446744073709551616"),
]
BODIES = Target("guard_texts", PIECES, SEEDS)


def asked(body: bytes) -> str:
    outcomes, taken = [], False
    for read in (guard_question, moderation_question):
        try:
            question = read(body)
        except Fault as fault:
            assert render(fault, "req-1").status == 400
            outcomes.append(fault.kind.value)
            continue
        taken = True
        document = json.loads(body)
        assert len(question.texts) + len(question.unread) > 0 and len(question.texts) <= MAX_TEXTS
        for text in question.texts:
            assert text.direction in DIRECTIONS
            assert text.path == "input" or text.path.startswith(("input.", "input["))
            assert text.text in strings(document)
        verdicts = [GuardVerdict(text=text.text) for text in question.texts]
        assert json.loads(render_verdicts(question, verdicts, "", "req-1"))["action"] == "pass"
        if read is moderation_question:
            results = json.loads(render_moderations(question, verdicts, "req-1"))["results"]
            assert sum(question.groups) == len(question.texts) and len(results) == len(question.groups) > 0
            assert all(result["categories"] == dict.fromkeys(OPENAI_CATEGORIES, False) for result in results)
        outcomes.append(f"{len(question.groups)} results" if question.groups else f"{min(len(question.texts), 3)} texts")
    return ("ok " if taken else "") + ", ".join(outcomes)


def strings(value: Any) -> list[str]:
    """Every string of a document."""
    if isinstance(value, str):
        return [value]
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in strings(one)]


@pytest.mark.parametrize("path", BODIES.corpus, ids=lambda path: path.stem)
def test_corpus(path: Path) -> None:
    asked(path.read_bytes())


def test_texts_of_bodies_are_theirs_or_a_field_is_named(record_property: Any) -> None:
    record_property("figure", BODIES.run(asked, 3_000))
