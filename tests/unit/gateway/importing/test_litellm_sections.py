"""Aliases, timeouts and budgets are carried; every other setting is named with its reason."""

import pytest
import yaml

from gateway.importing.litellm_sections import GENERAL, LITELLM, ROUTER, TOP, carry_sections
from gateway.importing.plan import ImportPlan
from policies.yaml.located import parse_yaml

SECTION = {"router_settings": ROUTER, "litellm_settings": LITELLM, "general_settings": GENERAL}


def carried(plan: ImportPlan | None = None, **sections: object) -> ImportPlan:
    plan = plan or ImportPlan(models={"a": "pool-a"})
    carry_sections(parse_yaml(yaml.safe_dump(sections).encode(), "config.yaml", None), plan)
    return plan


def said(plan: ImportPlan) -> list[str]:
    return [f"{remark.path}: {remark.text}" for remark in plan.left]


@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in SECTION.items() for key in keys])
def test_every_known_setting_is_left_with_its_reason(section: str, key: str) -> None:
    plan = carried(**{section: {key: "x"}})
    assert said(plan) == [f"{section}.{key}: {SECTION[section][key]}"]


@pytest.mark.parametrize("key", [*TOP, "made_up"])
def test_every_other_section_is_left(key: str) -> None:
    assert said(carried(**{key: {"A": "secret"}})) == [f"{key}: {TOP.get(key, 'has no counterpart')}"]


def test_unknown_settings_are_named_and_unset_ones_are_not() -> None:
    assert said(carried(litellm_settings={"made_up": 1, "cache": None})) == ["litellm_settings.made_up: has no counterpart"]
    assert said(carried(router_settings=[1])) == ["router_settings: is no mapping"]


def test_aliases_stand_for_models_and_share_their_price_and_limits() -> None:
    plan = ImportPlan(models={"a": "pool-a", "b": "pool-b"}, prices=[{"model": "a", "revision": "*", "usd_per_mtok": {"output": "1"}}])
    aliases = {"x": "a", "y": {"model": "b", "hidden": True}, "z": "gone", "b": "a", "xx": "x"}
    carried(plan, router_settings={"model_group_alias": aliases})
    assert plan.aliases == {"x": "a", "y": "b", "xx": "a"}
    assert plan.models == {"a": "pool-a", "b": "pool-b", "x": "pool-a", "y": "pool-b", "xx": "pool-a"}
    assert [price["model"] for price in plan.prices] == ["a"]
    assert sorted(said(plan)) == [
        "router_settings.model_group_alias.b: is the name of a model already",
        "router_settings.model_group_alias.y.hidden: every model that may be used is listed",
        "router_settings.model_group_alias.z: stands for no model that was carried",
    ]


def test_of_two_timeouts_the_one_counts_that_litellm_uses() -> None:
    plan = carried(litellm_settings={"request_timeout": 600}, router_settings={"timeout": 300})
    assert (plan.engines, plan.left) == ({"plain_timeout_s": 300.0}, [])
    assert any("has no effect in LiteLLM" in remark.text for remark in plan.notes)


@pytest.mark.parametrize(
    ("duration", "window", "noted"),
    [
        (None, "ever", ""),
        ("1h", "hour", "counts per calendar hour in UTC"),
        ("24h", "day", "counts per calendar day in UTC"),
        ("7d", "week", "counts per calendar week in UTC"),
        ("30d", "month", "as in LiteLLM; for any 30 days on end write rolling-30d"),
        ("14d", "rolling-14d", "counts any 14 days on end (window rolling-14d); LiteLLM begins anew every 14 days"),
    ],
)
def test_budgets_have_the_window_that_is_theirs(duration: str | None, window: str, noted: str) -> None:
    plan = carried(litellm_settings={"max_budget": 12.5, "budget_duration": duration})
    assert [(limit["window"], limit["amount"]) for limit in plan.limits] == [(window, "12.50")]
    assert plan.left == []
    assert any(noted in remark.text for remark in plan.notes) if noted else plan.notes == []


@pytest.mark.parametrize("duration", ["30m", "400d", "5h"])
def test_budgets_of_other_durations_are_left_with_what_can_be_carried(duration: str) -> None:
    plan = carried(litellm_settings={"max_budget": 12.5, "budget_duration": duration})
    assert plan.limits == []
    assert "has a budget_duration that no limit has here: 1h, 1d, 7d" in said(plan)[0]


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"litellm_settings": {"max_budget": 0}}, "is no amount"),
        ({"litellm_settings": {"max_budget": "lots"}}, "is no amount"),
        ({"litellm_settings": {"budget_duration": "1d"}}, "no max_budget"),
        ({"litellm_settings": {"request_timeout": "10s"}}, "is no number of seconds"),
        ({"general_settings": {"global_max_parallel_requests": 1.5}}, "is no positive whole number"),
    ],
)
def test_values_that_are_none(sections: dict[str, object], says: str) -> None:
    plan = carried(**sections)
    assert says in said(plan)[0]
    assert plan.limits == []


def test_timeouts_and_the_strategy_we_have() -> None:
    plan = carried(router_settings={"timeout": 30, "routing_strategy": "least-busy"})
    assert (plan.engines, plan.routing, plan.left) == ({"plain_timeout_s": 30.0}, "least_load", [])
