"""The demo's engines: what is said when vLLM is not there, and that nothing outlives the demo."""

import contextlib
import subprocess
from pathlib import Path

import pytest
import typer

from gateway.cli.demo import spawn, start_vllm


@pytest.mark.parametrize("there", [(), ("vllm",), ("config.json",)])
def test_vllm_or_its_model_missing_is_said_with_the_command_that_makes_them(
    there: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in there:
        (tmp_path / name).touch()
    with contextlib.ExitStack() as stack, pytest.raises(typer.Exit) as left:
        start_vllm(stack, tmp_path, tmp_path / "vllm", tmp_path)
    assert left.value.exit_code == 1
    assert "make demo ENGINE=vllm" in capsys.readouterr().out


def test_what_a_process_started_ends_with_it() -> None:
    with contextlib.ExitStack() as stack:
        script = "(sleep 20; echo outlived) & echo begun; wait"
        process = spawn(stack, ["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
    with process.stdout:
        assert process.stdout.read() == b"", "the pipe ends when the last process of the group has"
