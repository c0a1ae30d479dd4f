"""`guards` of the settings: what a detector has to say of itself, and the mistakes that do not load."""

from pathlib import Path
from typing import get_args

import pytest

from gateway.config.guards import KINDS, DetectorSettings, GuardModelSettings, GuardWebhookSettings
from gateway.config.load import ConfigError, Settings, load_settings
from gateway.config.read_secrets import read_detector_secret, read_every_secret
from gateway.config.secrets import SecretError, WeakSecret
from guardrails.detectors.guard_forms import FORMS

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


def settings(folder: Path, detectors: str) -> Settings:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "tidegate.yaml").write_text(f"{POOLS}guards:\n  detectors:\n    d: {detectors}\n")
    return load_settings(folder / "tidegate.yaml", {})


def test_without_the_section_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(POOLS)
    assert load_settings(tmp_path / "tidegate.yaml", {}).guards.detectors == {}


def test_defaults_are_those_of_a_model_and_of_a_webhook(tmp_path: Path) -> None:
    model = settings(tmp_path, "{kind: guard_model, pool: chat, form: llama_guard}").guards.detectors["d"]
    assert isinstance(model, GuardModelSettings)
    assert (model.timeout_ms, model.at_once_per_tenant, model.prompt) == (150.0, 8, "template")
    hook = settings(tmp_path, '{kind: webhook, url: "https://g.example.com/x", secret: {env: S}}').guards.detectors["d"]
    assert isinstance(hook, GuardWebhookSettings)
    assert (hook.timeout_ms, hook.at_once_per_tenant, hook.private) == (300.0, 2, False)


@pytest.mark.parametrize(
    ("detector", "said"),
    [
        ("{kind: guard_model, pool: chatt, form: llama_guard}", "d.pool: there is no pool 'chatt'; did you mean 'chat'?"),
        ("{kind: moderations, pool: gone}", "d.pool: there is no pool 'gone'"),
        ("{kind: guard_model, pool: chat}", "form: is missing"),
        ("{kind: guard_model, pool: chat, form: llama}", "form: must be"),
        ("{kind: guard_model, pool: chat, form: llama_guard, url: https://x.example.com/}", "url: is no known key"),
        ("{kind: moderations}", "write either url: https://…/v1/moderations or pool: NAME"),
        ("{kind: moderations, pool: chat, url: https://x.example.com/}", "names no endpoint, or two"),
        ("{kind: moderations, pool: chat, api_key: {env: K}}", "write the key at the pool"),
        ("{kind: moderations, url: https://x.example.com/, api_keys: {env: K}}", "did you mean api_key?"),
        ("{kind: moderations, url: http://x.example.com/}", "travel unencrypted; write https://, or private: true"),
        ("{kind: webhook, url: http://x.example.com/, secret: {env: S}}", "travel unencrypted"),
        ("{kind: presidio, url: 'http://127.0.0.1:5002/analyze'}", "travel unencrypted"),
        ("{kind: webhook, url: https://x.example.com/}", "secret: is missing"),
        ("{kind: webhook, url: https://x.example.com/, secret: abc}", "write {file: path} or {env: NAME}"),
        ("{kind: webhook, url: https://u:p@x.example.com/, secret: {env: S}}", "without credentials"),
        ("{kind: presidio, url: 'http://169.254.169.254/', private: true}", "cloud-metadata"),
        ("{kind: presidio, url: 'https://x.example.com/', entities: [person]}", "entities[0]"),
        ("{kind: guard_model, pool: chat, form: llama_guard, max_chars: 200, overlap_chars: 200}", "must be less than max_chars"),
        ("{kind: guard_model, pool: chat, form: llama_guard, timeout_ms: 0}", "timeout_ms"),
        ("{kind: classifier}", "'guard_model', 'moderations', 'webhook', 'presidio'"),
    ],
)
def test_mistakes_with_their_places(tmp_path: Path, detector: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, detector)
    assert said in str(refused.value)
    assert "tidegate.yaml:4:" in str(refused.value)


def test_a_name_that_no_rule_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(f"{POOLS}guards: {{detectors: {{Own: {{kind: moderations, pool: chat}}}}}}\n")
    with pytest.raises(ConfigError, match="Own"):
        load_settings(tmp_path / "tidegate.yaml", {})


def test_secrets_lie_elsewhere_and_a_start_needs_them(tmp_path: Path) -> None:
    hook = settings(tmp_path, '{kind: webhook, url: "https://g.example.com/x", secret: {file: key}}')
    with pytest.raises(SecretError, match="cannot be read"):
        read_every_secret(hook)
    (tmp_path / "key").write_text("short")
    with pytest.raises(WeakSecret, match=r"guards\.detectors\.d\.secret holds fewer than 24 characters"):
        read_every_secret(hook)
    (tmp_path / "key").write_text("x" * 32 + "\n")
    read_every_secret(hook)
    assert read_detector_secret(hook, "d") == "x" * 32
    hosted = settings(tmp_path, '{kind: moderations, url: "https://m.example.com/v1/moderations", api_key: {file: short}}')
    (tmp_path / "short").write_text("key")
    assert read_detector_secret(hosted, "d") == "key", "a bearer token is as long as its service makes it"
    assert read_detector_secret(settings(tmp_path, "{kind: guard_model, pool: chat, form: qwen_guard}"), "d") is None


def test_every_kind_and_every_form_can_be_written() -> None:
    assert set(get_args(get_args(DetectorSettings)[0])) == set(KINDS)
    assert set(get_args(GuardModelSettings.model_fields["form"].annotation)) == set(FORMS)
