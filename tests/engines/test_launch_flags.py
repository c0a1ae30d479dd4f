"""Every launch configuration against the engines' own parsers, in the engines' own environments.

The environments are `.venv-vllm` and `.venv-sglang`, made by `make`, or what TIDEGATE_VLLM_PYTHON and TIDEGATE_SGLANG_PYTHON name.
vLLM's configuration is built as well, from a config.json of the model's size. What its CPU build cannot do is left out: the
expert balancer (CUDA only), of which nothing is known then but that the flag exists.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from backends.launch.catalogue import ENGINES, load, names
from backends.launch.manifest import manifest_for
from backends.launch.resolve import Launch, resolve

ROOT = Path(__file__).parents[2]
NEED_CUDA = {"enable-eplb"}
ORDINARY = {
    "max_position_embeddings": 131_072,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
"""What every config.json has beside what decides sizes."""

pytestmark = pytest.mark.real_engine


def python_of(engine: str) -> str:
    named = os.environ.get(f"TIDEGATE_{engine.upper()}_PYTHON", str(ROOT / f".venv-{engine}" / "bin" / "python"))
    assert Path(named).exists(), f"no environment with {engine}; run `make test-engines` or `make test-engines-sglang`"
    return named


def launch_of(name: str, folder: Path) -> Launch:
    config = load(name)
    model = {**config.sizing.model, **ORDINARY}
    given = {"model": folder / name}
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(model))
    if "draft_model" in config.parameters:
        given["draft_model"] = folder / f"{name}-draft"
        given["draft_model"].mkdir()
        draft = {**model, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}
        (given["draft_model"] / "config.json").write_text(json.dumps(draft))
    left_out = {flag: False for flag in NEED_CUDA if config.engine == "vllm" and flag in config.flags}
    return resolve(config, manifest_for(config.engine, config.version), {**{key: str(path) for key, path in given.items()}, **left_out})


def asked(engine: str, lines: dict[str, list[str]]) -> tuple[str, dict[str, str | None]]:
    done = subprocess.run(
        [python_of(engine), str(Path(__file__).parent / "launch_parsers.py")],
        input=json.dumps({"engine": engine, "lines": lines}),
        capture_output=True,
        text=True,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    return answer["version"], answer["verdicts"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_engine_takes_every_flag_and_refuses_a_wrong_one(engine: str, tmp_path: Path) -> None:
    lines = {}
    for name in (name for name in names() if name.startswith(engine)):
        launch = launch_of(name, tmp_path)
        # vLLM's line starts with the model, which stands before the flags
        skipped = len(launch.config.command) - (1 if engine == "vllm" else 0)
        lines[name] = list(launch.command[skipped:])
    some = next(iter(lines.values()))
    _, verdicts = asked(engine, {**lines, "wrong flag": [*some, "--no-such-flag"], "wrong number": [*some, "--port", "http"]})
    assert verdicts.pop("wrong flag") is not None
    assert verdicts.pop("wrong number") is not None
    assert {name: verdict for name, verdict in verdicts.items() if verdict is not None} == {}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_manifest_of_an_installed_release_is_what_its_parser_says(engine: str) -> None:
    version, _ = asked(engine, {})
    # raises for a release that is not listed: whoever installs another one makes its manifest along (docs/reference/launch.md)
    manifest = manifest_for(engine, version)
    above = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    code = "import launch_parsers, sys; launch_parsers.stubs(); from backends.launch.engine_flags import main; sys.exit(main(sys.argv[1:]))"
    made = subprocess.run(
        [python_of(engine), "-c", code, engine],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(Path(__file__).parent), *above)), "SGLANG_USE_CPU_ENGINE": "1"},
        check=True,
    )
    flags = json.loads(made.stdout[made.stdout.index("{\n") :])["flags"]
    assert sorted(flags) == sorted(manifest.flags)
