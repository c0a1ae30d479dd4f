"""Lengths of time and moments on the command line: `90s`, `30m`, `12h`, `7d`, and ISO 8601."""

import re
from datetime import UTC, datetime
from typing import Final

from gateway.cli.printing import fail

DURATION: Final = "as 90s, 30m, 12h or 7d"
_WRITTEN: Final = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(ms|s|m|h|d|w)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def seconds_of(option: str, text: str, least_s: float = 0.0, most_s: float | None = None) -> float:
    """Seconds of a duration; ends the command for a text that is none, or one out of bounds.

    Args:
        option: its name, for errors.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None and text != "0":
        fail(f"{option} {text!r} is no length of time; write it {DURATION}", code=2)
    seconds = 0.0 if match is None else float(match[1]) * _SECONDS[match[2]]
    if seconds < least_s or (most_s is not None and seconds > most_s):
        bounds = f"at least {shown_duration(least_s)}" + ("" if most_s is None else f" and at most {shown_duration(most_s)}")
        fail(f"{option} {text}: it must be {bounds}", code=2)
    return seconds


def shown_duration(seconds: float) -> str:
    """A duration as it is written on the command line, in the largest unit that leaves no rest."""
    for unit, length in _UNITS:
        if seconds >= length and seconds % length == 0:
            return f"{int(seconds) // length}{unit}"
    return f"{seconds:g}s"


def rough_duration(seconds: float) -> str:
    """A duration for people, in its two largest units: `12d 3h`, `59m 10s`; below a minute in seconds, at least `1s`."""
    rest = max(1, round(seconds))
    parts = []
    for unit, length in _UNITS:
        count, rest = divmod(rest, length)
        parts.append((count, unit))
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def unix_of(option: str, text: str) -> float:
    """Seconds since 1970 of an ISO 8601 moment, which is UTC where it names no zone; ends the command for a text that is none."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} {text!r} is no moment; write it like 2026-01-31T10:00:00Z", code=2)
    return (read if read.tzinfo is not None else read.replace(tzinfo=UTC)).timestamp()


def duration_in_words(seconds: float) -> str:
    """A duration as text, in the largest unit of which there are at least two, else in seconds."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}" if seconds >= 10 * length else f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
