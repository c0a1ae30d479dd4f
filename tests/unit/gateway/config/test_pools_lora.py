from pathlib import Path

import pytest
from pydantic import ValidationError

from backends.lora.residency import Adapter
from gateway.config.load import read_settings
from gateway.config.pools import LoraSettings, PoolSettings
from policies.load import load_policies
from policies.yaml.problems import ConfigError
from tenancy.isolation import PREFIX

GOOD = {"name": "support-bot", "digest": "3c" * 32, "path": "/adapters/support-bot"}


def test_what_is_registered_is_what_engines_are_told() -> None:
    lora = LoraSettings.model_validate(GOOD)
    assert Adapter(lora.name, lora.digest, lora.path).served == "support-bot@3c3c3c3c3c3c"


@pytest.mark.req("R42")
@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "3c" * 31},
        {"digest": "3C" * 32},
        {"digest": ""},
        {"name": "support@bot"},
        {"name": "a:b"},
        {"name": "a/b"},
        {"name": f"{PREFIX}bot"},
        {"path": ""},
        {"rank": 8},
    ],
    ids=str,
)
def test_what_cannot_be_pinned_or_could_be_mistaken_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LoraSettings.model_validate(GOOD | wrong)


@pytest.mark.parametrize("folder", ["adapters", "/", "/a/../b", "/a//b", "/a/.", "//a", "/a\nb", ""], ids=repr)
def test_a_folder_of_registered_adapters_is_an_absolute_path_without_detours(folder: str) -> None:
    with pytest.raises(ValidationError, match="is no absolute path without"):
        PoolSettings.model_validate({"name": "p", "model": "m", "backends": [], "lora_folder": folder})


def test_policies_may_name_adapters_that_come_later_only_where_some_may_be_registered(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text('tenant: "*"\nmodels:\n  - {name: m, pool: p, lora: later}\n')
    pool = "pools:\n  - {name: p, model: m, backends: []%s}\n"
    for text, problems in ((pool % "", ["the pool 'p' has no adapter 'later'"]), (pool % ", lora_folder: /adapters", [])):
        (tmp_path / "tidegate.yaml").write_text(text)
        reading = read_settings(tmp_path / "tidegate.yaml")
        assert reading.settings is not None
        for pools, loras in ((reading.pools, reading.loras), reading.settings.policy_targets):
            try:
                load_policies(tmp_path / "policies", pools, loras)
                found = []
            except ConfigError as error:
                found = [problem.message for problem in error.problems]
            assert found == problems
