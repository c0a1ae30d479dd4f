import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli import app, check
from gateway.cli.check import reference_sections, schemas
from gateway.settings import load_settings
from policies.export import REGENERATE, with_sections
from policies.load import load_policies

ROOT = Path(check.__code__.co_filename).parents[2]
PAGE = (ROOT / "docs" / "configuration.md").read_text()

SETTINGS = """\
pools:
  - name: chat
    model: smollm2-135m
    api_key: {env: TIDEGATE_TEST_ENGINE_KEY}
    backends:
      - {id: a, url: "http://10.0.0.1:8000"}
      - {id: b, url: "http://10.0.0.2:8000"}
"""
POLICY = "tenant: acme\nmodels: [{name: smollm2, pool: chat}]\n"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A sound configuration, and the current folder."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    (tmp_path / "policies" / "acme.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEGATE_TEST_ENGINE_KEY", "x")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_a_sound_configuration_is_summarised(site):
    result = run("check")
    assert result.exit_code == 0
    digest = load_policies(site / "policies", ["chat"]).digest
    assert result.stdout.splitlines() == [
        "data http://127.0.0.1:8080, admin http://127.0.0.1:8081, workers 1",
        "pool chat: smollm2-135m, revision 1, vllm, 2 backends",
        "  a http://10.0.0.1:8000",
        "  b http://10.0.0.2:8000",
        "tenant acme: smollm2 -> chat",
        "every other tenant: no policy, so no model",
        f"ok, policies {digest}",
    ]
    assert result.stderr == ""


def test_every_mistake_of_every_file_is_printed_with_its_place(site):
    (site / "tidegate.yaml").write_text(SETTINGS.replace("id: b", "id: a") + "workrs: 2\n")
    (site / "policies" / "acme.yaml").write_text(POLICY.replace("pool: chat", "pool: chta") + "max_output_tokens: 4k\n")
    result = run("check", "-c", "tidegate.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "policies/acme.yaml:2:26: models[0].pool: there is no pool 'chta'; did you mean 'chat'?",
        "policies/acme.yaml:3:1: max_output_tokens: input should be a valid integer, not '4k'; write a whole number without quotes or unit",
        "tidegate.yaml:7:10: pools[0].backends[1].id: 'a' is the id of pools[0].backends[0] already; ids are unique in the whole fleet",
        "tidegate.yaml:8:1: workrs: is no known key; did you mean workers?",
        "4 problems",
    ]


def test_files_elsewhere_are_named_as_given(site, monkeypatch):
    (site / "tidegate.yaml").write_text("pools: []\n")
    monkeypatch.chdir(site / "policies")
    result = run("check", "-c", str(site / "tidegate.yaml"))
    assert result.stderr.splitlines()[0].startswith(f"{site}/tidegate.yaml:1:1: pools: ")


def test_settings_that_cannot_be_read(site):
    result = run("check", "-c", "none.yaml")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "none.yaml:1:1: cannot be read: No such file or directory; name a file that this user may read",
        "1 problem",
    ]


def test_a_missing_policy_folder_is_told_once(site):
    (site / "policies" / "acme.yaml").unlink()
    (site / "policies").rmdir()
    assert run("check").stderr.splitlines()[-1] == "1 problem"


def test_a_secret_that_is_not_here_is_a_note(site, monkeypatch):
    monkeypatch.delenv("TIDEGATE_TEST_ENGINE_KEY")
    result = run("check")
    assert result.exit_code == 0
    assert result.stderr.startswith("note: pools[0].api_key: environment variable TIDEGATE_TEST_ENGINE_KEY is empty")


def test_wrong_usage():
    assert run("check", "--no-such-option").exit_code == 2


def test_the_written_schemas_are_the_models():
    for name, text in schemas().items():
        assert (ROOT / "docs" / "schema" / name).read_text() == text, f"run: {REGENERATE}"
        jsonschema.Draft202012Validator.check_schema(check_json(text))


def check_json(text):
    return yaml.safe_load(text)  # JSON is YAML


def test_the_reference_is_made_from_the_models():
    assert with_sections(PAGE, reference_sections()) == PAGE, f"run: {REGENERATE}"


def test_the_pages_own_examples_load(tmp_path):
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    settings, policy = blocks[0], blocks[1]
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(settings)
    (tmp_path / "policies" / "acme.yaml").write_text(policy)
    loaded = load_settings(tmp_path / "tidegate.yaml", {})
    assert load_policies(loaded.policies_dir, *loaded.policy_targets).for_tenant("acme") is not None


def test_export_writes_schemas_and_refreshes_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(re.sub(r"(<!-- begin [a-z ]+ -->\n).*?(<!-- end)", r"\1\2", PAGE, flags=re.DOTALL))
    assert page.read_text() != PAGE
    result = run("export-schema", "--folder", str(tmp_path / "schema"), "--reference", str(page))
    assert result.exit_code == 0
    assert page.read_text() == PAGE
    assert sorted(os.listdir(tmp_path / "schema")) == sorted(schemas())


def test_export_without_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("export-schema").exit_code == 0
    assert sorted(os.listdir(tmp_path / "docs")) == ["schema"]
