import json
import re
from pathlib import Path
from typing import get_origin

import jsonschema
import pytest
import trustme

from domain.strict import Strict
from gateway.cli.check import schemas
from gateway.config.listeners import AddressSettings
from gateway.config.load import ConnectionLimits, Settings, load_settings, load_settings_again, read_settings
from gateway.http.edge.connections import EdgeLimits
from gateway.http.edge.per_address import AddressBounds
from policies import load
from policies.yaml.located import read_yaml
from policies.yaml.problems import ConfigError

EXAMPLES = Path(load.__file__).parent / "examples"
GOOD = sorted(EXAMPLES.glob("settings-*.yaml"))
BAD = sorted((EXAMPLES / "bad").glob("settings-*.yaml"))
POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
ENVIRON = {"DB_PASSWORD": "swordfish"}


@pytest.fixture
def written(tmp_path):
    """Writes `tidegate.yaml` beside a policy folder."""
    (tmp_path / "policies").mkdir()

    def write(text, name="tidegate.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refused(path, environ=ENVIRON):
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ)
    return [str(problem).removeprefix(f"{path.parent}/") for problem in caught.value.problems]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.stem)
def test_every_shipped_example_loads(file, written):
    path = written(file.read_text(), file.name)
    settings = load_settings(path, ENVIRON)
    assert [pool.name for pool in settings.pools][:2] == ["chat", "embeddings"]
    jsonschema.validate(read_yaml(path, ENVIRON).data, json.loads(schemas()["tidegate.schema.json"]))


@pytest.mark.parametrize("file", BAD, ids=lambda file: file.stem)
def test_every_bad_example_fails_where_and_how_it_says(file, written):
    problems = refused(written(file.read_text(), file.name))
    expected = [line.removeprefix("# expect: ").split(": ", 1) for line in file.read_text().splitlines() if line.startswith("# expect: ")]
    assert expected
    assert len(problems) == len(expected)
    for (line, words), problem in zip(expected, problems, strict=True):
        assert problem.startswith(f"{file.name}:{line}:")
        assert words in problem


def test_there_are_examples():
    assert len(GOOD) >= 3
    assert len(BAD) >= 20


def leaves(model: type[Strict], prefix=""):
    for name, field in model.model_fields.items():
        inner = [part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, Strict)]
        yield f"{prefix}{name}"
        named = "any-name." if get_origin(field.annotation) is dict else ""
        for part in inner:
            yield from leaves(part, f"{prefix}{name}.{named}")


def _parts(annotation):
    arguments = getattr(annotation, "__args__", ())
    return [part for argument in arguments for part in _parts(argument)] or [annotation]


def test_the_complete_example_has_every_field_and_the_defaults():
    located = read_yaml(EXAMPLES / "settings-complete.yaml", {})
    there = {".".join(step for step in path if isinstance(step, str)) for path in located.positions}
    there |= {re.sub(r"^guards\.detectors\.[^.]+", "guards.detectors.any-name", path) for path in there}
    there |= {re.sub(r"^traces\.exporters\.[^.]+", "traces.exporters.any-name", path) for path in there}
    there |= {re.sub(r"^pools\.scale_roles\.[^.]+", "pools.scale_roles.any-name", path) for path in there}
    there |= {re.sub(r"\.headers\.[^.]+", ".headers.any-name", path) for path in there}
    # TLS is written as a comment: its files cannot be shipped
    assert {field for field in leaves(Settings) if not field.startswith(("data.tls.", "pools.tls."))} <= there
    for section in ("data", "admin", "workers", "stores", "secrets", "policies", "engines", "drain", "log"):
        written = Settings.model_validate({"pools": located.data["pools"], section: located.data[section]})
        assert getattr(written, section) == Settings.model_fields[section].default


def test_every_field_says_what_it_means():
    def undescribed(model, prefix=""):
        for name, field in model.model_fields.items():
            if not field.description:
                yield f"{prefix}{name}"
            for part in _parts(field.annotation):
                if isinstance(part, type) and issubclass(part, Strict):
                    yield from undescribed(part, f"{prefix}{name}.")

    assert list(undescribed(Settings)) == []


def test_limits_are_the_edges_own():
    assert EdgeLimits(**ConnectionLimits().model_dump()) == EdgeLimits()
    assert AddressBounds(**AddressSettings().model_dump()) == AddressBounds()


def test_paths_start_at_the_settings_files_folder(written, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    settings = load_settings(written("stores: {sql: 'sqlite:///a.db'}\n" + POOLS))
    assert settings.base_dir == tmp_path
    assert settings.policies_dir == tmp_path / "policies"
    assert settings.sql_url == f"sqlite:///{tmp_path}/a.db"
    assert settings.data.bind_address == ("127.0.0.1", 8080)
    assert settings.admin.bind_address == ("127.0.0.1", 8081)


def test_tls_files_are_absolute_once_loaded(written, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    certificate = trustme.CA().issue_cert("gate.example")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    settings = load_settings(written("data: {tls: {certificate: both.pem, private_key: both.pem}}\n" + POOLS))
    assert settings.data.tls is not None
    assert settings.data.tls.certificate == settings.data.tls.private_key == str(tmp_path / "both.pem")


def test_settings_are_frozen(written):
    settings = load_settings(written(POOLS))
    with pytest.raises(ValueError, match="frozen"):
        settings.workers = 2  # type: ignore[misc]


def test_variables_come_from_the_environment_handed_in(written):
    path = written("workers: ${WORKERS}\nadmin: {bind: '127.0.0.1:${PORT}'}\n" + POOLS)
    settings = load_settings(path, {"WORKERS": "3", "PORT": "9999"})
    assert (settings.workers, settings.admin.bind_address) == (3, ("127.0.0.1", 9999))
    assert "environment variable WORKERS is not set" in refused(path, {})[0]


def test_variables_come_from_the_process_by_default(written, monkeypatch):
    monkeypatch.setenv("TIDEGATE_TEST_WORKERS", "2")
    assert load_settings(written("workers: ${TIDEGATE_TEST_WORKERS}\n" + POOLS)).workers == 2


def test_a_password_from_the_environment_is_allowed_and_never_shown(written):
    text = "stores: {sql: 'postgresql://gate:${DB_PASSWORD}@db/tidegate'}\nsecrets: {pepper: {env: P}}\n" + POOLS
    assert load_settings(written(text), ENVIRON).sql_url == "postgresql://gate:swordfish@db/tidegate"
    [problem] = refused(written("log: {level: '${DB_PASSWORD}'}\n" + POOLS))
    assert "swordfish" not in problem


@pytest.mark.parametrize(
    "literal", ["sk-EXAMPLEexampleEXAMPLE1234", "swordfish", "{value: swordfish}", "{env: 'sword fish'}", "[swordfish]", "12345678"]
)
def test_literal_secrets_are_refused_and_not_repeated(written, literal):
    problems = refused(written(POOLS.replace("model: m", f"model: m, api_key: {literal}")))
    assert problems
    for problem in problems:
        assert problem.startswith("tidegate.yaml:1:")
        assert literal.strip("[]'{}").split(": ")[-1].strip("'") not in problem


def test_a_pepper_template_with_nothing_filled_in_is_none(written):
    assert load_settings(written("secrets: {pepper: {file: null, env: null}}\n" + POOLS)).secrets.pepper is None


def test_a_reading_goes_on_after_a_mistake(written, tmp_path):
    reading = read_settings(written("workers: 0\n" + POOLS), {})
    assert reading.settings is None
    assert (reading.pools, reading.policies_dir) == (("chat",), tmp_path / "policies")
    assert len(reading.problems) == 1
    assert read_settings(tmp_path / "none.yaml", {}).pools is None


@pytest.mark.parametrize(
    "text",
    ["pools: 5\n", "pools: [5, [], {}]\n", "pools: [{name: [], backends: {}}]\n", "data: []\nadmin: 3\n",
     "data: {bind: 5, tls: x, cors_origins: x}\n",
     "stores: {sql: 5}\nengines: {first_token_cap_s: x}\n", "secrets: {pepper: {}}\n", "policies: [a]\n", "data:\n", ""],
)  # fmt: skip
def test_nonsense_is_refused_without_an_accident(written, text):
    assert refused(written(text))


def test_policies_that_become_the_databases_need_the_first_process_anew(written, tmp_path):
    files, database = POOLS, "policies_from: database\n" + POOLS
    first = load_settings(written(files), {})
    with pytest.raises(ConfigError, match=r"policies_from: became `database` after the first process started.* send SIGUSR2"):
        load_settings_again(written(database), {}, first)
    later = load_settings(written(database), {})
    assert load_settings_again(written(files), {}, later).policies_from == "files"
    (tmp_path / "policies").rmdir()
    assert load_settings(written(database), {}).policies_from == "database", "nothing reads the folder any more"
