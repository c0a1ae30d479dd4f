"""What keeps guard rules of outer levels in force: mistakes that involve more than one file, and rules that cannot be used."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies.load import PolicyFolder, load_policies
from policies.yaml.problems import ConfigError

MODELS = "models: [{name: m, pool: chat}, {name: n, pool: chat}]\n"
EVERYONE = f'tenant: "*"\n{MODELS}'
ACME = "tenant: acme\n"
ID = "a rule of an outer level cannot be replaced here"


def guards(*names: str, mode: str = "block") -> str:
    rules = ", ".join(f"{{id: {name}, kind: words, mode: {mode}, words: [secret]}}" for name in names)
    return f"{{rules: [{rules}]}}"


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def problems(folder: Path, detectors: list[str] | None = None, **files: str) -> list[str]:
    written(folder, **files)
    try:
        load_policies(folder, ["chat"], detectors=detectors)
    except ConfigError as error:
        return [str(problem).replace(f"{folder}/", "") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    "outer",
    [f"guards: {guards('keys')}", f"for_project: {{p: {{guards: {guards('keys')}}}}}", f"for_model: {{m: {{guards: {guards('keys')}}}}}"],
)
@pytest.mark.parametrize(
    "inner",
    [
        f"guards: {guards('own', 'keys', mode='flag')}",
        f"for_project: {{p: {{guards: {guards('keys')}}}}}",
        f"for_model: {{m: {{guards: {guards('keys')}}}}}",
        f"rules: [{{name: r, then: {{guards: {guards('keys')}}}}}]",
    ],
)
def test_an_id_of_the_default_policy_stands_in_no_tenants_file(tmp_path: Path, outer: str, inner: str) -> None:
    told = problems(tmp_path, a=f"{ACME}{inner}\n", everyone=f"{EVERYONE}{outer}\n")
    assert len(told) == 1
    assert told[0].startswith("a.yaml:2:")
    assert "there is a guard rule 'keys' already, at everyone.yaml:3, and both would apply to the same requests" in told[0]
    assert told[0].endswith(f"give this one another id; {ID}")


def test_two_projects_models_or_rules_may_have_rules_of_one_id(tmp_path: Path) -> None:
    both = f"for_project: {{p: {{guards: {guards('x')}}}, q: {{guards: {guards('x')}}}}}\n"
    models = f"for_model: {{m: {{guards: {guards('y')}}}, n: {{guards: {guards('y')}}}}}\n"
    one, two = (f"{{name: {name}, if: '{when}', then: {{guards: {guards('z')}}}}}" for name, when in (("r", "stream"), ("s", "tools")))
    assert problems(tmp_path, a=f"{ACME}{MODELS}{both}{models}rules: [{one}, {two}]\n", everyone=EVERYONE) == []
    other = f"{EVERYONE}for_project: {{other: {{guards: {guards('x')}}}}}\n"
    assert problems(tmp_path, everyone=other) == [], "of another project"


def test_two_tenants_may_have_rules_of_one_id(tmp_path: Path) -> None:
    assert problems(tmp_path, a=f"{ACME}guards: {guards('x')}\n", b=f"tenant: b\nguards: {guards('x')}\n", everyone=EVERYONE) == []


NIGHT = f"rules:\n  - {{name: night, then: {{guards: {guards('late')}}}}}\n"


def test_rules_of_a_tenant_take_no_guards_of_the_default_policys_rules_away(tmp_path: Path) -> None:
    own = "rules: [{name: mine, then: {class: batch}}]\n"
    assert problems(tmp_path, everyone=EVERYONE + NIGHT, a=ACME) == [], "who inherits the rules inherits their guards"
    for rules in (own, "rules: []\n"):
        told = problems(tmp_path, a=ACME + rules)
        assert len(told) == 1
        assert told[0].startswith("a.yaml:2:1: rules: would take away the guards of the rule 'night' of '*', at everyone.yaml:4")
        assert told[0].endswith("move those guards to guards, for_project or for_model of '*'")
    assert problems(tmp_path, everyone=EVERYONE + "rules: [{name: night, then: {class: batch}}]\n") == []


def test_an_inherited_rules_guard_keeps_its_id_too(tmp_path: Path) -> None:
    told = problems(tmp_path, everyone=EVERYONE + NIGHT, a=f"{ACME}guards: {guards('late')}\n")
    assert len(told) == 1
    assert "there is a guard rule 'late' already, at everyone.yaml:4" in told[0]


def test_an_inherited_alias_has_no_guards_of_its_own(tmp_path: Path) -> None:
    alias = 'tenant: "*"\nmodels: [{name: m, pool: chat}, {name: nick, alias_of: m}]\n'
    told = problems(tmp_path, everyone=alias, a=f"{ACME}for_model: {{nick: {{guards: {guards('x')}}}}}\n")
    assert len(told) == 1
    assert "'nick' is an alias, and its requests have the guards of 'm'" in told[0]


def test_a_rule_names_a_detector_that_there_is(tmp_path: Path) -> None:
    rule = "{id: judge, kind: detector, mode: block, on_error: closed, detector: gaurd}"
    text = f'tenant: "*"\n{MODELS}guards:\n  rules:\n    - {rule}\n'
    assert problems(tmp_path, everyone=text) == [], "the settings are not known"
    told = problems(tmp_path, detectors=["guard", "moderation"])
    assert len(told) == 1
    assert told[0].startswith(
        "everyone.yaml:5:66: guards.rules[0].detector: there is no detector 'gaurd' in guards.detectors of tidegate.yaml"
    )
    assert told[0].endswith("did you mean 'guard'?")
    assert problems(tmp_path, detectors=[])[0].endswith("write it there")


def test_rules_that_cannot_be_used_are_told_at_every_level_with_their_lines(tmp_path: Path) -> None:
    bad = '{rules: [{id: x, kind: pattern, mode: block, pattern: "a+"}]}'
    text = (
        f"{ACME}{MODELS}guards: {bad}\nfor_project:\n  p: {{guards: {bad.replace('x,', 'y,')}}}\n"
        f"for_model:\n  m: {{guards: {bad.replace('x,', 'z,')}}}\nrules:\n  - {{name: r, then: {{guards: {bad.replace('x,', 'w,')}}}}}\n"
    )
    told = problems(tmp_path, a=text)
    assert [one.partition(": ")[0].rpartition(":")[0] for one in told] == ["a.yaml:3", "a.yaml:5", "a.yaml:7", "a.yaml:9"]
    assert all("cannot be used: " in one and "upper bound" in one for one in told)


def test_a_folder_that_changes_keeps_the_check(tmp_path: Path) -> None:
    folder = PolicyFolder(written(tmp_path, everyone=EVERYONE, a=f"{ACME}guards: {guards('x')}\n"), ["chat"])
    assert folder.read().for_tenant("acme") is not None
    written(tmp_path, everyone=f"{EVERYONE}guards: {guards('x')}\n")
    with pytest.raises(ConfigError, match="there is a guard rule 'x' already"):
        folder.read()


NONSENSE = ("5", "[]", "{}", "{rules: 5}", "{rules: [5]}", "{rules: [{id: [x]}]}", "{rules: [{id: keys}]}", "null", "{rules: {id: keys}}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.sampled_from(NONSENSE), st.sampled_from(("guards: {}", "for_project: {{p: {{guards: {}}}}}", "rules: [{{then: {{guards: {}}}}}]"))
)
def test_nonsense_is_refused_without_an_accident(tmp_path: Path, said: str, where: str) -> None:
    told = problems(tmp_path, a=ACME + where.format(said) + "\n", everyone=f"{EVERYONE}guards: {guards('keys')}\n")
    fine = said == "null" and not where.startswith("rules")
    assert bool(told) is not fine
