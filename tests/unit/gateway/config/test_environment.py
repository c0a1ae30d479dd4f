"""Variables `TIDEGATE__SECTION__KEY` override keys of the file, with the file's checks, and unknown ones are named."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.load import ConfigError, load_settings, read_settings

FILE = """\
data: {bind: "127.0.0.1:9000", cors_origins: ["https://a.example"]}
workers: 2
secrets: {admin_token: {file: token}}
pools:
  - {name: chat, model: m, backends: [{id: e1, url: "http://127.0.0.1:9001"}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    path = tmp_path / "tidegate.yaml"
    path.write_text(FILE)
    return path


def test_a_variable_overrides_the_key_of_its_name_and_no_other(file: Path) -> None:
    environ = {
        "TIDEGATE__WORKERS": "4",
        "TIDEGATE__DATA__BIND": "0.0.0.0:80",
        "TIDEGATE__DATA__LIMITS__MAX_BODY_BYTES": "2048",
        "TIDEGATE__ENGINES__HEARTBEAT_S": "0.5",
        "tidegate__log__access": "false",
        "TIDEGATE__STORES__SQL": "sqlite:///42.db",
    }
    settings = load_settings(file, environ)
    assert (settings.workers, settings.data.bind, settings.data.limits.max_body_bytes) == (4, "0.0.0.0:80", 2048)
    assert (settings.engines.heartbeat_s, settings.log.access, settings.stores.sql) == (0.5, False, "sqlite:///42.db")
    assert settings.data.cors_origins == ["https://a.example"]


def test_lists_and_sections_are_json_and_sections_are_merged(file: Path) -> None:
    pools = '[{"name": "other", "model": "n", "backends": []}]'
    environ = {"TIDEGATE__POOLS": pools, "TIDEGATE__DATA": '{"hosts": ["a"]}', "TIDEGATE__DATA__CORS_ORIGINS": "[]"}
    settings = load_settings(file, environ)
    assert [pool.name for pool in settings.pools] == ["other"]
    assert (settings.data.bind, settings.data.hosts, settings.data.cors_origins) == ("127.0.0.1:9000", ["a"], [])


def test_a_text_stays_a_text_although_it_looks_like_a_number(file: Path) -> None:
    environ = {"TIDEGATE__SECRETS__ADMIN_TOKEN__FILE": "42", "TIDEGATE__ROUTING__REGION": "7"}
    settings = load_settings(file, environ)
    assert settings.secrets.admin_token is not None
    assert (settings.secrets.admin_token.file, settings.routing.region) == ("42", "7")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("TIDEGATE__WORKERS", "many", "environment variable TIDEGATE__WORKERS: workers: must be a whole number"),
        ("TIDEGATE__WORKERS", "65", "environment variable TIDEGATE__WORKERS: workers: must be at most 64"),
        ("TIDEGATE__DATA__BIND", "nowhere", "environment variable TIDEGATE__DATA__BIND: data.bind: "),
        ("TIDEGATE__POOLS", "[", "environment variable TIDEGATE__POOLS: pools: is no JSON; write a mapping as"),
        ("TIDEGATE__POOLS", '[{"name": "a"}]', "environment variable TIDEGATE__POOLS: pools[0].model: is missing"),
        ("TIDEGATE__DATA", '{"bnid": 1}', "environment variable TIDEGATE__DATA: data.bnid: is no known key; did you mean bind?"),
        ("TIDEGATE__ADMIN__BIND", "127.0.0.1:9000", "environment variable TIDEGATE__ADMIN__BIND: admin.bind: the data port"),
    ],
)
def test_a_mistake_names_its_variable_and_not_its_value(file: Path, name: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {name: text})
    assert sentence in str(caught.value)
    assert f"'{text}'" not in str(caught.value)


def test_mistakes_of_the_file_keep_their_line(file: Path) -> None:
    file.write_text(FILE + "wrokers: 3\n")
    with pytest.raises(ConfigError, match=r"tidegate\.yaml:6:1: wrokers: is no known key; did you mean workers\?"):
        load_settings(file, {"TIDEGATE__LOG__LEVEL": "debug"})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("TIDEGATE__DATA__BNID", "did you mean TIDEGATE__DATA__BIND?"),
        ("TIDEGATE__POOLS__0__MODEL", "a list is set as a whole, in JSON, with TIDEGATE__POOLS"),
        ("TIDEGATE__COLOUR", "names are TIDEGATE__SECTION__KEY"),
        ("TIDEGATE__WORKERS__MANY", "did you mean TIDEGATE__WORKERS?"),
    ],
)
def test_an_unknown_variable_changes_nothing_and_is_named(file: Path, name: str, remedy: str) -> None:
    reading = read_settings(file, {name: "x"})
    assert reading.settings == load_settings(file, {})
    assert len(reading.warnings) == 1
    assert f"{name} names no setting, so it changes nothing; {remedy}" in reading.warnings[0]


def test_empty_variables_and_those_with_one_underscore_are_none_of_them(file: Path) -> None:
    environ = {"TIDEGATE__WORKERS": "", "TIDEGATE_ADMIN_TOKEN": "x", "TIDEGATE_LOG_FORMAT": "json", "TIDEGATE_WORKERS": "9"}
    reading = read_settings(file, environ)
    assert (reading.settings, reading.warnings) == (load_settings(file, {}), ())


def test_the_library_is_imported_only_where_a_variable_is_set(file: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\nfrom gateway.config.load import load_settings\n"
        "load_settings(Path(sys.argv[1]), {})\nassert 'pydantic_settings' not in sys.modules\n"
        "print(load_settings(Path(sys.argv[1]), {'TIDEGATE__WORKERS': '3'}).workers, 'pydantic_settings' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "True"]
