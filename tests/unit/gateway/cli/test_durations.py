"""Durations and moments on the command line."""

import pytest
import typer

from gateway.cli.durations import seconds_of, shown_duration, unix_of


@pytest.mark.parametrize(
    ("text", "seconds"), [("200ms", 0.2), ("90s", 90), ("1.5h", 5400), ("30m", 1800), ("7d", 604_800), ("2w", 1_209_600), ("0", 0)]
)
def test_a_length_with_a_unit_is_seconds(text: str, seconds: float) -> None:
    assert seconds_of("--for", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["90", "-1h", "1 h", "h", "", "1y", "nan", "1e3s", "99999999s", "\u0661h"])
def test_anything_else_is_refused_with_what_to_write(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        seconds_of("--for", text)
    assert (ended.value.exit_code, "write it as 90s, 30m, 12h or 7d" in capsys.readouterr().err) == (2, True)


def test_bounds_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        seconds_of("--overlap", "31d", 0.0, 30 * 86_400.0)
    assert "--overlap 31d: it must be at least 0s and at most 30d" in capsys.readouterr().err


def test_a_duration_is_shown_as_it_is_written() -> None:
    assert [shown_duration(seconds) for seconds in (86_400, 5400, 3600, 90, 0.5)] == ["1d", "90m", "1h", "90s", "0.5s"]


def test_a_moment_without_a_zone_is_utc() -> None:
    assert unix_of("--at", "2027-01-15T08:00:00") == unix_of("--at", "2027-01-15T09:00:00+01:00") == 1_800_000_000
    with pytest.raises(typer.Exit):
        unix_of("--at", "tomorrow")
