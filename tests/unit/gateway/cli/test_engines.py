import json
import re
from pathlib import Path

import pytest

from backends.dialects import DIALECTS
from backends.launch.catalogue import names
from gateway.cli import app
from tests.command_line import Commands, Result

DOCS = Path(__file__).parents[4] / "docs"


def run(*arguments: str, group: str = "engine") -> Result:
    return Commands(env={"COLUMNS": "250"}).invoke(app, [group, *arguments])


def test_the_list_says_which_dialects_are_proven_and_names_every_configuration() -> None:
    shown = run("list").stdout
    for dialect in DIALECTS.values():
        (line,) = [line for line in shown.splitlines() if re.match(rf"│ {dialect.name} ", line)]
        assert ("unproven" in line) is not dialect.proven
        assert dialect.known_from in line
    assert sum("not looked at" in line for line in shown.splitlines()) == sum(not one.drains for one in DIALECTS.values())
    assert all(f"│ {name} " in shown for name in names())
    listed = json.loads(run("list", "--json").stdout)
    assert [one["name"] for one in listed["launch"]] == list(names())
    assert {one["dialect"]: one["proven"] for one in listed["dialects"]} == {one.name: one.proven for one in DIALECTS.values()}
    vllm = next(one for one in listed["dialects"] if one["dialect"] == "vllm")
    known = DIALECTS["vllm"]
    assert (vllm["known_from"], vllm["drains"]) == (known.known_from, known.drains)
    assert (vllm["isolation"]["field"], vllm["priority"]["sooner"]) == ("cache_salt", "lower")
    assert vllm["lora"]["load_path"] == "/v1/load_lora_adapter"
    assert vllm["refusals"] == sorted(shape.value for shape in known.errors)


def test_showing_gives_the_reasons_and_with_settings_what_results() -> None:
    shown = run("show", "vllm-8b").stdout
    assert "# The default (sha256) hashes pickled objects" in shown
    assert "max-num-batched-tokens: 8192" in shown
    result = json.loads(run("show", "vllm-8b", "--set", "port=9000").stdout)
    assert result["url"] == "http://127.0.0.1:9000"
    assert result["kv_events"]["endpoint"] == "ipc:///tmp/tidegate-9000-kv.sock"


@pytest.mark.parametrize(("form", "says"), [("shell", "exec vllm serve"), ("compose", "services:"), ("kubernetes", "kind: Deployment")])
def test_every_form_is_written(form: str, says: str) -> None:
    result = run("render", "vllm-8b", "--format", form)
    assert result.exit_code == 0
    assert says in result.stdout
    assert ("prompts in clear" in result.stderr) is (form != "shell")


def test_a_unit_keeps_its_sockets_in_its_runtime_folder() -> None:
    shown = run("render", "vllm-8b", "--format", "systemd", "--executable", "/opt/vllm").stdout
    assert "ipc:///run/tidegate-vllm-8b/tidegate-8000-kv.sock" in shown
    assert "RuntimeDirectory=tidegate-vllm-8b\n" in shown
    refused = run("render", "vllm-8b", "--format", "systemd")
    assert (refused.exit_code, "--executable /path/to/vllm" in refused.stderr) == (1, True)


def test_sizes_of_ones_own_model(tmp_path: Path) -> None:
    model = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 2048}
    (tmp_path / "config.json").write_text(json.dumps({**model, "num_key_value_heads": 2}))
    (tmp_path / "model.safetensors").write_bytes(b"x" * 4096)
    found = json.loads(run("size", "vllm-cpu-test", "--config", str(tmp_path), "--context", "100", "--json").stdout)
    assert (found["blocks"], found["weights_total_bytes"], found["context"]) == (65_536, 4096, 100)
    table = run("size", "vllm-8b", "--memory-gib", "24").stdout
    assert "sequences of 4,096 tokens" in table
    assert run("size", "vllm-8b", "--memory-gib", "8").exit_code == 1
    (tmp_path / "config.json").write_text("[]")
    refused = run("size", "vllm-8b", "--config", str(tmp_path))
    assert (refused.exit_code, "is no model's config.json" in refused.stderr) == (1, True)


def test_the_table_in_the_docs_is_what_is_computed() -> None:
    rows = []
    for name in names():
        found = json.loads(run("size", name, "--json").stdout)
        rows.append(size_row(name, found))
    page = (DOCS / "reference" / "launch.md").read_text()
    assert [row for row in rows if row not in page] == []


def size_row(name: str, found: dict[str, int]) -> str:
    gib = 1024**3
    return (
        f"| `{name}` | {found['weights_bytes'] / gib:,.1f} | {found['kv_token_bytes'] / 1024:,.1f} | {found['kv_bytes'] / gib:,.1f} | "
        f"{found['capacity_tokens']:,} | {found['sequences']:,} of {found['context']:,} |"
    )
