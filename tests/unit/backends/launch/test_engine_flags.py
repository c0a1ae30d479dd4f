import argparse
import json

import pytest

from backends.launch.engine_flags import describe, main


def test_types_are_found_by_asking_the_converters() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--both", action=argparse.BooleanOptionalAction)
    parser.add_argument("--count", type=lambda text: int(text, 10))
    parser.add_argument("--share", type=float)
    parser.add_argument("--text")
    parser.add_argument("--events", type=json.loads)
    parser.add_argument("--kind", choices=["a", "b"])
    parser.add_argument("--under_score", "-u", nargs="+")
    found = describe(parser)
    assert {name: entry["type"] for name, entry in found.items()} == {
        "--both": "switch",
        "--count": "int",
        "--events": "json",
        "--help": "switch",
        "--kind": "text",
        "--no-both": "switch",
        "--on": "switch",
        "--share": "float",
        "--text": "text",
        "--under-score": "text",
    }
    assert found["--kind"]["choices"] == ["a", "b"]
    assert found["--under-score"]["many"] is True


def test_an_unknown_engine_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tgi"]) == 2
    assert "vllm|sglang" in capsys.readouterr().err
