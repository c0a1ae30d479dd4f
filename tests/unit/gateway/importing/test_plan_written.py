import json
from pathlib import Path

import pytest
import yaml

from gateway.importing.plan import FORMAT, ImportPlan, files_of, write

PLAN = ImportPlan(pools=[{"name": "p", "model": "m", "backends": []}], models={"m": "p", "n": "p"}, policies={"acme": ["n"]})


def test_a_plan_is_settings_policies_and_what_comes_later() -> None:
    files = files_of(PLAN, "config.yaml")
    assert set(files) == {"tidegate.yaml", "policies/everyone.yaml", "policies/acme.yaml", "tidegate-import.json"}
    assert yaml.safe_load(files["policies/acme.yaml"]) == {"tenant": "acme", "models": [{"name": "n", "pool": "p"}]}
    assert json.loads(files["tidegate-import.json"])["format"] == FORMAT


def test_all_or_nothing(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("x")
    with pytest.raises(FileExistsError, match="b in"):
        write({"a": "1", "b": "2"}, tmp_path)
    assert not (tmp_path / "a").exists()
    write({"a": "1", "c/d": "2"}, tmp_path)
    assert (tmp_path / "c" / "d").read_text() == "2"
