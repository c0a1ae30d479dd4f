"""The files that people deploy with: the Dockerfile, the compose file of one GPU host, and the unit of systemd.

No daemon, registry or GPU is needed: the tests hold what these files promise, compare copies with their originals, and run the checkers
that are there. That the images of other projects start as the compose file says is not tested.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.cli import app
from gateway.config.load import load_settings
from gateway.config.settings import DrainSettings
from gateway.process.supervisor import ADMIN_END_S, AFTER_GRACE_S
from policies.load import load_policies
from tests.command_line import Commands

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
TOOLS = ROOT / ".venv-image"
COMPOSE: dict[str, Any] = yaml.safe_load((CHARTS / "compose" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNIT = (CHARTS / "systemd" / "tidegate.service").read_text()
SECRETS = {
    name: "a-secret-of-this-test-alone-000" for name in ("DB_PASSWORD", "VALKEY_PASSWORD", "TIDEGATE_PEPPER", "TIDEGATE_ADMIN_TOKEN")
}
ENDS_WITHIN_S = DrainSettings().accept_s + DrainSettings().grace_s + AFTER_GRACE_S + ADMIN_END_S


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined_checked_and_pinned(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert re.search(r":[\w.-]*\d", service["image"]), "a tag that says which version"
    assert not {"privileged", "network_mode", "pid", "cap_add"} & set(service)
    # vLLM's image has no user of its own, and writes caches of compiled kernels into its root
    assert name == "vllm" or (service["read_only"] and not service["user"].startswith(("0", "root")))


def test_strangers_reach_the_data_port_alone() -> None:
    published = {name: port for name, service in SERVICES.items() for port in service.get("ports", ())}
    assert [port for port in published.values() if not port.startswith("127.0.0.1:")] == []
    assert SERVICES["gateway"]["ports"][0] == "8080:8080"
    assert {name for name, service in SERVICES.items() if "front" in service["networks"]} == {"gateway", "prometheus"}
    assert COMPOSE["networks"]["back"] == {"internal": True}


def test_passwords_are_asked_for_and_never_written() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|TOKEN|PEPPER|SECRET", variable):
                assert re.fullmatch(r"\$\{[A-Z_]+:\?write it into \.env\}", value), f"{name}: {variable}"


def test_the_engine_is_started_as_its_launch_configuration_says() -> None:
    shown = Commands().invoke(app, ["engine", "render", "vllm-8b", "--format", "compose"]).stdout
    (rendered,) = yaml.safe_load(shown)["services"].values()
    same = ("image", "entrypoint", "command", "environment", "shm_size", "stop_grace_period", "healthcheck", "deploy")
    assert {key: SERVICES["vllm"][key] for key in same} == {key: rendered[key] for key in same}


@pytest.mark.parametrize("kind", ["compose", "systemd"])
def test_settings_and_policies_load_and_write_below_the_folder_of_the_state(kind: str, tmp_path: Path) -> None:
    shutil.copytree(CHARTS / kind, tmp_path / "etc")
    file = tmp_path / "etc" / "tidegate.yaml"
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tidegate.db").touch()
    file.write_text(file.read_text().replace("/var/lib/tidegate", str(tmp_path / "state")))
    settings = load_settings(file, SECRETS)
    assert load_policies(settings.policies_dir, *settings.policy_targets).policies()
    written = [
        settings.base_dir / settings.stores.directory_file,
        settings.base_dir / settings.stores.policies_copy,
        settings.base_dir / str(settings.routing.index_file),
        settings.base_dir / settings.ledger.folder,
        settings.base_dir / str(settings.files.folder),
        settings.base_dir / str(settings.explanations.folder),
    ]
    assert [path for path in written if not path.is_relative_to(tmp_path / "state")] == []


@pytest.mark.helm
def test_the_compose_file_has_the_shape_of_compose_files() -> None:
    (file,) = TOOLS.glob("lib/python*/site-packages/compose/config/compose_spec.json")
    # this schema is older than the name of a project
    shape = {key: value for key, value in COMPOSE.items() if key != "name"}
    jsonschema.Draft7Validator(json.loads(file.read_text())).validate(shape)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(json.loads(file.read_text())).validate({**shape, "services": {"a": {"imagine": "x"}}})


@pytest.mark.helm
def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([TOOLS / "bin" / "hadolint", CHARTS / "image" / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def directives(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def test_both_managers_wait_for_the_drain() -> None:
    assert float(directives("TimeoutStopSec")[0]) >= ENDS_WITHIN_S
    assert float(SERVICES["gateway"]["stop_grace_period"].removesuffix("s")) >= ENDS_WITHIN_S
    assert (directives("KillMode"), directives("KillSignal"), SERVICES["gateway"].get("stop_signal")) == (["mixed"], ["SIGTERM"], None)


def test_the_unit_is_told_by_the_gateway_and_runs_without_rights() -> None:
    assert (directives("Type"), directives("NotifyAccess"), directives("User")) == (["notify"], ["main"], ["tidegate"])
    assert directives("CapabilityBoundingSet") == [""]
    assert f"/run/{directives('RuntimeDirectory')[0]} " in directives("ExecStart")[0] + " "


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_reads_the_unit_and_rates_it_well(tmp_path: Path) -> None:
    unit = tmp_path / "tidegate.service"
    unit.write_text(UNIT.replace("/opt/tidegate/bin/tidegate", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", unit], capture_output=True, text=True, check=True, env=os.environ
    ).stdout
    (exposure,) = re.findall(r"exposure level for \S+: ([\d.]+)", rated)
    assert float(exposure) <= 1.5
