"""The format of usage events in a write-ahead segment: frames that can be told apart again whatever happened to the file. Pure.

    MAGIC (4 bytes) | length of the payload (u32, little endian) | CRC-32 of length and payload (u32) | payload (MessagePack)

The decoder takes any bytes and never raises. Bytes that are no good frame are reported and skipped up to the next good frame: the
checksum covers the length too, so a flipped bit there costs one frame and not the rest of the segment.

MAGIC cannot occur in a text: 0xC0, 0xC1, 0xFE and 0xFF are not in UTF-8. A caller, who chooses texts and nothing else, can therefore
not hide a frame in a text, to be found when the frame around it is damaged.
"""

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

import msgspec

from tenancy.usage import UsageEvent

MAGIC: Final = b"\xc1\xfe\xff\xc1"
MAX_PAYLOAD: Final = 64 * 1024
"""Bytes. Every text of an event is bounded where it is made; a length above this is damage."""
MAX_TEXT: Final = 256
"""Characters kept of a text that has to be cut; the gateway's own names are shorter."""
MAX_NUMBER: Final = 10**15
"""Most tokens, units and nano-dollars of one request (a million dollars); sums of 9,000 of them fit 64 bits."""
_HEAD: Final = Struct("<4sII")
_LENGTH: Final = Struct("<I")

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(UsageEvent).decode


class Damage(msgspec.Struct, frozen=True):
    """Bytes of a segment that hold no event."""

    offset: int
    size: int
    why: str


def frame(event: UsageEvent) -> bytes:
    """One event as a frame. An event that cannot be encoded as it is (half a surrogate pair, a number beyond 64 bits, an overlong text)
    is encoded as `tamed` returns it: a row with a repaired label is worth more than none."""
    try:
        payload = _encode(event)
    except (UnicodeEncodeError, OverflowError):
        payload = _encode(tamed(event))
    length = len(payload)
    if length > MAX_PAYLOAD:
        payload = _encode(tamed(event))
        length = len(payload)
    return _HEAD.pack(MAGIC, length, zlib.crc32(payload, zlib.crc32(_LENGTH.pack(length)))) + payload


def tamed(event: UsageEvent) -> UsageEvent:
    """The event with texts of at most MAX_TEXT characters that are Unicode without NUL, and numbers from 0 to MAX_NUMBER."""
    usage = msgspec.structs.replace(event.usage, **_tame(event.usage))
    blocked = None if event.blocked is None else msgspec.structs.replace(event.blocked, **_tame(event.blocked))
    return msgspec.structs.replace(event, **_tame(event), usage=usage, blocked=blocked)


def _tame(value: msgspec.Struct) -> dict[str, str | int]:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    texts = {
        name: text[:MAX_TEXT].encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        for name, text in fields.items()
        if isinstance(text, str)
    }
    return {**texts, **{name: min(max(number, 0), MAX_NUMBER) for name, number in fields.items() if type(number) is int}}


def read_frames(data: bytes) -> Iterator[UsageEvent | Damage]:
    """Every event of a segment in order, and between them a Damage for bytes that could not be read. Total: any bytes are accepted."""
    at = 0
    bad_from = None
    why = ""
    while at < len(data):
        result = _frame_at(data, at)
        if not isinstance(result, str):
            event, after = result
            if bad_from is not None:
                yield Damage(bad_from, at - bad_from, why)
                bad_from = None
            yield event
            at = after
            continue
        if bad_from is None:
            bad_from = at
            why = result
        at = data.find(MAGIC, at + 1)
        if at < 0:
            break
    if bad_from is not None:
        yield Damage(bad_from, len(data) - bad_from, why)


def _frame_at(data: bytes, at: int) -> tuple[UsageEvent, int] | str:
    """The event whose frame begins at `at` and where the next frame begins, or what is wrong, in words."""
    body = at + _HEAD.size
    if body > len(data):
        return "torn: the head of a frame is cut off"
    magic, length, checksum = _HEAD.unpack_from(data, at)
    if magic != MAGIC:
        return "no frame begins here"
    if length > MAX_PAYLOAD:
        return f"a frame of {length} bytes cannot be"
    payload = data[body : body + length]
    if len(payload) < length:
        return "torn: the frame is cut off"
    if zlib.crc32(payload, zlib.crc32(_LENGTH.pack(length))) != checksum:
        return "the checksum does not match"
    try:
        return _decode(payload), body + length
    except (msgspec.DecodeError, ValueError):
        return "a good frame, but no event of this version"
