"""The content codings of request bodies (RFC 9110, 8.4): the accepted ones, and unpacking with a bound.

A small compressed body may unpack to a thousand times its size, so it is unpacked in steps, and no further than one step beyond the limit.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Final

from domain.faults import Fault, Kind
from gateway.http.edge.body_size import REMEDY

CODINGS: Final = {b"gzip": "gzip", b"x-gzip": "gzip", b"deflate": "deflate"}
"""Names of accepted codings in lower case. `deflate` is the zlib format, as in RFC 9110; data without the header of zlib is refused."""

_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

STEP_BYTES: Final = 64 * 1024
"""Unpacked bytes of one step."""
FED_BYTES: Final = 16 * 1024
"""Packed bytes that zlib gets at once: it copies the rest of them in every step."""
TURN_BYTES: Final = 1024 * 1024
"""Unpacked bytes after which other requests get a turn; about 3 ms of work."""


async def unpacked(body: bytes | bytearray, coding: str, limit: int, grow: Callable[[int], None] = lambda _bytes: None) -> bytes:
    """The body as it was before it was compressed.

    Args:
        coding: a value of CODINGS.
        limit: the most bytes that it may unpack to.
        grow: called with the unpacked bytes so far; raises a Fault where there is no room for them.

    Raises:
        Fault: BODY_TOO_LARGE beyond the limit; INVALID_JSON for data that is damaged, cut off, or followed by more; raised by `grow`.
    """
    inflator = zlib.decompressobj(_WINDOW_BITS[coding])
    out = bytearray()
    packed, fed, turn = memoryview(body), 0, 0
    while not inflator.eof and (inflator.unconsumed_tail or fed < len(packed)):
        data = inflator.unconsumed_tail
        if not data:
            data = bytes(packed[fed : fed + FED_BYTES])
            fed += FED_BYTES
        try:
            out += inflator.decompress(data, STEP_BYTES)
        except zlib.error:
            raise _damaged(coding, f"The body is not valid {coding}, which its 'content-encoding' says it is.") from None
        if len(out) > limit:
            raise Fault(Kind.BODY_TOO_LARGE, f"The body unpacks to more than the {limit} bytes that are allowed. {REMEDY}")
        grow(len(out))
        turn += STEP_BYTES
        if turn >= TURN_BYTES:
            turn = 0
            await asyncio.sleep(0)
    if not inflator.eof:
        raise _damaged(coding, f"The {coding} data of the body ends before its end mark.")
    if inflator.unused_data or fed < len(packed):
        raise _damaged(coding, f"More bytes follow the end of the {coding} data of the body.")
    return bytes(out)


def _damaged(coding: str, message: str) -> Fault:
    hint = f"Send one complete {coding} stream, or the JSON as it is without 'content-encoding'."
    return Fault(Kind.INVALID_JSON, f"{message} {hint}")
