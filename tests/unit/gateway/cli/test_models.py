"""`tidegate model`: digests, and the registry on a database without a gateway."""

import json
from pathlib import Path

import pytest

from gateway.cli import app
from tests.admin_socket import admin_socket
from tests.command_line import Commands, Result
from tests.unit.backends.launch.test_weights_digest import CONFIG, safetensors

SETTINGS = """
pools:
  - name: chat
    model: tide-8b
    revision: v1
    pinned: {{digest: "sha256:{digest}"}}
    backends: [{{id: gpu-0, url: "http://10.0.0.1:8000"}}]
"""


def run(*arguments: str) -> Result:
    return Commands(env={"COLUMNS": "250"}).invoke(app, ["model", *arguments])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(safetensors())
    return folder


def test_the_digest_is_printed_and_compared(weights: Path, tmp_path: Path) -> None:
    printed = run("digest", str(weights))
    assert (printed.exit_code, printed.stdout.startswith("sha256:")) == (0, True)
    digest = printed.stdout.strip()
    assert json.loads(run("digest", str(weights), "--json").stdout) == {
        **{"digest": digest, "architecture": "LlamaForCausalLM", "precision": "bfloat16", "context": 32768},
        "bytes": sum(file.stat().st_size for file in weights.iterdir()),
    }
    assert run("digest", str(weights), "--expect", digest).exit_code == 0
    differs = run("digest", str(weights), "--expect", "sha256:" + "0" * 64)
    assert (differs.exit_code, "and not sha256:000" in differs.stderr) == (1, True)
    assert (none := run("digest", str(tmp_path / "none"))).exit_code == 1, none.output


@pytest.fixture
def config(tmp_path: Path, weights: Path) -> str:
    digest = run("digest", str(weights)).stdout.strip().removeprefix("sha256:")
    (tmp_path / "policies").mkdir()
    (tmp_path / "tidegate.pepper").write_text("0" * 64)
    (tmp_path / "tidegate.yaml").write_text(SETTINGS.format(digest=digest))
    return str(tmp_path / "tidegate.yaml")


def test_a_revision_is_registered_from_its_files_and_lives_on_the_database(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")
    made = run("register", "tide-8b@v1", str(weights), "--tp", "4", "--adapter", "support", "--launch", "vllm-8b", *at)
    assert made.exit_code == 0, made.output
    assert "tide-8b@v1 registered: sha256:" in made.stdout
    shown = json.loads(run("show", "tide-8b@v1", "--json", *at).stdout)
    assert (shown["context_tokens"], shown["precision"], shown["architecture"]) == (32768, "bfloat16", "LlamaForCausalLM")
    assert (shown["layout"]["tensor"], shown["adapters"], shown["launch"], shown["pools"]) == (4, ["support"], "vllm-8b", ["chat"])
    assert "pinned: {model: tide-8b, digest: sha256:" in run("show", "tide-8b@v1", *at).stdout
    assert "tp4" in run("show", "tide-8b@v1", *at).stdout
    digest = shown["digest"]
    other = run("register", "tide-8b@v0", "s3://bucket/tide", "--digest", digest, "--precision", "fp8", *at)
    assert other.exit_code == 0, other.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in run("list", *at).stdout.splitlines() if "@v" in line]
    assert [(row[0], row[2], row[4], row[6]) for row in rows] == [
        ("tide-8b@v0", "fp8", "1 GPU", "registered"),
        ("tide-8b@v1", "bfloat16", "tp4", "registered"),
    ]
    used = run("retire", "tide-8b@v1", *at)
    assert (used.exit_code, f"of {config}, pool chat is pinned to it" in used.stderr) == (1, True)
    retired = run("retire", "tide-8b@v0", "--yes", *at)
    assert retired.stdout == (
        f"tide-8b@v0 is retired; no pool of {config} is pinned to it, and gateways with other settings were not asked\n"
    )
    assert json.loads(run("show", "tide-8b@v0", "--json", *at).stdout)["retired_unix"] is not None


def test_pools_that_disagree_with_the_registry_are_named(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")
    other = "sha256:" + "ef" * 32
    made = run("register", "tide-8b@v1", "s3://bucket/tide", "--digest", other, *at)
    assert made.exit_code == 0, made.output
    words = f"note: pool chat is pinned to tide-8b@v1 with another digest than the registry has, {other}: correct the digest"
    assert words in made.stderr
    assert words in run("show", "tide-8b@v1", *at).stderr
    assert "chat (other digest)" in run("list", *at).stdout
    assert json.loads(run("show", "tide-8b@v1", "--json", *at).stdout)["disagreeing_pools"] == ["chat"]


def test_a_pool_that_is_pinned_to_a_retired_revision_is_named(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")
    assert run("register", "tide-8b@v0", str(weights), *at).exit_code == 0
    assert run("retire", "tide-8b@v0", "--yes", *at).exit_code == 0
    assert "note:" not in run("show", "tide-8b@v0", *at).stderr
    Path(config).write_text(Path(config).read_text().replace("revision: v1", "revision: v0"))
    assert "note: pool chat is pinned to tide-8b@v0, which is retired: pin to another revision" in run("show", "tide-8b@v0", *at).stderr
    assert "retired, pinned" in run("list", *at).stdout


def test_nothing_is_asked_before_a_revision_is_known(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")

    def retire(reference: str, answer: str) -> Result:
        return Commands(env={"COLUMNS": "250"}).invoke(app, ["model", "retire", reference, *at], input=answer)

    unknown = retire("tide-8b@v9", "")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "there is no revision tide-8b@v9" in unknown.stderr
    assert run("register", "tide-8b@v0", str(weights), *at).exit_code == 0
    refused = retire("tide-8b@v0", "n\n")
    assert refused.exit_code == 1
    assert f"Retire tide-8b@v0? As far as is known here, no pool of {config} is pinned to it" in refused.output
    assert json.loads(run("show", "tide-8b@v0", "--json", *at).stdout)["retired_unix"] is None
    assert retire("tide-8b@v0", "y\n").exit_code == 0
    again = retire("tide-8b@v0", "")
    assert (again.exit_code, again.stdout.startswith("tide-8b@v0 is retired already, since 20")) == (0, True)


def test_a_running_gateway_is_asked_for_the_pools_of_its_own_settings(tmp_path: Path) -> None:
    digest = "sha256:0123456789ab" + "cd" * 26
    with admin_socket(tmp_path) as port:
        for revision in ("v0", "v1"):
            assert port.run("model", "register", f"tide-8b@{revision}", "s3://bucket/tide", "--digest", digest).exit_code == 0
        used = port.run("model", "retire", "tide-8b@v1")
        assert used.exit_code == 1
        assert f"tide-8b@v1 is in use: of the gateway at {port.url}, pool pinned-chat is pinned to it" in used.stderr
        retired = port.run("model", "retire", "tide-8b@v0", "--yes")
        assert retired.exit_code == 0
        assert f"tide-8b@v0 is retired; no pool of the gateway at {port.url} is pinned to it" in retired.stdout


def test_what_cannot_be_registered_says_what_to_do(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")
    for arguments, words in {
        ("tide-8b", str(weights)): "write MODEL@REVISION",
        ("tide-8b@v1", "models/x"): "is no reference to weights",
        ("tide-8b@v1", "s3://bucket/x"): "name a copy with --files, or say the digest",
        ("tide-8b@v1", str(weights), "--digest", "sha256:" + "0" * 64): "and not sha256:000",
        ("tide-8b@v1", str(weights), "--launch", "vllm-9b"): "did you mean vllm-8b?",
    }.items():
        refused = run("register", *arguments, *at)
        assert refused.exit_code in (1, 2), refused.output
        assert words in refused.stderr
    unknown = run("show", "tide-8b@v9", *at)
    assert (unknown.exit_code, "no revision tide-8b@v9; `tidegate model list`" in unknown.stderr) == (1, True)


def test_a_launch_of_a_revision_serves_its_weights_under_a_name_that_proves_them(config: str, weights: Path) -> None:
    at = ("-c", config, "--offline")
    assert run("register", "tide-8b@v1", str(weights), *at).exit_code == 0
    digest = run("digest", str(weights)).stdout.strip()

    def engine(*arguments: str) -> Result:
        return Commands(env={"COLUMNS": "250"}).invoke(app, ["engine", *arguments])

    rendered = engine("render", "vllm-8b", "--revision", "tide-8b@v1", *at)
    assert rendered.exit_code == 0, rendered.output
    assert f"tidegate model digest {weights} --expect {digest}" in rendered.stdout
    assert f"--served-model-name tide-8b tide-8b@sha256-{digest[7:19]}" in rendered.stdout
    apart = engine("render", "vllm-70b-tp4", "--revision", "tide-8b@v1", *at)
    assert (apart.exit_code, "registered for tensor parallelism 1, and --tensor-parallel-size is 4" in apart.stderr) == (1, True)
    assert "there is no revision tide-8b@v7" in engine("render", "vllm-8b", "--revision", "tide-8b@v7", *at).stderr
    (weights / "config.json").write_text("{}")
    refused = engine("run", "vllm-8b", "--set", f"digest={digest}", "--set", f"model={weights}", "--executable", "/bin/false")
    assert (refused.exit_code, "the engine is not started: " in refused.stderr, "these are other weights" in refused.stderr) == (
        1,
        True,
        True,
    )
    other = run("register", "tide-8b@v2", "s3://bucket/x", "--digest", digest, *at)
    assert other.exit_code == 0
    apart = engine("render", "vllm-8b", "--revision", "tide-8b@v2", *at)
    assert apart.exit_code == 1
    assert "the weights of tide-8b@v2 lie at s3://bucket/x, which no engine opens: say where they are copied to" in apart.stderr
    copied = engine("render", "vllm-8b", "--revision", "tide-8b@v2", "--set", "model=/models/copy", *at)
    assert "vllm serve /models/copy" in copied.stdout, copied.output
    told = run("register", "tide-8b@v3", str(weights), "--context", "8192", "--tokenizer", "/tokenizers/tide", *at)
    assert told.exit_code == 0, told.output
    rendered = engine("render", "sglang-8b", "--revision", "tide-8b@v3", "--format", "compose", *at)
    assert rendered.exit_code == 0, rendered.output
    for words in ("--context-length\n    - '8192'", "--tokenizer-path\n    - /tokenizers/tide", "- /tokenizers:/tokenizers:ro"):
        assert words in rendered.stdout
    shorter = engine("render", "vllm-8b", "--revision", "tide-8b@v3", "--set", "max-model-len=4096", *at)
    assert (shorter.exit_code, "registered for a context of 8192 tokens, and --max-model-len is 4096" in shorter.stderr) == (1, True)
    assert run("retire", "tide-8b@v2", "--yes", *at).exit_code == 0
    assert "tide-8b@v2 is retired" in engine("render", "vllm-8b", "--revision", "tide-8b@v2", *at).stderr
