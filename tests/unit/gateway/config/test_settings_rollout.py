from pathlib import Path

import pytest

from gateway.config.load import ConfigError, Settings, load_settings
from gateway.config.read_secrets import read_rollouts_secret
from gateway.config.secrets import SecretError, WeakSecret

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'


def settings(folder: Path, webhook: str = "") -> Settings:
    (folder / "policies").mkdir(exist_ok=True)
    (folder / "tidegate.yaml").write_text(POOLS + (f"rollouts: {{webhook: {webhook}}}\n" if webhook else ""))
    return load_settings(folder / "tidegate.yaml", {})


def test_nobody_is_told_unless_it_is_asked_for(tmp_path: Path) -> None:
    assert settings(tmp_path).rollouts.webhook is None
    assert read_rollouts_secret(settings(tmp_path)) is None


def test_messages_are_signed_with_a_secret_that_lies_elsewhere(tmp_path: Path) -> None:
    found = settings(tmp_path, '{url: "https://alerts.example.com/hook?team=a", secret: {file: secret}}')
    with pytest.raises(SecretError, match="cannot be read"):
        read_rollouts_secret(found)
    (tmp_path / "secret").write_text("short")
    with pytest.raises(WeakSecret, match="fewer than 24 characters"):
        read_rollouts_secret(found)
    (tmp_path / "secret").write_text("x" * 32 + "\n")
    assert read_rollouts_secret(found) == b"x" * 32


@pytest.mark.parametrize(
    ("webhook", "said"),
    [
        ('{url: "https://h.example/x"}', "secret: is missing"),
        ('{url: "https://h.example/x", secret: abc}', "write {file: path} or {env: NAME}"),
        ('{url: "ftp://h.example/x", secret: {env: S}}', "is no address of a webhook; write https://host/path"),
        ('{url: "https://u:p@h.example/x", secret: {env: S}}', "without credentials"),
        ('{url: "http://169.254.169.254/latest", secret: {env: S}}', "cloud-metadata"),
        ('{url: "https://h.example:0/x", secret: {env: S}}', "is no address of a webhook"),
        ('{url: "https://[x", secret: {env: S}}', "no usable host or port"),
    ],
)
def test_what_is_no_webhook_is_refused(tmp_path: Path, webhook: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, webhook)
    assert said in str(refused.value)
