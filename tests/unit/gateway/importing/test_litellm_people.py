"""Teams become tenants; of keys only what they may do is carried."""

import json

from gateway.importing.litellm_people import carry_keys, carry_teams
from gateway.importing.plan import ImportPlan
from policies.yaml.located import Located, parse_yaml


def listed(name: str, entries: object) -> Located:
    return parse_yaml(json.dumps({name: entries}).encode(), f"{name}.json", None)


def said(plan: ImportPlan) -> list[str]:
    return [f"{remark.path}: {remark.text}" for remark in plan.left]


def test_names_are_made_of_aliases_and_never_meet() -> None:
    plan = ImportPlan()
    teams = [{"team_id": str(at), "team_alias": alias} for at, alias in enumerate(["Ünder Cover", "a b", "A-B", "", "x" * 200])]
    assert carry_teams(listed("teams", teams), plan) == {"0": "nder-cover", "1": "a-b", "2": "a-b-2", "3": "3", "4": "x" * 58}
    assert plan.left == []


def test_limits_that_cannot_be_are_left() -> None:
    plan = ImportPlan(models={"m": "m"})
    team = {"team_alias": "a", "rpm_limit": -1, "max_budget": 5, "budget_duration": "5h", "models": ["m", "gone"], "blocked": True}
    carry_teams(listed("teams", [team]), plan)
    assert plan.limits == []
    assert plan.policies == {"a": ["m"]}
    assert plan.tenants == [{"name": "a", "label": "a", "disabled": True}]
    assert [line.partition(":")[0] for line in said(plan)] == [
        "teams[0].models[1]", "teams[0].rpm_limit", "teams[0].max_budget",
    ]  # fmt: skip


def test_budgets_of_teams_and_keys_have_the_window_that_is_theirs() -> None:
    """A note says once how such a window counts, however many teams and keys have it."""
    plan = ImportPlan(models={"m": "m"})
    durations = ["1h", "7d", "30d", "14d", "14d"]
    teams = [{"team_alias": f"t{at}", "max_budget": 5, "budget_duration": duration} for at, duration in enumerate(durations)]
    tenants = carry_teams(listed("teams", teams), plan)
    assert [limit["window"] for limit in plan.limits] == ["hour", "week", "month", "rolling-14d", "rolling-14d"]
    carry_keys(listed("keys", [{"key_alias": "k", "max_budget": 1.5, "budget_duration": "1w"}]), plan, tenants)
    assert plan.keys[0]["limits"] == [{"meter": "cost_usd", "window": "week", "amount": "1.50"}]
    assert [remark.text.partition(" (")[0].partition(",")[0] for remark in plan.notes] == [
        "counts per calendar hour in UTC",
        "counts per calendar week in UTC",
        "counts per calendar month in UTC",
        "counts any 14 days on end",
    ]
    assert plan.left == []


def test_all_models_need_no_policy_and_no_models_are_none() -> None:
    plan = ImportPlan(models={"m": "m"})
    teams = [{"team_alias": "a", "models": ["all-proxy-models"]}, {"team_alias": "b", "models": ["no-default-models"]}]
    carry_teams(listed("teams", teams), plan)
    assert plan.policies == {"b": []}


def test_keys_of_unknown_teams_are_left() -> None:
    plan = ImportPlan()
    carry_keys(listed("keys", [{"team_id": "x", "key_alias": "k"}, "hash-only"]), plan, {})
    assert plan.keys == []
    assert [line.partition(": ")[0] for line in said(plan)] == ["keys[1]", "keys[0].team_id"]


def test_lists_are_lists() -> None:
    plan = ImportPlan()
    carry_teams(listed("teams", {"a": 1}), plan)
    carry_keys(listed("keys", 7), plan, {})
    assert ["is no list" in line for line in said(plan)] == [True, True]


def test_fields_nobody_reads_are_said_once() -> None:
    plan = ImportPlan()
    carry_keys(listed("keys", [{"key_alias": "a", "metadata": {"x": 1}, "spend": 1.0, "token": "hash"}] * 3), plan, {})
    assert said(plan) == ["keys: metadata (3 entries) has no counterpart"]
    assert [remark.text.split()[0] for remark in plan.notes] == ["spend", "token"]
    assert "hash" not in str(plan.keys)


def test_a_fallback_that_a_team_or_key_may_not_use_is_told() -> None:
    both = [{"to": "b", "on": ["error"]}, {"to": "c", "on": ["error"]}]
    plan = ImportPlan(models={"a": "a", "b": "b", "c": "c"}, fallbacks={"a": both})
    tenants = carry_teams(listed("teams", [{"team_id": "t", "team_alias": "t", "models": ["a", "b"]}]), plan)
    carry_keys(listed("keys", [{"team_id": "t", "key_alias": "k", "models": ["a"]}, {"team_id": "t", "key_alias": "all"}]), plan, tenants)
    assert said(plan) == [
        "teams[0].models: the fallback of 'a' to 'c', because 'c' is not listed; list it where it may answer in place of 'a'",
        "keys[0].models: the fallback of 'a' to 'b', because 'b' is not listed; list it where it may answer in place of 'a'",
        "keys[0].models: the fallback of 'a' to 'c', because 'c' is not listed; list it where it may answer in place of 'a'",
    ]
