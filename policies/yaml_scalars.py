"""Scalars of YAML files: the value of a plain word, and environment variables in it. Pure; positions are left to `located_yaml`."""

import re
from collections.abc import Callable, Mapping
from typing import Final

MAX_FILLED_CHARS: Final = 65_536
"""Length of one value after its variables were replaced."""

MAX_NAME_CHARS: Final = 64
"""Characters of a variable's name that messages repeat."""

Scalar = str | int | float | bool | None

_DOLLAR: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,300}")
_BASED: Final = re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]{1,300}|[0-9]{1,300}(?:\.[0-9]{0,300})?)(?:[eE][-+]?[0-9]{1,5})?")
_NUMERIC: Final = frozenset("0123456789+-.")
"""The characters that numbers begin with."""
_WORDS: Final[dict[str, bool | None]] = (
    dict[str, bool | None].fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)
"""YAML 1.2's core words. 1.1's yes, no, on and off stay text: a tenant may be called `no`, and a number is never base 60."""


def resolved(text: str) -> Scalar:
    """A plain scalar as YAML 1.2's core schema reads it; `.inf` and `.nan` stay text, and 1e999 becomes infinity."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:  # most words; trying the three patterns takes four times as long
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def filled(text: str, environ: Mapping[str, str] | None, complain: Callable[[str, str], None]) -> str:
    """`text` with each `${NAME}` replaced from the environment, not recursively; `$${` stands for `${`.

    Args:
        environ: None when the file may not use variables.
        complain: called with (message, hint) for each variable that cannot be replaced; it is replaced with an empty text.
    """
    room = MAX_FILLED_CHARS

    def value_of(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1]
        value = ""
        if match[0] == "$${":
            value = "${"
        elif name is None:
            complain("has a ${ that names no variable", "write ${NAME}, or $${ for the two characters")
        elif environ is None:
            complain(f"${{{name[:MAX_NAME_CHARS]}}} is not replaced in this file", "write the value")
        elif name not in environ:
            complain(f"the environment variable {name[:MAX_NAME_CHARS]} is not set", "set it, or write the value")
        else:
            value = environ[name]
        room -= len(value)
        return value if room >= 0 else ""

    out = _DOLLAR.sub(value_of, text)
    if room < 0:
        complain(f"has more than {MAX_FILLED_CHARS} characters once its variables are replaced", "name another variable")
    return out
