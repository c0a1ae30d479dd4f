r"""Request bytes to one JSON object that can be read in only one way, or a Fault.

Two readers of the same bytes must never see two documents: not the gateway and an engine, not a guard and an engine. So everything
that parsers disagree about is refused here: duplicate keys, integers beyond 64 bits, NaN, lone surrogates, bad UTF-8, depth. The
caller of this module serialises the rest again, so that an engine reads what was checked. Knows nothing of OpenAI.

Duplicate keys are found without a parser of our own (msgspec keeps the last key without an error). The decoded object is encoded again:

1. Where the encoding equals the body byte for byte, the body has no duplicates, because an encoding has none. This is the
   usual case (official SDKs write compact JSON in UTF-8) and costs one encode and one compare.
2. Else colons are counted in both. Every string kept has the same colons in both, unless `\u003a` was used to write one;
   every key kept adds one colon in both; a key that was lost, and its value, add at least one in the body only. So without
   `\u003a` the counts are equal exactly where no key was lost.
3. Else the standard library's parser, which hands out every pair, decides and names the key.
"""

import gc
import json
import re
from collections.abc import Iterable
from typing import Final, NoReturn

import msgspec

from domain.faults import Fault, Kind

MAX_DEPTH: Final = 64
"""Most levels of nested containers. Tool schemas seen in the wild stay under 20; parsers give up between 128 (serde) and 1,024 (orjson)."""

MAX_CONTAINERS: Final = 50_000
"""Most objects and arrays in one body. 4,096 messages of four parts each need 20,500; each costs about 0.5 µs to decode and walk,
and an 8 MiB body of `[],` would hold 2.8 million of them (1.2 s of decoding and garbage collection, measured)."""

MAX_KEYS: Final = 100_000
"""Most keys in one body, two per container on average: chat messages and their parts have two each."""

MAX_VALUES: Final = 1_048_576
"""Most values in one array: one prompt of a million token ids, which is the largest context served today."""

MAX_DIGITS: Final = 400
"""Most digits in one number. A double needs at most 309 before the point; more is an attack on a parser."""

UNCHECKED_BYTES: Final = 2 * MAX_CONTAINERS
"""A body up to this size cannot exceed the three counts above: a container takes two bytes, a key four, a value two."""

NAMING_BYTES: Final = 256 * 1024
"""In a body above this size a duplicate key is refused without its name: the second parse that finds it costs 2 ms per 256 KiB."""

LONG_BYTES: Final = 1024 * 1024
"""From this size on a body is searched slice by slice: it holds images, and most slices of an image have no sign that counts."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1
"""Integers engines read alike: Python keeps any size, C++ and Rust parsers turn larger ones into doubles or fail."""

_LONG_LIST: Final = 64

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode

_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_CAPS: Final = ((b"{[", MAX_CONTAINERS, "objects and arrays"), (b":", MAX_KEYS, "keys"), (b",", MAX_VALUES, "values"))
_SLICE_BYTES: Final = 64 * 1024
_DIGITS_TO_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_DIGITS: Final = b"0" * MAX_DIGITS
_ESCAPED_COLONS: Final = (b"\\u003a", b"\\u003A")


def parse_object(body: bytes) -> dict[str, object]:
    """The one object that `body` holds. The caps above bound the cost, whatever the body holds.

    Raises:
        Fault: INVALID_JSON, saying what is wrong.
    """
    return parse_body(body)[0]


def parse_body(body: bytes) -> tuple[dict[str, object], bytes]:
    """As `parse_object`, with the object's encoding, in the order of its keys and without spaces."""
    crowded = len(body) > UNCHECKED_BYTES and _is_crowded(body)
    try:
        document = _decode_uncollected(body) if crowded else _decode(body)
    except RecursionError:
        _too_deep()
    except UnicodeDecodeError:
        _refuse("it is not valid UTF-8")
    except msgspec.DecodeError as error:
        _refuse(_reason(body, error))
    if type(document) is not dict:
        _refuse('it must be an object, like {"model": ...}')
    if len(body) > UNCHECKED_BYTES or _count(body, b"{") + _count(body, b"[") > MAX_DEPTH or not _fits(document):
        _walk(document)
    canonical = _encode(document)
    if canonical != body and (
        _may_escape_colons(body) or _colons(body) != _colons(canonical) or len(body) - len(canonical) > MAX_DIGITS // 2
    ):
        _refuse_ambiguity(body, canonical)
    return document, canonical


def _fits(document: dict[str, object]) -> bool:
    """Whether all integers are in range: MessagePack's encoder has the bounds of `_walk`, and only copies texts."""
    try:
        _pack(document)
    except OverflowError:
        return False
    return True


def _walk(document: dict[str, object]) -> None:
    """Check depth, containers and integers, level by level, so that depth is a loop count and not a recursion."""
    level: list[dict[str, object] | list[object]] = [document]
    containers = 0
    for _ in range(MAX_DEPTH):
        containers += len(level)
        if containers > MAX_CONTAINERS:
            _refuse(f"it holds more than {MAX_CONTAINERS} objects and arrays")
        below: list[dict[str, object] | list[object]] = []
        for container in level:
            values: Iterable[object]
            if isinstance(container, dict):
                values = container.values()
            else:
                values = container
                if len(container) > _LONG_LIST and _are_integers(container):
                    continue
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    below.append(value)  # type: ignore[arg-type]  # `kind` says that it is one
                elif kind is int and not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]  # as above
                    _refuse("it holds an integer of more than 64 bits")
        if not below:
            return
        level = below
    _too_deep()


def _are_integers(values: list[object]) -> bool:
    """Whether a long list (token ids) holds only integers in range; three times faster than a check of each value."""
    if len(values) > MAX_VALUES:
        _refuse(f"it holds an array of more than {MAX_VALUES} values")
    if type(values[0]) is not int or set(map(type, values)) != {int}:
        return False
    try:
        _pack(values)
    except OverflowError:
        _refuse("it holds an integer of more than 64 bits")
    return True


def _refuse_ambiguity(body: bytes, canonical: bytes) -> None:
    """Refuse duplicate keys (cases 2 and 3 above) and numbers of absurd length, which no encoding has."""
    if any(escape in body for escape in _ESCAPED_COLONS):
        _parse_pairs(body)
    elif _colons(body) != _colons(canonical):
        if len(body) <= NAMING_BYTES:
            _parse_pairs(body)
        _refuse("a key stands twice in one object")
    elif len(body) - len(canonical) > MAX_DIGITS // 2 and _LONG_DIGITS in body.translate(_DIGITS_TO_ZERO):
        _parse_pairs(body)


def _may_escape_colons(body: bytes) -> bool:
    if len(body) < LONG_BYTES:
        return b"\\" in body and b"\\u003" in body
    # most slices of an image have no backslash, and to look for one is ten times faster than to look for the escape
    return any(
        body.find(b"\\", start, start + _SLICE_BYTES) >= 0 and body.find(b"\\u003", start, start + _SLICE_BYTES + 5) >= 0
        for start in range(0, len(body), _SLICE_BYTES)
    )


def _count(text: bytes, sign: bytes) -> int:
    """As `text.count`, for a sign that is rare: `replace` finds it by memchr, in a tenth of the time."""
    return len(text) - len(text.replace(sign, b""))


def _colons(text: bytes) -> int:
    if len(text) < LONG_BYTES:
        return _count(text, b":")
    return sum([_total(text, b":", start, start + _SLICE_BYTES) for start in range(0, len(text), _SLICE_BYTES)])


def _parse_pairs(body: bytes) -> None:
    """Parse with the standard library, which hands out every key and number as written."""
    json.loads(body, object_pairs_hook=_distinct, parse_int=_short, parse_float=_short)


def _distinct(pairs: list[tuple[str, object]]) -> None:
    if len(pairs) > 1:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _refuse(f"the key {_shown(key)} stands twice in one object")
            seen.add(key)


def _short(number: str) -> int:
    if len(number) > MAX_DIGITS:
        _refuse(f"it holds a number of {len(number)} characters")
    return 0


def _is_crowded(body: bytes) -> bool:
    """Refuse too many containers, keys or values before anything is built from them.

    Returns whether there may still be too many: brackets and colons inside strings count as others do, except in the part of the body
    where the cap is first reached, so that a body of nothing else is refused for the price of that part. The decoder judges the rest.
    """
    crowded = False
    for signs, cap, unit in _CAPS:
        reach = _reach(body, signs, cap)
        if not reach:
            continue
        crowded = True
        head = body[:reach]
        if head.count(b'"') <= 3 * MAX_KEYS:  # to cut more strings out takes longer than to decode them
            skeleton = _STRING.sub(b"", head) if b"\\" in head else b"".join(head.split(b'"')[::2])
            if _total(skeleton, signs, 0, len(skeleton)) > cap:
                _refuse(f"it holds more than {cap} {unit}")
    return crowded


def _reach(body: bytes, signs: bytes, cap: int) -> int:
    """The position in `body` by which more than `cap` of `signs` have been seen; 0 where there are no more."""
    total = 0
    for start in range(0, len(body), _SLICE_BYTES):
        total += _total(body, signs, start, start + _SLICE_BYTES)
        if total > cap:
            return start + _SLICE_BYTES
    return 0


def _total(body: bytes, signs: bytes, start: int, end: int) -> int:
    # `find` is memchr, five times faster than `count`, and most slices of a long text have no brackets
    return sum(body.count(sign, start, end) for sign in signs if body.find(sign, start, end) >= 0)


def _decode_uncollected(body: bytes) -> object:
    """Decode with the garbage collector off: it would visit a growing heap for every 700 containers made, which turns 0.1 s
    for 8 MiB of containers into 1.2 s. The document holds no cycles.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _decode(body)
    finally:
        if collecting:
            gc.enable()


def _reason(body: bytes, error: msgspec.DecodeError) -> str:
    """The message of msgspec, which has positions and no input; half a surrogate pair reads like a short body there."""
    text = str(error)
    if not body:
        return "the body is empty"
    if "truncated" in text:
        return "it ends too early, or a string holds half of a \\u surrogate pair"
    return text.removeprefix("JSON is malformed: ").partition(" - at ")[0]


def _shown(key: str) -> str:
    return "'" + "".join(c if " " <= c <= "~" else "?" for c in key[:64]) + "'"


def _too_deep() -> NoReturn:
    _refuse(f"it is nested more than {MAX_DEPTH} levels deep")


def _refuse(reason: str) -> NoReturn:
    raise Fault(Kind.INVALID_JSON, f"The request body could not be read as JSON: {reason}.") from None
