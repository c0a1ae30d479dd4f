r"""Characters in place of JSON's escapes for them, in whole texts and in pieces. Pure, and sans-I/O.

Arguments of tools are JSON text, and a writer of JSON may write any character as an escape: `M\u00fcller` is the word `Müller`, which many
clients write so, and `ann\u0040corp.io` an address. Rules compare characters, so they see the text with the characters themselves. It is
the same JSON: what has to be an escape (control characters, quotation marks, backslashes, halves of surrogate pairs) stays one.
"""

import re
from typing import Final

_HEX: Final = "[0-9a-fA-F]"
_ESCAPE: Final = re.compile(
    rf"\\(?:u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})|u(?P<code>{_HEX}{{4}})|(?P<other>[^u])|u(?!{_HEX}{{0,3}}\Z))",
    re.DOTALL,
)
_HALF: Final = re.compile(r"\\u[dD][89abAB]")
MOST_HELD: Final = 11
"""Characters of an unfinished escape: a pair of surrogates less one."""


def unescaped(text: str) -> str:
    """A JSON text with characters in place of the escapes that stand for characters which need none."""
    return _ESCAPE.sub(_char, text) if "\\u" in text or "\\/" in text else text


class Unescaper:
    """`unescaped` of a text that arrives in pieces. What comes out does not depend on how the text was cut. At most `MOST_HELD` characters
    are held back."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text as far as it is certain now that `piece` has come."""
        text = self._held + piece
        if "\\" not in text:
            return text
        cut = end = 0
        for match in _ESCAPE.finditer(text):
            cut, end = match.span()
            if _HALF.match(text, cut) is None or end - cut > MOST_HELD:
                cut = end
        unfinished = text.find("\\", end)
        if unfinished < 0:
            unfinished = len(text)
        # the first half of a pair waits for the second one
        cut = cut if cut < end == unfinished else unfinished
        self._held = text[cut:]
        return unescaped(text[:cut])

    def end(self) -> str:
        """The rest of the text."""
        held, self._held = self._held, ""
        return unescaped(held)


def _char(match: re.Match[str]) -> str:
    """What stands in place of an escape."""
    if match["high"]:
        return chr(0x10000 + ((int(match["high"], 16) - 0xD800) << 10) + int(match["low"], 16) - 0xDC00)
    if match["code"]:
        code = int(match["code"], 16)
        return match.group() if code < 0x20 or code in (0x22, 0x5C) or 0xD800 <= code < 0xE000 else chr(code)
    return "/" if match["other"] == "/" else match.group()
