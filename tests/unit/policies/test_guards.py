"""Guard rules of several levels add up, whatever the levels say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.build import RuleUnusable
from guardrails.policy import HELD_BYTES
from policies import guards
from policies.compile import PolicySet, TenantPolicy, compiled
from policies.guards import MAX_ADDITIONS, GuardChoice, shared_set
from policies.schema import PolicyDocument

PROJECTS = ("p", "q")
MODELS = ("m", "n")
RULES = ("r", "s")
LEVELS = (
    *("*", "*/for_project/p", "*/for_project/q", "*/for_model/m", "*/for_model/n"),
    *("acme", "acme/for_project/p", "acme/for_project/q", "acme/for_model/m", "acme/for_model/n", "acme/rules/r", "acme/rules/s"),
)
"""Every place where guards may stand, outer ones first."""


def rule(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "kind": "words", "mode": "block", "words": [f"secret {name}"], **more}


def level(*rules: Any, **more: Any) -> dict[str, Any]:
    return {"rules": [rule(one) if isinstance(one, str) else one for one in rules], **more}


def policies(levels: dict[str, dict[str, Any]]) -> PolicySet:
    """A default policy and one of acme, with guards at the named places."""
    models = [{"name": name, "pool": "chat"} for name in MODELS]
    files: dict[str, dict[str, Any]] = {
        "*": {"tenant": "*", "models": models, "for_project": {}, "for_model": {}},
        "acme": {"tenant": "acme", "models": models, "for_project": {}, "for_model": {}, "rules": []},
    }
    for place, said in levels.items():
        file, _, rest = place.partition("/")
        field, _, name = rest.partition("/")
        if field == "rules":
            files[file]["rules"].append({"name": name, "then": {"guards": said}})
        elif field:
            files[file][field][name] = {"guards": said}
        else:
            files[file]["guards"] = said
    return compiled([PolicyDocument.model_validate(file) for file in files.values()])


def acme(levels: dict[str, dict[str, Any]]) -> TenantPolicy:
    policy = policies(levels).for_tenant("acme")
    assert policy is not None
    return policy


def applying(policy: TenantPolicy, project: str = "", model: str = "", rule_name: str = "") -> GuardChoice:
    assert policy.guards is not None
    return policy.guards.of(project, model, rule_name)


def ids(choice: GuardChoice) -> list[str]:
    return [rule.id for rule in choice.rules]


def counts(place: str, project: str, model: str, rule_name: str) -> bool:
    """Whether the guards of a place apply to such a request."""
    return place in ("*", "acme") or place.split("/", 1)[1] in (f"for_project/{project}", f"for_model/{model}", f"rules/{rule_name}")


@given(
    st.dictionaries(
        st.sampled_from(LEVELS), st.tuples(st.integers(1, 3), st.none() | st.integers(4096, 99_999), st.booleans()), min_size=1
    ),
    st.sampled_from(("", "other", *PROJECTS)),
    st.sampled_from(MODELS),
    st.sampled_from(("", *RULES)),
)
def test_the_rules_of_a_request_are_those_of_all_its_levels_outer_ones_first(
    said: dict[str, tuple[int, int | None, bool]], project: str, model: str, rule_name: str
) -> None:
    levels = {
        place: level(
            *(rule(f"l{LEVELS.index(place)}-{n}", default_on=standing or n > 0) for n in range(count)),
            **({} if held is None else {"held_bytes": held}),
        )
        for place, (count, held, standing) in said.items()
    }
    choice = applying(acme(levels), project, model, rule_name)
    wanted = [place for place in LEVELS if place in levels and counts(place, project, model, rule_name)]
    assert ids(choice) == [one["id"] for place in wanted for one in levels[place]["rules"]]
    assert choice.held_bytes == min((levels[place]["held_bytes"] for place in wanted if "held_bytes" in levels[place]), default=HELD_BYTES)
    standing = [one["id"] for place in wanted for one in levels[place]["rules"] if one["default_on"]]
    made = choice.applied()
    assert ([] if made is None else [one.id for one in made.rules]) == standing


@given(st.sets(st.sampled_from(("a", "b", "c", "unknown"))))
def test_what_is_asked_for_only_adds(asked: set[str]) -> None:
    choice = applying(acme({"*": level("a"), "acme": level(rule("b", default_on=False), rule("c", default_on=False))}))
    made = choice.applied(frozenset(asked))
    assert made is not None
    assert [one.id for one in made.rules] == [name for name in ("a", "b", "c") if name == "a" or name in asked]
    assert choice.ids == {"a", "b", "c"}


def test_without_rules_there_is_nothing_to_apply() -> None:
    assert acme({}).guards is None
    policy = acme({"acme/for_project/p": level("a"), "acme/for_model/m": level(rule("b", default_on=False))})
    assert applying(policy, "other", "n").applied() is None
    assert applying(policy, "other", "m").applied() is None
    assert applying(policy, "other", "m").applied(frozenset({"b"})) is not None


def test_guards_are_no_treatment_that_an_inner_level_replaces() -> None:
    policy = acme({"*": level("a"), "acme/for_project/p": level("b"), "acme/rules/r": level("c")})
    assert policy.treating("p", "m").guards is policy.guards
    assert policy.rules is not None
    assert [one.overrides for one in policy.rules.rules] == [{}]


def test_rules_of_the_default_policy_bring_their_guards_to_tenants_who_have_them() -> None:
    model = {"name": "m", "pool": "chat"}
    everyone = {"tenant": "*", "models": [model], "rules": [{"name": "r", "then": {"guards": level("night")}}]}
    made = compiled([PolicyDocument.model_validate(everyone), PolicyDocument.model_validate({"tenant": "acme", "guards": level("own")})])
    policy, other = made.for_tenant("acme"), made.for_tenant("somebody")
    assert policy is not None
    assert other is not None
    assert ids(applying(policy, "p", "m", "r")) == ["own", "night"]
    assert ids(applying(other, "p", "m", "r")) == ["night"]
    assert ids(applying(policy, "p", "m")) == ["own"]


def test_equal_rules_are_made_ready_once_for_all_tenants_and_loads() -> None:
    first = acme({"*": level("a", "b")})
    again = policies({"*": level("a", "b"), "acme/for_project/q": level("c")})
    acme_again, other = again.for_tenant("acme"), again.for_tenant("other")
    assert acme_again is not None
    assert other is not None
    one = applying(first).applied()
    assert one is not None
    assert one is applying(acme_again, "p", "m").applied() is applying(other, "q", "n").applied()
    assert applying(acme_again, "q", "m").applied() is not one
    assert shared_set(one.rules, one.held_bytes + 1) is not one


def test_every_combination_is_ready_when_the_policy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = acme({"*": level("a"), "acme/for_project/p": level("b"), "acme/rules/r": level("c")})

    def never(*_args: object) -> None:
        raise AssertionError("made at a request")

    monkeypatch.setattr(guards, "GuardSet", never)
    for project in ("", "p", "q"):
        for rule_name in ("", "r"):
            assert applying(policy, project, "m", rule_name).applied() is not None
    with pytest.raises(AssertionError, match="made at a request"):
        shared_set(applying(acme({"acme": level(rule("z", default_on=False))})).rules, 4096)


def test_sets_that_are_asked_for_are_bounded_and_the_usual_one_stays() -> None:
    choice = applying(acme({"*": level("a", *(rule(f"r{n}", default_on=False) for n in range(90)))}))
    usual = choice.applied()
    for n in range(90):
        made = choice.applied(frozenset({f"r{n}"}))
        assert made is not None
        assert [one.id for one in made.rules] == ["a", f"r{n}"]
    assert len(choice._made) == MAX_ADDITIONS + 1
    assert choice.applied() is usual


def test_combinations_beyond_the_bound_are_joined_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "MAX_READY", 1)
    monkeypatch.setattr(guards, "MAX_KEPT", 2)
    policy = acme({"*": level("a"), "acme/for_project/p": level("b"), "acme/for_project/q": level("c"), "acme/for_model/m": level("d")})
    for _ in range(2):
        for project in ("p", "q", ""):
            for model in MODELS:
                own = {"p": ["b"], "q": ["c"], "": []}[project]
                assert ids(applying(policy, project, model)) == ["a", *own, *(["d"] if model == "m" else [])]
    assert policy.guards is not None
    assert len(policy.guards._choices) == 2


def test_a_rule_that_cannot_be_used_is_an_error_of_the_load() -> None:
    with pytest.raises(RuleUnusable, match="no kind of secret"):
        acme({"acme/for_project/p": level({"id": "keys", "kind": "secrets", "mode": "block", "types": ["nothing"]})})


def test_rules_of_operators_are_made_ready_once_however_many_tenants_add_to_them() -> None:
    model = {"name": "m", "pool": "chat"}
    everyone = {"tenant": "*", "models": [model], "guards": level("house", {"id": "keys", "kind": "secrets", "mode": "block"})}
    tenants = [{"tenant": f"t{n}", "guards": level(f"own{n}")} for n in range(5)]
    made = compiled([PolicyDocument.model_validate(one) for one in (everyone, *tenants)])
    scanners = []
    for n in range(5):
        policy = made.for_tenant(f"t{n}")
        assert policy is not None
        ready = applying(policy).applied()
        assert ready is not None
        scanners.append([[rule.scanner for rule in ready.chain(direction).rules] for direction in ("input", "output")])  # type: ignore[arg-type]
    assert len({id(one) for tenant in scanners for chain in tenant for one in chain}) == 2 + 5
