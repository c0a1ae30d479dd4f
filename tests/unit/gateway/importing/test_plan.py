import pytest

from gateway.importing.plan import environment_name, limit_of, nanousd, period, slug, whole
from tenancy.limits import Level, Meter, Scope, Window


def test_variables_are_named_and_nothing_else_is() -> None:
    assert environment_name("os.environ/A_B1") == "A_B1"
    for other in ("os.environ/", "os.environ/1", "A", None, 7, "os.environ/A B", "xos.environ/A"):
        assert environment_name(other) is None


@pytest.mark.parametrize(
    ("value", "number"), [(5, 5), (5.0, 5), (5.5, None), (0, None), (-1, None), (True, None), ("5", None), (1e300, None)]
)
def test_whole_numbers(value: object, number: int | None) -> None:
    assert whole(value) == number


def test_dollars() -> None:
    assert nanousd(0.1) == 100_000_000
    assert [nanousd(odd) for odd in (True, "1", -1, 1e9, float("nan"))] == [None] * 5


@pytest.mark.parametrize(
    ("duration", "window"),
    [
        (None, "ever"),
        ("1h", "hour"),
        ("24h", "day"),
        ("1d", "day"),
        ("7d", "week"),
        ("1w", "week"),
        ("30d", "month"),
        ("1mo", "month"),
        ("14d", "rolling-14d"),
        ("2w", "rolling-14d"),
        ("31d", "rolling-31d"),
        ("366d", "rolling-366d"),
    ],
)
def test_periods(duration: str | None, window: str) -> None:
    """A budget comes back when LiteLLM's does: at the hour, at midnight, on Monday, on the first; other days are rolling windows."""
    found = period(duration)
    assert found is not None
    assert found.value == window


@pytest.mark.parametrize("duration", ["367d", "53w", "0d", "5h", "30m", "90s", "2mo", "-1d", "1.5d", "7D", "", "d", 7, True, ["1d"]])
def test_durations_that_no_limit_has(duration: object) -> None:
    assert period(duration) is None


def test_slugs_are_names() -> None:
    taken = {"a"}
    assert [slug(text, taken) for text in ("A", "a", "--", "x_y.z", "é")] == ["a-2", "a-3", "unnamed", "x-y-z", "unnamed-2"]


def test_limits_are_checked_by_those_who_keep_them() -> None:
    scope = Scope(Level.MODEL, "m")
    assert limit_of(scope, Meter.TOKENS, Window.DAY, 5) == {
        "scope": {"level": "model", "name": "m"}, "meter": "tokens", "window": "day", "amount": 5,
    }  # fmt: skip
    assert "cannot" not in str(limit_of(scope, Meter.TOKENS, Window.MINUTE, 10**12))
    assert isinstance(limit_of(scope, Meter.TOKENS, Window.MINUTE, 10**12), str)
