"""The rules of one request, made ready: which look at what, and the digest that parts cached answers."""

import pytest

from guardrails import guard_set
from guardrails.build import RuleUnusable
from guardrails.guard_set import GuardSet
from guardrails.policy import DetectorRule, GuardPolicy, GuardRule

KEYS = {"id": "keys", "kind": "secrets", "mode": "block", "on": ["input"]}
NAMES = {"id": "names", "kind": "words", "mode": "flag", "words": ["bluebird"], "on": ["output"]}
MODEL = {"id": "safe", "kind": "detector", "detector": "guard", "mode": "block", "on_error": "open", "on": ["output", "input"]}


def rules(*written: dict[str, object]) -> list[GuardRule]:
    return GuardPolicy.model_validate({"rules": list(written)}).rules


def test_rules_that_are_evaluated_here_make_chains_and_detectors_stand_apart() -> None:
    guards = GuardSet(rules(KEYS, NAMES, MODEL), 4096)
    assert [rule.scanner.id for rule in guards.chain("input").rules] == ["keys"]
    assert [rule.scanner.id for rule in guards.chain("output").rules] == ["names"]
    assert [rule.id for rule in guards.detectors("input")] == ["safe"]
    assert guards.detectors("tool_results") == ()
    assert guards.chain("input") is guards.chain("input"), "compiling costs milliseconds, so it is done once"


@pytest.mark.parametrize(
    ("written", "requests", "replies", "changes"),
    [((KEYS,), True, False, False), ((NAMES,), False, True, False), ((MODEL,), True, True, True), ((KEYS, NAMES), True, True, False)],
)
def test_what_rules_look_at_decides_what_has_to_be_done(
    written: tuple[dict[str, object], ...], requests: bool, replies: bool, changes: bool
) -> None:
    guards = GuardSet(rules(*written), 4096)
    assert (guards.reads_requests, guards.reads_replies, guards.changes_replies) == (requests, replies, changes)


def test_the_version_is_that_of_the_rules_and_of_nothing_else() -> None:
    assert GuardSet(rules(KEYS, NAMES), 4096).version == GuardSet(rules(KEYS, NAMES), 8192).version
    versions = {GuardSet(rules(*some), 4096).version for some in ((KEYS,), (NAMES,), (KEYS, NAMES), (NAMES, KEYS), (MODEL,))}
    assert len(versions) == 5


def test_a_rule_that_cannot_be_made_is_refused_at_once() -> None:
    with pytest.raises(RuleUnusable, match="there is no kind of secret called nothing"):
        GuardSet(rules({**KEYS, "types": ["nothing"]}), 4096)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"on_error": None}, "has no on_error"),
        ({"hold": False, "mode": "redact"}, "cannot change text that is gone"),
        ({"overlap_chars": 1000}, "less than window_chars"),
    ],
)
def test_a_detector_says_what_happens_without_it(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rules({**MODEL, **change})
    assert isinstance(rules(MODEL)[0], DetectorRule)


def test_rules_that_compare_with_the_system_prompt_know_that_of_their_request_alone() -> None:
    guards = GuardSet(rules({"id": "leak", "kind": "prompt_leak", "mode": "block", "min_words": 5}), 4096)
    said = "I was told: never speak of the blue door to anybody."
    assert guards.needs_system
    bound = guards.bound(["Never speak of the blue door to anybody."], "acme")
    assert bound.chain("output").judge(said).by == "leak"
    assert guards.bound(["Be kind."], "acme").chain("output").judge(said).text == said
    assert guards.chain("output").judge(said).text == said, "unbound, nothing is known"
    assert bound.version == guards.version
    again = guards.bound(["Never speak of the blue door to anybody."], "acme")
    assert again is bound, "making the rules ready costs a millisecond"
    assert guards.bound(["Never speak of the blue door to anybody."], "bolt") is not bound, "its time would tell what acme sends"
    for at in range(100):
        guards.bound([f"prompt {at}"], "acme")
    assert len(guards._bound) <= 32
    plain = GuardSet(rules(KEYS), 4096)
    assert plain.bound(["any"], "acme") is plain


def test_the_version_changes_with_every_member_of_a_rule() -> None:
    people = {"id": "people", "kind": "pii", "types": ["email"], "mode": "redact", "restore": True, "on": ["input"]}
    ticket = {"id": "tickets", "kind": "pattern", "pattern": "T-[0-9]{4,8}", "mode": "block", "on": ["input"], "on_error": "open"}
    changes = [
        (people | {"restore": False}, ticket),
        (people | {"types": ["card"]}, ticket),
        (people | {"mode": "flag", "restore": False}, ticket),
        (people | {"id": "persons"}, ticket),
        (people, ticket | {"pattern": "T-[0-9]{4,9}"}),
        (people, ticket | {"on_error": "closed"}),
        (people, ticket | {"ignore_case": True}),
    ]
    versions = {GuardSet(rules(*written), 4096).version for written in [(people, ticket), *changes]}
    assert len(versions) == len(changes) + 1
    assert all(len(version) == 64 for version in versions)


def test_the_version_of_rules_with_a_classifier_changes_with_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("classifier", "injection")
    before = [GuardSet(rules({"id": "a", "kind": kind, "mode": "block"}), 4096).version for kind in kinds]
    monkeypatch.setattr(guard_set, "packaged_version", lambda: "other weights")
    after = [GuardSet(rules({"id": "a", "kind": kind, "mode": "block"}), 4096).version for kind in kinds]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True]


@pytest.mark.req("R48")
def test_rules_for_personal_data_are_those_of_its_kind_and_of_its_detectors_unless_on_trial() -> None:
    people = {"id": "people", "kind": "pii", "mode": "flag"}
    trial = {"id": "trial", "kind": "pii", "mode": "shadow"}
    guards = GuardSet(rules(KEYS, people, trial, MODEL), 4096)
    assert guards.personal(frozenset()) == {"people"}
    assert guards.personal({"guard"}) == {"people", "safe"}
