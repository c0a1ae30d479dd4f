"""The form of launch configurations that the chart of the engines renders from; `tests/charts` compares what comes of it."""

import json
import re

import pytest

from backends.launch.catalogue import load, names
from backends.launch.chart import HOST, chart_form, known_flags
from backends.launch.manifest import manifest_for
from backends.launch.resolve import LaunchError


@pytest.mark.parametrize("name", names())
def test_every_value_is_text_and_every_flag_has_its_place(name: str) -> None:
    config = load(name)
    form = chart_form(config)
    assert [flag["name"] for flag in form["flags"]] == list(config.flags), "Helm sorts mappings, so that flags are a list"
    assert all(isinstance(value, str) for value in form["parameters"].values()), "Helm prints large numbers with an exponent"
    assert all(isinstance(flag.get("text", ""), str) for flag in form["flags"])
    assert form["parameters"]["host"] == HOST
    assert form["events"] is ("kv-events-config" in config.flags)
    known = known_flags(manifest_for(config.engine, config.version))
    assert {flag["name"] for flag in form["flags"]} <= set(known)


def test_a_number_inside_json_stays_one() -> None:
    config = load("vllm-8b").model_copy(update={"flags": {"x": {"port": "{port}", "id": "{id}", "n": 5}}})
    (flag,) = chart_form(config)["flags"]
    text = re.sub(r"\{(\w+)\}", lambda place: {"port": "8000", "id": "a"}[place[1]], flag["text"].replace('{"', '{ "'))
    assert json.loads(text) == {"port": 8000, "id": "a", "n": 5}


def test_json_that_kubernetes_would_expand_is_refused() -> None:
    config = load("vllm-8b").model_copy(update={"flags": {"x": {"a": "$(HOME)"}}})
    with pytest.raises(LaunchError, match=r"which Kubernetes would expand"):
        chart_form(config)
