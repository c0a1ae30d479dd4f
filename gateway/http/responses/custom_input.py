r"""The input of a custom tool, which a model writes as JSON inside the arguments of a function: `{"input": "…"}`, in pieces cut anywhere.

What has been read is handed out as soon as it is certain, so that a caller can show a long patch while it grows: never half of an escape,
never half of a surrogate pair. Arguments that begin otherwise are held to their end. Models make mistakes that a parser of JSON refuses (a
raw newline, an escape like `\d`); their meaning is clear, so nothing is refused here.
"""

import re
from typing import Final

import msgspec

from gateway.http.responses.tools import INPUT

MAX_OPENING_CHARS: Final = 64
"""Characters by which the input has begun, or arguments are in another form: `{"input": "` takes 11, and models add few spaces."""

_OPENING: Final = re.compile(rf'\s*+\{{\s*+"{INPUT}"\s*+:\s*+"')
_HIGH: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CUT_LOW: Final = r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]?)?)?)?)?\Z"
_CODE: Final = r"\\u[0-9a-fA-F]{4}"
_NO_CODE: Final = r"\\u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])"
_CERTAIN: Final = re.compile(rf'(?:[^"\\]|\\[^u]|{_HIGH}{_LOW}|{_HIGH}(?!{_CUT_LOW})|(?!{_HIGH}){_CODE}|{_NO_CODE})*+')
"""The characters and escapes whose end is there, whatever comes behind them."""
_ESCAPE: Final = re.compile(rf"{_HIGH}{_LOW}|{_CODE}|\\[^u]")
_SHORT: Final = {'\\"': '"', "\\\\": "\\", "\\/": "/", "\\b": "\b", "\\f": "\f", "\\n": "\n", "\\r": "\r", "\\t": "\t"}

_decode_any = msgspec.json.Decoder().decode


class CustomInput(msgspec.Struct, eq=False):
    """The input of one call, which grows."""

    held: str = ""
    """What came and is not certain yet."""
    pieces: list[str] = msgspec.field(default_factory=list)
    """Arguments that do not begin as they should."""
    inside: bool = False
    over: bool = False
    """The closing quote was there; what comes behind it says nothing."""

    def feed(self, text: str) -> str:
        """Take a piece of the arguments and return what it adds to the input."""
        if self.over:
            return ""
        if self.pieces:
            self.pieces.append(text)
            return ""
        held = self.held + text
        start = 0
        if not self.inside:
            opening = _OPENING.match(held, 0, MAX_OPENING_CHARS)
            if opening is None:
                if len(held) >= MAX_OPENING_CHARS:
                    self.pieces.append(held)
                    held = ""
                self.held = held
                return ""
            self.inside = True
            start = opening.end()
        certain = _CERTAIN.match(held, start)
        end = start if certain is None else certain.end()
        self.over = held.startswith('"', end)
        self.held = "" if self.over else held[end:]
        said = held[start:end]
        return _ESCAPE.sub(_character, said) if "\\" in said else said

    def end(self) -> str:
        """What the end of the arguments adds to the input: everything where they began in another way. Half of an escape is dropped."""
        if self.inside or self.over:
            return ""
        text = "".join(self.pieces) or self.held
        try:
            document = _decode_any(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        found = document.get(INPUT) if type(document) is dict else document
        return found if type(found) is str else text

    def whole(self, text: str) -> str:
        """The input that the whole arguments hold."""
        return self.feed(text) + self.end()


def _character(escape: re.Match[str]) -> str:
    text = escape[0]
    if len(text) == 12:
        return chr(0x10000 + ((int(text[2:6], 16) - 0xD800) << 10) + int(text[8:], 16) - 0xDC00)
    if len(text) == 6:
        code = int(text[2:], 16)
        return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)
    return _SHORT.get(text, text)
