"""Mistakes in files that people write: position, message, and what to write instead. Knows neither the format nor the meaning of a file."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

MAX_SHOWN: Final = 100
"""Problems printed; a file with more was not written for Tidegate."""

MAX_TEXT_CHARS: Final = 600
"""Length of a message, and of a hint. The longest, lists of known keys, have 230."""

Path_ = tuple[str | int, ...]
"""Keys and list indices from the top of a file to a value in it."""

_WORD: Final = re.compile(r"[\w-]{1,64}")


class Problem(msgspec.Struct, frozen=True, order=True):
    """One mistake. Line and column count from 1, and are 0 where `file` names a source without lines; `message` says what is wrong, `hint`
    what to write or do instead."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        parts = [place, *([self.path] if self.path else []), _cut(self.message)]
        text = ": ".join(parts) + (f"; {_cut(self.hint)}" if self.hint else "")
        # names and conditions are repeated as written, but characters that end a line or move a cursor are escaped
        return (
            text if text.isprintable() else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
        )


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"


class ConfigError(Exception):
    """One or several files cannot be used; `problems` has every mistake found, in order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__(listing(self.problems))


def listing(problems: Sequence[Problem]) -> str:
    """Problems as lines, the first `MAX_SHOWN` of them."""
    lines = [str(problem) for problem in problems[:MAX_SHOWN]]
    return "\n".join([*lines, *([f"… and {len(problems) - MAX_SHOWN} more"] if len(problems) > MAX_SHOWN else [])])


def dotted(path: Path_) -> str:
    """`("pools", 0, "model")` as `pools[0].model`; keys that are no plain words are quoted."""
    out = ""
    for step in path:
        if isinstance(step, str) and _WORD.fullmatch(step):
            out += f".{step}" if out else step
        else:
            out += f"[{ascii(step)[:64]}]"
    return out
