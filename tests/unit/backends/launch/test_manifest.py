import pytest
from pydantic import JsonValue

from backends.launch.manifest import Flag, Manifest, check_flags, manifest_for, manifests

ONE = Manifest(
    "vllm",
    "1.0.0",
    {
        "--on": Flag("switch"),
        "--count": Flag("int"),
        "--share": Flag("float"),
        "--kind": Flag("text", choices=("a", "b")),
        "--names": Flag("text", many=True),
        "--events": Flag("json", keys=("endpoint", "topic")),
        "--free": Flag("json"),
    },
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on", True),
        ("count", 3),
        ("count", "3"),
        ("share", 0.5),
        ("share", 1),
        ("kind", "a"),
        ("names", ["x", "y"]),
        ("names", "x"),
        ("events", {"topic": "t"}),
        ("free", {"anything": 1}),
    ],
)
def test_what_the_parser_takes(name: str, value: JsonValue) -> None:
    assert check_flags(ONE, {name: value}) == []


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("onn", True, "--onn: vllm 1.0.0 has no such flag; did you mean --on?"),
        ("zzz", True, "--zzz: vllm 1.0.0 has no such flag"),
        ("on", 1, "--on: is a switch; write true, or leave it out (here: 1)"),
        ("on", False, "--on: is a switch; write true, or leave it out (here: false)"),
        ("count", 0.5, "--count: takes a whole number, not 0.5"),
        ("count", True, "--count: takes a whole number, not true"),
        ("share", "half", "--share: takes a number, not 'half'"),
        ("kind", "c", "--kind: does not take 'c'; choices: a, b"),
        ("kind", ["a"], "--kind: takes one value, and this is a list"),
        ("names", [{"x": 1}], '--names: takes text, not {"x": 1}'),
        ("events", "tcp", '--events: takes a mapping, not "tcp"'),
        ("events", {"topik": "t"}, "--events: has no member 'topik'; did you mean 'topic'?"),
    ],
)
def test_what_it_does_not(name: str, value: JsonValue, says: str) -> None:
    assert check_flags(ONE, {name: value}) == [says]


def test_the_shipped_ones_are_of_the_releases_in_their_names_and_whole() -> None:
    assert sorted(manifests()) == [("sglang", "0.5.23"), ("vllm", "0.32.0"), ("vllm", "0.33.0")]
    assert all(len(one.flags) > 250 for one in manifests().values())
    with pytest.raises(LookupError, match=r"releases with one: 0\.5\.23"):
        manifest_for("sglang", "0.4.0")
