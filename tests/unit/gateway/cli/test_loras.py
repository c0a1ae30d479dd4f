import json
from pathlib import Path

import pytest

from backends.lora.digest import lora_digest
from gateway.cli import app
from tests.command_line import Commands, Result
from tests.unit.gateway.cli.test_backends import admin

SETTINGS = """
pools:
  - name: chat
    model: m
    loras:
      - {name: support, digest: AA, path: /adapters/support}
      - {name: sales, digest: BB, path: /adapters/sales}
    backends: [{id: gpu-0, url: "http://10.0.0.1:8000"}, {id: gpu-1, url: "http://10.0.0.2:8000"}]
""".replace("AA", "aa" * 32).replace("BB", "bb" * 32)


def run(*arguments: str) -> Result:
    return Commands(env={"COLUMNS": "200"}).invoke(app, ["lora", *arguments])


def test_the_digest_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    result = run("digest", str(tmp_path))
    assert (result.exit_code, result.stdout) == (0, lora_digest(tmp_path) + "\n")


def test_no_adapter_there(tmp_path: Path) -> None:
    result = run("digest", str(tmp_path))
    assert result.exit_code == 1
    assert "there is no adapter_config.json" in result.stderr


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.yaml").write_text(SETTINGS)
    return str(tmp_path / "tidegate.yaml")


def test_what_is_registered_and_where_it_is_loaded(config: str) -> None:
    old, new = "support@000000000000", "support@" + "aa" * 6
    fleet = [
        {"pool": "chat", "backend": "gpu-0", "up": True, "loras": [new, old]},
        {"pool": "chat", "backend": "gpu-1", "up": True, "loras": [new]},
    ]
    with admin(200, json.dumps({"backends": fleet}).encode()) as url:
        result = run("list", "-c", config, "--admin", url)
        assert result.exit_code == 0, result.output
        rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "@" in line]
        assert rows == [
            ["sales", "chat", "bb" * 6, "sales@" + "bb" * 6, "-"],
            ["support", "chat", "aa" * 6, new, "gpu-0, gpu-1"],
            ["-", "chat", "-", old, "gpu-0"],
        ]
        listed = json.loads(run("list", "-c", config, "--admin", url, "--json").stdout)
        assert [(row["lora"], row["digest"], row["backends"]) for row in listed] == [
            ("sales", "bb" * 32, []),
            ("support", "aa" * 32, ["gpu-0", "gpu-1"]),
            ("", "", ["gpu-0"]),
        ]


def test_trouble_is_said(config: str) -> None:
    nobody = run("list", "-c", config, "--admin", "http://127.0.0.1:1")
    assert (nobody.exit_code, "no gateway answers at" in nobody.stderr) == (1, True)
    broken = run("list", "-c", "/nonexistent/tidegate.yaml")
    assert broken.exit_code == 1
    assert "cannot be read" in broken.stderr
