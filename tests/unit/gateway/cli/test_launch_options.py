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
