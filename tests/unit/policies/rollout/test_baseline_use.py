"""Which models and prompts of policies still lead to the baseline of a rollout."""

from pathlib import Path
from typing import Any

import pytest

from policies.load import load_policies
from policies.rollout.baseline_use import uses_of_baseline
from policies.rollout.document import RolloutDocument

POLICIES = {
    "everyone": 'tenant: "*"\nmodels: [{name: chat, pool: chat}, {name: new, pool: chat-v2}]\n',
    "acme": "tenant: acme\nmodels: [{name: big, pool: chat-v2}, {name: alias, alias_of: big}]\n",
    "bolt": "tenant: bolt\nmodels: [{name: mix, pools: [{pool: chat, weight: 1}, {pool: chat-v2, weight: 9}]}, {name: m, alias_of: mix}]\n",
    "heir": "tenant: heir\n",
}


def uses(folder: Path, **fields: Any) -> list[str]:
    for name, text in POLICIES.items():
        (folder / f"{name}.yaml").write_text(text)
    return list(uses_of_baseline(load_policies(folder, None), RolloutDocument(name="v2", baseline="chat", canary="chat-v2", **fields)))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["tenant bolt, model mix", "tenant heir, model chat", "every other tenant, model chat"]),
        ({"tenants": ["acme", "bolt"]}, ["tenant bolt, model mix"]),
        ({"tenants": ["somebody"]}, ["every other tenant, model chat"]),
        ({"models": ["chat"]}, ["tenant heir, model chat", "every other tenant, model chat"]),
        ({"tenants": ["acme"], "models": ["big"]}, []),
    ],
)
def test_models_are_named_whose_requests_go_to_the_baseline(tmp_path: Path, fields: dict[str, Any], expected: list[str]) -> None:
    assert uses(tmp_path, **fields) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{id: help, version: 1}", ["tenant acme, prompt help"]),
        ("{id: help, versions: [{version: 1, weight: 0}, {version: 2, weight: 1}]}", []),
        ("{id: help, versions: [{version: 1, weight: 1}, {version: 2, weight: 1}]}", ["tenant acme, prompt help"]),
        ("{id: other, version: 1}", []),
    ],
)
def test_prompts_are_named_whose_requests_get_the_old_version(tmp_path: Path, written: str, expected: list[str]) -> None:
    folder, prompts = tmp_path / "policies", tmp_path / "prompts"
    folder.mkdir()
    prompts.mkdir()
    (folder / "acme.yaml").write_text(f"tenant: acme\nmodels: [{{name: chat, pool: chat}}]\nprompts: [{written}]\n")
    for name in ("help@1", "help@2", "other@1"):
        prompt_id, version = name.split("@")
        (prompts / f"{name}.yaml").write_text(PROMPT.format(id=prompt_id, version=version))
    document = RolloutDocument(name="help-2", of="prompt", baseline="help@1", canary="help@2")
    assert list(uses_of_baseline(load_policies(folder, None, None, prompts), document)) == expected


PROMPT = "id: {id}\nversion: {version}\nmessages: [{{role: system, content: Help.}}]\n"
