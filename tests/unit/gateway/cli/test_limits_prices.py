"""Prices by command: dollars per million tokens; what is left out costs as its whole, and what is hardly meant needs a yes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.cli import app
from tests.admin_socket import AdminSocket, admin_socket
from tests.command_line import Commands


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminSocket]:
    with admin_socket(tmp_path) as made:
        yield made


def test_a_bare_number_is_dollars_per_million_tokens(port: AdminSocket) -> None:
    done = port.run("price", "set", "m", "--input", "0.20", "--output", "6")
    assert done.exit_code == 0, done.output
    assert "output $6.00" in done.stdout
    (price,) = port.json("price", "list")
    rates = (200_000_000, 200_000_000, 6 * 10**9, 6 * 10**9)
    assert tuple(price["nanousd_per_mtok"].values()) == rates
    listed = port.run("price", "list").stdout
    assert listed.count("$0.20") == listed.count("$6.00") == 2
    assert "doubtful" in listed


def test_a_price_of_a_model_that_no_policy_has_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("policies").mkdir()
    Path("policies/all.yaml").write_text('tenant: "*"\nmodels: [{name: chat, pool: chat}]\n')
    Path("tidegate.pepper").write_text("0" * 64)
    Path("tidegate.yaml").write_text('pools: [{name: chat, model: my-model, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n')
    for model, says in (("chatt", "did you mean 'chat'?"), ("my-model", "they have: chat"), ("chat", "")):
        done = Commands().invoke(app, ["price", "set", model, "--input", "1", "--output", "2", "--offline"])
        assert done.exit_code == 0, done.output
        assert (f"no policy of tidegate.yaml has a model {model!r}, so nobody pays this price; {says}" in done.stderr) is bool(says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--input", "0", "--output", "6"], ["--input", "$0.00 per million tokens", "--yes"]),
        (["--input", "0.0000002", "--output", "6"], ["--input", "$0.0000002", "$0.001", "--yes"]),
        (["--input", "2", "--output", "6", "--cached-input", "0"], ["--cached-input", "free of charge", "--yes"]),
    ],
)
def test_a_price_that_is_hardly_meant_needs_a_yes(port: AdminSocket, options: list[str], says: list[str]) -> None:
    refused = port.run("price", "set", "m", *options)
    assert (refused.exit_code, port.json("price", "list")) == (2, [])
    assert all(text in refused.stderr for text in says), refused.stderr
    assert port.run("price", "set", "m", *options, "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--input", "", "--output", "6"], "--input: '' is no amount"),
        (["--input", "2", "--output", "-6"], "--output: '-6' is no amount"),
        (["--input", "nan", "--output", "6"], "--input: 'nan' is no amount"),
        (["--input", "2", "--output", "6", "--cached-input", ""], "--cached-input: '' is no amount"),
        (["--input", "2", "--output", "6", "--reasoning", "1e2"], "--reasoning: '1e2' is no amount"),
        (["--input", "200000000", "--output", "6"], "--input: $200000000.00 is more than"),
    ],
)
def test_what_is_no_price_is_refused_with_the_name_of_the_option(port: AdminSocket, options: list[str], says: str) -> None:
    refused = port.run("price", "set", "m", *options, "--yes")
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr
    assert port.json("price", "list") == []
