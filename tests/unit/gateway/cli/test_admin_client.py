from pathlib import Path

import pytest
import typer

from gateway.cli.admin_client import TOKEN_VARIABLE, AdminClient, segment, token_from


def test_the_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("from-file\n")
    monkeypatch.setenv(TOKEN_VARIABLE, "from-environment")
    assert token_from(tmp_path / "token") == "from-file"
    assert token_from(None) == "from-environment"


@pytest.mark.parametrize("content", [None, b"\xff", b"a\nb", "tökén".encode()])
def test_a_token_that_cannot_be_used_ends_the_command(
    tmp_path: Path, content: bytes | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with pytest.raises(typer.Exit) as ended:
        token_from(tmp_path / "token")
    assert ended.value.exit_code == 2
    with pytest.raises(typer.Exit):
        token_from(None)
    assert f"set {TOKEN_VARIABLE}" in capsys.readouterr().err


def test_an_id_stays_one_segment() -> None:
    assert segment("a/../b?c#d") == "a%2F..%2Fb%3Fc%23d"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(typer.Exit) as ended:
        AdminClient("localhost:8081")
    assert ended.value.exit_code == 2
