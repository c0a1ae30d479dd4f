"""The rules that judge texts which are sent to nobody, and the join of two verdicts on one text."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.request.guard_texts import guards_for, joined
from guardrails.verdict import GuardVerdict, Noted
from policies.compile import TenantPolicy, compiled
from policies.schema import PolicyDocument


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "words", "mode": "block", "words": [name], **more}


POLICY: dict[str, Any] = {
    "tenant": "acme",
    "models": [{"name": "big", "pool": "chat"}, {"name": "small", "pool": "chat"}],
    "guards": {"rules": [rule("always"), rule("extra", default_on=False)]},
    "for_project": {"lab": {"guards": {"rules": [rule("lab")]}}},
    "for_model": {"big": {"guards": {"rules": [rule("of-big")]}}},
}


def policy(**more: Any) -> TenantPolicy:
    made = compiled([PolicyDocument.model_validate({**POLICY, **more})]).for_tenant("acme")
    assert made is not None
    return made


def caller(project: str = "web", **tags: str) -> Caller:
    return Caller(TenantId("acme"), ProjectId(project), KeyId("k"), tags=tuple((f"guard.{name}", tags[name]) for name in tags))


def names(*arguments: Any) -> list[str]:
    guards = guards_for(*arguments)
    return [] if guards is None else [one.id for one in guards.rules]


def test_rules_are_those_of_tenant_project_and_model_and_those_that_are_asked_for() -> None:
    assert names(policy(), caller(), "", ()) == ["always"]
    assert names(policy(), caller(), "big", ()) == ["always", "of-big"]
    assert names(policy(), caller("lab"), "small", ()) == ["always", "lab"]
    assert names(policy(), caller(), "", ("extra",)) == ["always", "extra"]
    assert names(policy(), caller(extra="on"), "", ()) == ["always", "extra"], "the key asks for it"
    assert names(policy(), caller(extra="off", other="on"), "", ()) == ["always"]
    plain = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": POLICY["models"]})]).for_tenant("acme")
    assert names(plain, caller(), "", ()) == names(None, caller(), "", ()) == []


@pytest.mark.parametrize(("which", "model", "name"), [("policy", "small", "of-big"), ("policy", "", "nothing"), ("none", "", "always")])
def test_a_rule_that_does_not_exist_there_is_refused(which: str, model: str, name: str) -> None:
    with pytest.raises(Fault) as refused:
        guards_for(policy() if which == "policy" else None, caller(), model, (name,))
    assert (refused.value.kind, refused.value.param) == (Kind.INVALID_VALUE, "guardrails")


KEY = Noted(0, 3, "keys", "aws_key", "flag")


def test_the_second_verdict_is_of_what_the_first_let_pass() -> None:
    first = GuardVerdict(findings=(KEY,), failed=("a",), text="abc")
    flagged = joined(first, GuardVerdict(findings=(Noted(0, 1, "shield", "violence", "flag"),), text="abc"))
    assert ([found.rule for found in flagged.findings], flagged.text, flagged.refused) == (["keys", "shield"], "abc", False)
    changed = joined(first, GuardVerdict(findings=(Noted(0, 1, "names", "PERSON", "redact"),), text="[PERSON]bc"))
    assert changed.text == "[PERSON]bc"
    blocked = joined(
        first, GuardVerdict(findings=(Noted(1, 2, "shield", "violence", "block"),), ended="block", by="shield", cut=1, text="a")
    )
    assert (blocked.ended, blocked.by, blocked.cut) == ("block", "shield", 1)
    away = joined(first, GuardVerdict(failed=("shield",)))
    assert (away.failed, away.text, away.refused) == (("a", "shield"), "abc", False), "a detector that is away changes no text"
    assert joined(GuardVerdict(ended="block", by="keys"), GuardVerdict(ended="unavailable", by="shield")).by == "keys"
