"""A long plain reply for which nothing was generated, on its way through: the parts that decide anything are kept for the judgement at the
end, the rest is let go.

Vectors make embeddings long and decide nothing, so each vector that is well-formed is kept as an empty list. Everything else is kept whole.
"""

import re
from typing import Final

import msgspec

PASSED_FROM_BYTES: Final = 1024 * 1024
"""A plain reply up to this size is judged before its first byte is sent, so that a broken one can still become another backend's answer or
an honest status, and so is every answer that was generated. 60 embeddings of 1,024 dimensions as JSON numbers are longer."""

MAX_KEPT_BYTES: Final = 32 * 1024 * 1024
"""Most bytes of one reply that are kept for its judgement; vectors do not count."""

MAX_VECTOR_BYTES: Final = 1024 * 1024
"""A longer vector is kept like other content; 65,536 dimensions as JSON numbers are shorter than this."""

MARGIN_BYTES: Final = 2048
"""How far from the end of the bytes so far the name of a model may begin without being whole; names have at most 256 characters."""

_KEY: Final = b'"embedding"'
_OPENING: Final = re.compile(rb'"embedding"\s*+:\s*+([\["])')
_CUT_OPENING: Final = re.compile(rb'"embedding"\s*+(?::\s*+)?+$')
_BASE64: Final = re.compile(rb'"(?:[A-Za-z0-9+/=]|\\/)*+"')
_EMPTY: Final = b'"embedding":[]'
_text = msgspec.json.Decoder(str).decode
_numbers = msgspec.json.Decoder(list[float]).decode
_TOKEN: Final = re.compile(rb'"((?:[^"\\]|\\.)*+)"(\s*+:)?|[{\[]|[}\]]|"', re.DOTALL)
"""A string of JSON, perhaps a key, an opening or closing bracket, or the quote of a string that is cut."""
_STRING: Final = re.compile(rb'\s*+("(?:[^"\\]|\\.)*+")', re.DOTALL)
_MODEL_KEY: Final = b'"model"'


class LongReply:
    """The reply so far: what is kept of it, and the bytes that are held back from the caller."""

    __slots__ = ("_held", "_kept", "_pending", "_pending_bytes", "size")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._pending: list[bytes] = []
        """Bytes from a vector on that is not complete yet."""
        self._pending_bytes = 0
        self._held = b""
        self.size = 0
        """The bytes that are kept."""

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; returns the bytes that may go on. No name of a model is cut in two, and the end stays here."""
        self._keep(data)
        data = self._held + data
        cut = max(0, len(data) - len(_MODEL_KEY))
        name_at = data.find(_MODEL_KEY, max(0, len(data) - MARGIN_BYTES))
        if name_at >= 0:
            cut = min(cut, name_at)
        self._held = data[cut:]
        return data[:cut]

    def end(self) -> tuple[bytes, bytes]:
        """What is kept of the whole body, with each vector as an empty list, and the bytes that were held back."""
        self._kept.extend(self._pending)
        return b"".join(self._kept), self._held

    def _keep(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes <= MAX_VECTOR_BYTES and len(data) < self._pending_bytes and b"]" not in data and b'"' not in data:
            return  # the vector goes on
        kept, rest = _without_vectors(b"".join(self._pending))
        self._kept.append(kept)
        self._pending = [rest]
        self._pending_bytes = len(rest)
        self.size += len(kept)


def _without_vectors(data: bytes) -> tuple[bytes, bytes]:
    """The data with each whole vector as an empty list, and the rest from a vector on that is not complete yet."""
    kept: list[bytes] = []
    at = look_at = 0
    while (key_at := data.find(_KEY, look_at)) >= 0:
        opening = _OPENING.match(data, key_at)
        if opening is None:
            if len(data) - key_at <= MAX_VECTOR_BYTES and _CUT_OPENING.match(data, key_at):
                return b"".join([*kept, data[at:key_at]]), data[key_at:]
            look_at = key_at + len(_KEY)  # a value, not a key
            continue
        begin = opening.start(1)
        end = data.find(b"]" if opening[1] == b"[" else b'"', begin + 1) + 1
        if not end and len(data) - key_at <= MAX_VECTOR_BYTES:
            return b"".join([*kept, data[at:key_at]]), data[key_at:]
        if end and _is_vector(data[begin:end]):
            kept.append(data[at:key_at])
            kept.append(_EMPTY)
            at = end
        look_at = end or len(data)
    rest_at = max(at, len(data) - len(_KEY) + 1)  # a key may be cut in two
    return b"".join([*kept, data[at:rest_at]]), data[rest_at:]


def _is_vector(value: bytes) -> bool:
    if value.startswith(b'"'):
        return _BASE64.fullmatch(value) is not None
    try:
        _numbers(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def model_named(body: bytes) -> str | None:
    """The model that the beginning of a reply names in its own object, none further inside; None where it names none yet."""
    depth = 0
    for token in _TOKEN.finditer(body):
        mark = token[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        elif mark == b'"':
            return None
        elif (
            depth == 1
            and token[2] is not None
            and (token[1] == b"model" or (b"\\" in token[1] and string_of(b'"%b"' % token[1]) == "model"))
        ):
            value = _STRING.match(body, token.end())
            return None if value is None else string_of(value[1])
    return None


def string_of(written: bytes) -> str | None:
    """The text that a string of JSON stands for, quotes included in `written`; None where it is none."""
    try:
        return _text(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
