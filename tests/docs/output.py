"""Compares what a command printed with what its page shows."""

import difflib
import json
import re
from typing import Any, Final

ANY: Final = "…"
"""In a line any text, as a whole line any lines; in JSON any value, and as a name any other members."""


def difference(language: str, shown: str, printed: str) -> str:
    """How the output differs from the page's, to be read by people; empty when it is as shown."""
    printed = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    if language == "json":
        try:
            return "" if _like(json.loads(shown), json.loads(printed)) else f"shown: {shown}\nprinted: {printed}"
        except ValueError as error:
            return f"no JSON: {error}\nprinted: {printed}"
    expected, actual = _lines(shown), _lines(printed)
    if re.fullmatch("".join(map(_pattern, expected)), "".join(line + "\n" for line in actual)):
        return ""
    return "\n".join(difflib.unified_diff(expected, actual, "shown", "printed", lineterm="", n=99))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _pattern(line: str) -> str:
    if line.strip() == ANY:
        return r"(?:.*\n)*?"
    return ".*?".join(re.escape(part) for part in line.split(ANY)) + r"\n"


def _like(shown: Any, printed: Any) -> bool:
    if shown == ANY:
        return True
    if isinstance(shown, dict) and isinstance(printed, dict):
        named = {key for key in shown if key != ANY}
        return (named == printed.keys() or (ANY in shown and named <= printed.keys())) and all(_like(shown[k], printed[k]) for k in named)
    if isinstance(shown, list) and isinstance(printed, list):
        return len(shown) == len(printed) and all(map(_like, shown, printed))
    if isinstance(shown, str) and isinstance(printed, str):
        return re.fullmatch(".*?".join(map(re.escape, shown.split(ANY))), printed, re.DOTALL) is not None
    return bool(shown == printed)
