"""`tidegate cache warm`: where it finds the gateway, the key and the requests, and which mistakes end it before anything is sent."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from gateway.cli import app, cache_warm
from gateway.cli.cache_warm import KEY_VARIABLE, WarmTarget, target_of
from tests.command_line import Commands, Result

POOLS = 'pools: [{name: chat, model: m, backends: [{id: a, url: "http://10.0.0.1:8000"}]}]\n'
ONE = json.dumps({"model": "m", "prompt": "p"})
DEFAULT = Path("tidegate.yaml")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    (tmp_path / "one.jsonl").write_text(ONE)
    return tmp_path


@pytest.fixture
def silent() -> Iterator[tuple[str, socket.socket]]:
    """A port on which somebody listens, and who has seen no connection yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


def warm(*arguments: str, key: str | None = "gw_key", stdin: str | None = None) -> Result:
    return Commands().invoke(app, ["cache", "warm", *arguments], env={KEY_VARIABLE: key}, input=stdin)


def test_the_address_is_the_options_then_that_of_the_settings_at_hand(site: Path) -> None:
    assert target_of(None, DEFAULT) == WarmTarget("http://127.0.0.1:8080", "the default; there is no tidegate.yaml here")
    DEFAULT.write_text(POOLS)
    assert target_of(None, DEFAULT) == WarmTarget("http://127.0.0.1:8080", "data.bind of tidegate.yaml")
    DEFAULT.write_text('data: {bind: "0.0.0.0:9001"}\n' + POOLS)
    assert target_of(None, DEFAULT).url == "http://127.0.0.1:9001"
    DEFAULT.write_text('data: {bind: "[::]:9002", tls: {certificate: c.pem, private_key: k.pem}}\n' + POOLS)
    assert target_of(None, DEFAULT).url == "https://[::1]:9002"
    assert target_of("https://gateway.example/v1/", DEFAULT) == WarmTarget("https://gateway.example", "--url")


def test_workers_count_where_each_keeps_answers_of_its_own(site: Path) -> None:
    for more, workers in (("", 4), ("cache: {memory_bytes: 0}\n", 4), ('cache: {store: "redis://cache.example"}\n', 1)):
        DEFAULT.write_text(f"workers: 4\n{more}{POOLS}")
        assert target_of(None, DEFAULT).workers == workers
        assert target_of("http://127.0.0.1:9001", DEFAULT).workers == 1, "the file need not be that gateway's"


@pytest.mark.parametrize("url", ["gateway:8080", "ftp://gateway", "http://", "http://gateway:0", "http://gateway/other", "http://a b"])
def test_what_is_no_address_is_refused(site: Path, url: str) -> None:
    refused = warm("one.jsonl", "--url", url)
    assert (refused.exit_code, "is no address of a data port" in refused.stderr) == (2, True), refused.output


@pytest.mark.parametrize(("bind", "says"), [("127.0.0.1:0", "has port 0"), ("nowhere", "data.bind of tidegate.yaml is no address")])
def test_settings_without_a_usable_address_are_refused(site: Path, capsys: pytest.CaptureFixture[str], bind: str, says: str) -> None:
    DEFAULT.write_text(f'data: {{bind: "{bind}"}}\n{POOLS}')
    with pytest.raises(typer.Exit):
        target_of(None, DEFAULT)
    refused = warm("one.jsonl")
    assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output


def test_a_key_is_needed_and_comes_from_the_variable_or_a_file(site: Path, silent: tuple[str, socket.socket]) -> None:
    url, listener = silent
    (site / "empty").write_text("\n")
    (site / "odd").write_text("gw key")
    for arguments, key, says in (
        ((), None, f"set {KEY_VARIABLE}, or name a file"),
        ((), " ", f"set {KEY_VARIABLE}, or name a file"),
        (("--key-file", "none"), "gw_key", "--key-file none cannot be read (FileNotFoundError)"),
        (("--key-file", "empty"), "gw_key", "there is no key"),
        (("--key-file", "odd"), "gw_key", "characters that no key has"),
    ):
        refused = warm("one.jsonl", "--url", url, *arguments, key=key)
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_wrong_lines_and_files_are_named_before_anything_is_sent(
    site: Path, silent: tuple[str, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, listener = silent
    wrong = "\n".join([ONE, "\x1b[31m", *["{}"] * 6])
    (site / "wrong.jsonl").write_text(wrong)
    for arguments, stdin in ((("wrong.jsonl",), None), (("-",), wrong)):
        refused = warm(*arguments, "--url", url, stdin=stdin)
        assert refused.exit_code == 2, refused.output
        assert refused.stderr.splitlines() == [
            "line 2: the line is no JSON object",
            *[f"line {line}: a body has one of messages, prompt, input; this line has none" for line in range(3, 7)],
            "and 2 more",
            f"{arguments[0]}: lines that are no requests: 7; nothing was sent",
        ]
    (site / "empty.jsonl").write_text("\n \n")
    monkeypatch.setattr(cache_warm, "MAX_FILE_BYTES", 100)
    (site / "large.jsonl").write_text(" " * 101)
    for file, says in (("empty.jsonl", "has no requests"), ("none.jsonl", "cannot be read: No such file"), ("large.jsonl", "split it")):
        refused = warm(file, "--url", url)
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
    refused = warm("one.jsonl", "--url", url, "--namespace", "é")
    assert (refused.exit_code, "--namespace" in refused.stderr) == (2, True), refused.output
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_a_gateway_that_does_not_run_is_named_with_its_address(site: Path) -> None:
    refused = warm("one.jsonl", "--url", "http://127.0.0.1:1")
    assert refused.exit_code == 1
    assert refused.stderr.startswith("no gateway answers at http://127.0.0.1:1 (--url)"), refused.output
