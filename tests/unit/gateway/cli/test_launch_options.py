"""Launch configurations by name, what `--set` changes of them, and what a registered revision does."""

from pathlib import Path
from typing import Any

import pytest
import typer

from backends.launch.resolve import LaunchError
from gateway.cli.launch_options import launch_from, parse_sets


def test_values_are_what_they_look_like() -> None:
    assert parse_sets(["a=1", "b=x=y", "c=true", "d={k: [1]}", "--e=0.5", "f=", "g=2026-01-01"]) == {
        "a": 1,
        "b": "x=y",
        "c": True,
        "d": {"k": [1]},
        "e": 0.5,
        "f": "",
        "g": "2026-01-01",
    }


@pytest.mark.parametrize("text", ["port", "=1", "a={"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="--set"):
        parse_sets([text])


def test_sets_outrank_defaults_and_defaults_only_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    launch = launch_from("vllm-8b", ["host=10.0.0.1"], "/opt/vllm", {"host": "0.0.0.0", "port": 9, "unheard_of": 1})
    assert (launch.host, launch.port, launch.command[0]) == ("10.0.0.1", 9, "/opt/vllm")
    with pytest.raises(typer.Exit):
        launch_from("vllm-9b")
    assert "there is no launch configuration 'vllm-9b'; did you mean vllm-8b?" in capsys.readouterr().err


DIGEST = "sha256:" + "ab" * 32


def revision(**fields: Any) -> dict[str, Any]:
    """A revision as the registry shows it; `fields` may have the ways of the layout too."""
    ways = {way: fields.pop(way, 1) for way in ("tensor", "pipeline", "data", "expert")}
    said = {"tokenizer": None, "context_tokens": 0, "launch": "", "retired_unix": None, "weights": "/models/tide"}
    return {"reference": "tide@v1", "model": "tide", "digest": DIGEST, "layout": ways, **said, **fields}


def refusal(capsys: pytest.CaptureFixture[str], name: str, registered: dict[str, Any], *sets: str) -> str:
    with pytest.raises(typer.Exit):
        launch_from(name, sets, revision=registered)
    return capsys.readouterr().err


ENGINES = [("vllm-8b", "max-model-len", "tokenizer"), ("sglang-8b", "context-length", "tokenizer-path")]


@pytest.mark.parametrize(("name", "context", "tokenizer"), ENGINES)
def test_a_revision_gives_its_context_and_tokenizer_to_the_engine(name: str, context: str, tokenizer: str) -> None:
    flags = launch_from(name, revision=revision(context_tokens=8192, tokenizer="/models/tok")).flags
    assert (flags[context], flags[tokenizer]) == (8192, "/models/tok")
    assert launch_from(name, revision=revision(tokenizer="pvc://models/tok")).flags[tokenizer] == "/models/tok"
    moved = launch_from(name, [f"{tokenizer}=/mnt/tok"], revision=revision(tokenizer="pvc://models/tok"))
    assert moved.flags[tokenizer] == "/mnt/tok"
    copied = launch_from(name, [f"{tokenizer}=/copy"], revision=revision(tokenizer="s3://bucket/tok"))
    assert copied.flags[tokenizer] == "/copy"


def test_a_tokenizer_in_another_claim_than_the_weights_has_to_be_placed(capsys: pytest.CaptureFixture[str]) -> None:
    apart = revision(weights="pvc://models/tide", tokenizer="pvc://others/tok")
    assert "lies in another claim than its weights" in refusal(capsys, "vllm-8b", apart)
    assert launch_from("vllm-8b", ["tokenizer=/mnt/tok"], revision=apart).flags["tokenizer"] == "/mnt/tok"


@pytest.mark.parametrize(("name", "context", "tokenizer"), ENGINES)
def test_a_revision_that_says_nothing_changes_nothing(name: str, context: str, tokenizer: str) -> None:
    plain = launch_from(name, ["model=/models/tide", "served_name=tide", f"digest={DIGEST}"])
    assert launch_from(name, revision=revision()).command == plain.command
    assert (launch_from(name, revision=revision()).revision, plain.revision) == ("v1", "")
    assert launch_from(name, [f"{context}=1000"], revision=revision()).flags[context] == 1000


@pytest.mark.parametrize(("name", "context", "tokenizer"), ENGINES)
def test_what_contradicts_the_revision_is_named_with_it(
    capsys: pytest.CaptureFixture[str], name: str, context: str, tokenizer: str
) -> None:
    registered = revision(context_tokens=8192, tokenizer="/models/tok")
    said = refusal(capsys, name, registered, f"{context}=4096")
    assert f"tide@v1 is registered for a context of 8192 tokens, and --{context} is 4096: leave the --set out" in said
    assert f"--{context} is taken away" in refusal(capsys, name, registered, f"{context}=false")
    said = refusal(capsys, name, registered, f"{tokenizer}=/other")
    assert f"tide@v1 is registered with the tokenizer /models/tok, and --{tokenizer} is /other: leave the --set out" in said
    said = refusal(capsys, name, revision(tokenizer="s3://bucket/tok"))
    assert "the tokenizer of tide@v1 lies at s3://bucket/tok, which no engine opens: say where it is copied to" in said
    assert f"--set {tokenizer}=/folder" in said


def test_data_and_expert_parallelism_are_set_where_the_configuration_has_them() -> None:
    vllm = launch_from("vllm-moe-ep", revision=revision(data=4, expert=4))
    assert (vllm.flags["data-parallel-size"], vllm.parameters["ranks"]) == (4, 4)
    sglang = launch_from("sglang-moe-ep", revision=revision(tensor=8, data=4, expert=2))
    assert [sglang.flags[flag] for flag in ("tp-size", "dp-size", "ep-size")] == [8, 4, 2]
    assert launch_from("vllm-moe-ep", revision=revision()).flags["data-parallel-size"] == 8, "registered without: the configuration's"
    assert launch_from("sglang-moe-ep", revision=revision(tensor=8)).flags["ep-size"] == 8
    added = launch_from("vllm-8b", ["data-parallel-size=2", "enable-expert-parallel=true"], revision=revision(data=2, expert=2))
    assert added.flags["data-parallel-size"] == 2


@pytest.mark.parametrize(
    ("name", "ways", "sets", "words"),
    [
        ("vllm-8b", {"data": 4}, (), "data parallelism 4, and --data-parallel-size is not in vllm-8b: say --set data-parallel-size=4"),
        ("sglang-8b", {"data": 4}, (), "data parallelism 4, and --dp-size is not in sglang-8b: say --set dp-size=4"),
        ("vllm-moe-ep", {"data": 4}, ("ranks=2",), "data parallelism 4, and --data-parallel-size is 2: say --set data-parallel-size=4"),
        ("sglang-8b", {"data": 4}, ("data-parallel-size=2",), "data parallelism 4, and --data-parallel-size is 2"),
        ("sglang-8b", {"expert": 4}, (), "expert parallelism 4, and --ep-size is not in sglang-8b: say --set ep-size=4"),
        ("sglang-moe-ep", {"tensor": 8, "expert": 4}, ("ep-size=8",), "expert parallelism 4, and --ep-size is 8"),
        ("sglang-8b", {"tensor": 2}, ("tensor-parallel-size=4",), "tensor parallelism 2, and --tensor-parallel-size is 4"),
        ("vllm-8b", {"expert": 4}, (), "expert parallelism 4, and vllm-8b is without --enable-expert-parallel: say --set"),
        ("vllm-moe-ep", {"data": 4, "expert": 4}, ("disable-expert-parallel=true",), "is without --enable-expert-parallel"),
        ("vllm-moe-ep", {"data": 4, "expert": 8}, (), "over tensor parallelism 1 times data parallelism 4, which is 4"),
        ("vllm-8b", {"pipeline": 2}, (), "pipeline parallelism 2, and --pipeline-parallel-size is not in vllm-8b"),
        ("vllm-70b-tp4", {}, (), "tensor parallelism 1, and --tensor-parallel-size is 4: say --set tensor-parallel-size=1"),
    ],
)
def test_another_parallelism_than_the_registered_one_is_refused(
    capsys: pytest.CaptureFixture[str], name: str, ways: dict[str, int], sets: tuple[str, ...], words: str
) -> None:
    said = refusal(capsys, name, revision(**ways), *sets)
    assert "tide@v1 is registered for " in said
    assert words in said


def test_a_parameter_of_a_configuration_of_ones_own_is_set_in_place_of_its_flag(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    text = (
        "name: own\nengine: vllm\nsummary: s\nhardware: {gpus: 0, memory_gib: 4, shm_gib: 1, cpus: 2}\n"
        "parameters: {id: own, model: /m, served_name: m, longest: 4096}\n"
        "flags: {max-model-len: '{longest}', max-num-batched-tokens: '{longest}'}\n"
        "sizing: {model: {}, context: 1, reserve_gib: 0.0}\n"
    )
    own.write_text(text)
    flags = launch_from(str(own), revision=revision(context_tokens=8192)).flags
    assert (flags["max-model-len"], flags["max-num-batched-tokens"]) == (8192, 8192)
