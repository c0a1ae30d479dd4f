"""Fair reading of sockets: a connection that sends fast must not keep all others waiting.

uvloop reads a socket up to 32 times in a row, 256 kB each time, before it looks at another one: a flood of the data that is slowest to read
(chunks of one byte, events of one token) would hold the loop for a second. A protocol that gets a full piece calls `take_turns`, and gets
the next one in the next turn of the loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final

FULL: Final = 250_000
"""A piece of this many bytes filled the loop's buffer (uvloop's 256,000 bytes, asyncio's 262,144), so more is waiting."""


def take_turns(transport: asyncio.Transport, wanted: Callable[[], bool]) -> None:
    """Stop reading until every other connection has had its turn; resume then if `wanted()` is still true."""
    transport.pause_reading()
    asyncio.get_running_loop().call_soon(_go_on, transport, wanted)


def _go_on(transport: asyncio.Transport, wanted: Callable[[], bool]) -> None:
    if wanted() and not transport.is_closing():
        transport.resume_reading()
