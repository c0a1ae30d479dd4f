"""LiteLLM's fallbacks: by condition, without circles, and every entry that cannot be carried is named."""

import pytest
import yaml

from gateway.importing.litellm_sections import carry_sections
from gateway.importing.plan import ImportPlan
from policies.yaml.located import parse_yaml

USUAL = ["no_capacity", "error"]


def carried(**sections: object) -> ImportPlan:
    plan = ImportPlan(models={name: f"pool-{name}" for name in "abcdefg"})
    carry_sections(parse_yaml(yaml.safe_dump(sections).encode(), "config.yaml", None), plan)
    return plan


def said(plan: ImportPlan) -> list[str]:
    return [f"{remark.path}: {remark.text}" for remark in plan.left]


@pytest.mark.parametrize("section", ["router_settings", "litellm_settings"])
def test_lists_of_all_conditions_are_one_list_in_order(section: str) -> None:
    lists = {
        "fallbacks": [{"a": ["b", "c"]}],
        "context_window_fallbacks": [{"a": ["c", "d"]}],
        "content_policy_fallbacks": [{"b": ["d"]}],
    }
    plan = carried(**{section: lists})
    assert plan.fallbacks == {
        "a": [
            {"to": "b", "on": USUAL},
            {"to": "c", "on": ["no_capacity", "context_too_long", "error"]},
            {"to": "d", "on": ["context_too_long"]},
        ],
        "b": [{"to": "d", "on": ["content_filter"]}],
    }
    assert plan.left == []


def test_defaults_are_for_models_without_a_list_of_their_own() -> None:
    plan = carried(litellm_settings={"default_fallbacks": ["b"], "fallbacks": [{"a": ["c"]}]})
    assert plan.fallbacks == {"a": [{"to": "c", "on": USUAL}], **{name: [{"to": "b", "on": USUAL}] for name in "cdefg"}}


def test_a_circle_is_left_where_it_would_close() -> None:
    plan = carried(router_settings={"fallbacks": [{"a": ["b"]}, {"b": ["c"]}, {"c": ["a"]}], "context_window_fallbacks": [{"c": ["a"]}]})
    assert plan.fallbacks["c"] == [{"to": "a", "on": ["context_too_long"]}]
    assert said(plan) == ["router_settings.fallbacks[2].c[0]: would lead back to 'c', and a fallback is no circle"]


def test_aliases_are_those_they_stand_for() -> None:
    plan = carried(router_settings={"model_group_alias": {"x": "a"}, "fallbacks": [{"x": ["b"]}, {"c": ["x"]}]})
    assert plan.fallbacks == {"a": [{"to": "b", "on": USUAL}], "c": [{"to": "a", "on": USUAL}]}


@pytest.mark.parametrize(
    ("lists", "says"),
    [
        ({"fallbacks": [{"gone": ["a"]}]}, "fallbacks[0].gone: is no model that was carried"),
        ({"fallbacks": [{"a": ["gone"]}]}, "fallbacks[0].a[0]: is no model that was carried"),
        ({"fallbacks": [{"a": [{"model": "b"}]}]}, "fallbacks[0].a[0]: is no model that was carried"),
        ({"fallbacks": [{"*": ["a"]}]}, "is for every model; write it as default_fallbacks"),
        ({"fallbacks": [{"a": "b"}]}, "fallbacks[0].a: is no list of models"),
        ({"fallbacks": {"a": ["b"]}}, "fallbacks: is no list of {model: [fallbacks]}"),
        ({"fallbacks": [{"a": ["b", "c", "d", "e", "f"]}]}, "fallbacks[0].a[4]: is more than the 4 fallbacks"),
        ({"fallbacks": [{"a": ["a"]}]}, "would lead back to 'a'"),
        ({"default_fallbacks": ["gone"]}, "default_fallbacks[0]: is no model that was carried"),
    ],
    ids=str,
)
def test_entries_that_cannot_be_carried_are_named(lists: dict[str, object], says: str) -> None:
    plan = carried(router_settings=lists)
    assert any(says in text for text in said(plan)), said(plan)
