r"""Placeholders for values that the engine must not see and that the same request's answer shows again. Sans-I/O.

A placeholder reads `⟦PII:EMAIL:1-k3x9q2ma⟧`: the kind, a number within the request, and a tag that is drawn for each request. The tag keeps
a caller from writing placeholders, and a model from repeating those of another request: a placeholder that this request did not make
stays as it is. The map from placeholders to values lives in a `Placeholders` object and nowhere else; its `repr` shows no value.

In the arguments of a tool call, which are JSON text, the brackets may stand as `\u27e6` and `\u27e7`, and the value is written as it has to
stand inside a JSON string.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from domain.clock import Rng
from guardrails.chain import Spot, owned
from guardrails.ports import Finding

OPEN: Final = "⟦"
CLOSE: Final = "⟧"
_ESCAPED_OPEN: Final = "\\u27e6"
_ESCAPED_CLOSE: Final = "\\u27e7"

TAG_CHARS: Final = 8
"""Characters of a tag: 40 bits of chance for each request."""

_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"
MAX_KIND_CHARS: Final = 32

_encode = msgspec.json.Encoder().encode


class Placeholders:
    """The placeholders of one request.

    Args:
        rng: the source of the tag; in production one that nobody can predict.
    """

    __slots__ = ("_by_value", "_tag", "_values")

    def __init__(self, rng: Rng) -> None:
        self._tag = "".join([_ALPHABET[rng.randrange(len(_ALPHABET))] for _ in range(TAG_CHARS)])
        self._values: dict[str, str] = {}
        """Values by what stands between the brackets."""
        self._by_value: dict[tuple[str, str], str] = {}

    def label(self, kind: str, value: str) -> str:
        """The placeholder of a value: the same each time for the same kind and value. It is a `guardrails.chain.Label`."""
        name = "".join([c if c.isascii() and c.isalnum() else "_" for c in kind.upper()[:MAX_KIND_CHARS]])
        core = self._by_value.get((name, value))
        if core is None:
            core = f"PII:{name}:{len(self._values) + 1}-{self._tag}"
            self._values[core] = value
            self._by_value[name, value] = core
        return f"{OPEN}{core}{CLOSE}"

    def mask(self, text: str, findings: Sequence[Finding]) -> str:
        """A text with a placeholder for each finding. Where findings overlap, a character belongs to one of them as in a chain."""
        parts = []
        done = 0
        spots = [Spot(found.begin, found.end, at, found.kind) for at, found in enumerate(findings) if found.begin < found.end]
        for run in owned(spots, 0, len(text)):
            parts.append(text[done : run.begin])
            parts.append(self.label(run.spot.kind, text[run.begin : run.end]))
            done = run.end
        parts.append(text[done:])
        return "".join(parts)

    def restored(self, text: str, *, in_json: bool = False) -> str:
        """A whole text with the values in place of this request's placeholders."""
        restorer = self.restorer(in_json=in_json)
        return restorer.feed(text) + restorer.end()

    def restorer(self, *, in_json: bool = False) -> "Restorer":
        """A restorer for one channel of the answer.

        Args:
            in_json: whether the channel is JSON text, such as the arguments of a tool call.
        """
        return Restorer(self._values, in_json=in_json)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Placeholders({len(self)} values)"


class Restorer:
    """Puts values in place of placeholders in a text that arrives in pieces. What comes out does not depend on how the text was cut.

    It holds back nothing but the beginning of what may still become a placeholder of the request.

    Args:
        values: by what stands between the brackets of their placeholders.
        in_json: whether the text is JSON text.
    """

    __slots__ = ("_closes", "_held", "_in_json", "_opens", "_values")

    def __init__(self, values: dict[str, str], *, in_json: bool = False) -> None:
        self._values = values
        self._in_json = in_json
        self._opens = (OPEN, _ESCAPED_OPEN) if in_json else (OPEN,)
        self._closes = (CLOSE, _ESCAPED_CLOSE) if in_json else (CLOSE,)
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that can be shown now that `piece` has come."""
        if not self._values:
            return piece
        return self._advance(self._held + piece, final=False)

    def end(self) -> str:
        """The rest of the text."""
        return self._advance(self._held, final=True)

    def _advance(self, text: str, *, final: bool) -> str:
        parts: list[str] = []
        done = at = 0
        while (at := self._next(text, at)) >= 0:
            found = self._placeholder(text, at)
            if found is not None:
                value, end = found
                parts += (text[done:at], _encode(value)[1:-1].decode() if self._in_json else value)
                done = at = end
            elif not final and self._may_become(text[at:]):
                parts.append(text[done:at])
                self._held = text[at:]
                return "".join(parts)
            else:
                # a backslash belongs together with the character behind it, which may be a backslash too
                at += 1 if text[at] == OPEN else 2
        self._held = ""
        parts.append(text[done:])
        return "".join(parts)

    def _next(self, text: str, at: int) -> int:
        """Where the next bracket, or in JSON the next escape, stands; -1 for none."""
        opened = text.find(OPEN, at)
        if not self._in_json:
            return opened
        escape = text.find("\\", at)
        return max(opened, escape) if opened < 0 or escape < 0 else min(opened, escape)

    def _placeholder(self, text: str, at: int) -> tuple[str, int] | None:
        """The value of the placeholder that stands at a place, and where it ends."""
        begin = _behind(text, at, self._opens)
        if begin is None:
            return None
        # what stands between the brackets holds neither bracket nor backslash
        end = min([place for close in ("\\", CLOSE) if (place := text.find(close, begin)) >= 0], default=-1)
        if end < 0:
            return None
        value = self._values.get(text[begin:end])
        behind = _behind(text, end, self._closes)
        return None if value is None or behind is None else (value, behind)

    def _may_become(self, rest: str) -> bool:
        """Whether a text is the beginning of a placeholder, and not all of it."""
        begin = _behind(rest, 0, self._opens)
        if begin is None:
            return self._in_json and _ESCAPED_OPEN.startswith(rest.lower() if rest.startswith("\\u") else rest)
        core, slash, tail = rest[begin:].partition("\\")
        if slash:
            return core in self._values and self._in_json and _ESCAPED_CLOSE.startswith((slash + tail).lower())
        return any(known.startswith(core) for known in self._values)


def _behind(text: str, at: int, signs: Iterable[str]) -> int | None:
    """The place behind the sign that stands at a place; None where none of them does. Hexadecimal digits may be of either case."""
    for sign in signs:
        found = text[at : at + len(sign)]
        if found == sign or (len(sign) > 1 and found[:2] == "\\u" and found.lower() == sign):
            return at + len(sign)
    return None
