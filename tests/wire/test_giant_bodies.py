"""R32: giant bodies, bombs and floods of chunks are refused with 413, and reading them never holds the loop for long.

The longest turn is the processor time of one callback of the event loop, which other processes cannot lengthen; a client in the same loop
is measured too. The memory of a whole gateway under the same bodies is measured in `tests/fault/test_callers.py`.
"""

import asyncio
import contextlib
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from domain.faults import Kind
from tests.scale import scaled
from tests.timing import HANG_S, timely
from tests.wire.edge_server import edge

MIB = 1024 * 1024
LOOP_LAG_S = 0.05
CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n%b\r\n"
GZIP = b"Content-Encoding: gzip\r\n"


def bomb(gibibytes: int) -> bytes:
    """A gzip body of so many GiB of zeros, about a thousandth of that long."""
    deflating = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    # a full flush forgets what came before, so that the second piece may follow itself
    first, zeros = (deflating.compress(b"\0" * 16 * MIB) + deflating.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + zeros * (64 * gibibytes - 1)


def chunks_of(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 65_536):
        part = body[at : at + 65_536]
        yield b"%x\r\n%b\r\n" % (len(part), part)


def giant() -> Iterator[bytes]:
    """A body of 1 GiB in chunks; the short form has 64 MiB, eight times the limit."""
    block = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    return (block for _ in range(scaled(64, 1024) * 16))


def floods() -> Iterator[bytes]:
    """A million chunks of a byte."""
    some = b"1\r\nx\r\n" * 10_000
    return (some for _ in range(100))


def ten_gib() -> Iterator[bytes]:
    """Larger than a body may be before it is unpacked."""
    return chunks_of(bomb(10))


def five_gib() -> Iterator[bytes]:
    """As large as a bomb can be that is read whole."""
    return iter((*chunks_of(bomb(5)), b"0\r\n\r\n"))


BODIES = {
    "1 GiB in chunks": (b"", giant),
    "a million chunks": (b"", floods),
    "a bomb of 10 GiB": (GZIP, ten_gib),
    "a bomb of 5 GiB, read whole": (GZIP, five_gib),
}


@pytest.mark.fault("giant body")
@pytest.mark.req("R32")
@pytest.mark.parametrize("name", BODIES)
def test_it_is_refused_and_holds_the_loop_for_50_ms_at_most(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: pytest.FixtureRequest
) -> None:
    field, body = BODIES[name]
    turns = [0.0]
    run = asyncio.Handle._run  # type: ignore[attr-defined]

    def measured(handle: Any) -> None:
        begun = time.thread_time()
        run(handle)
        turns.append(time.thread_time() - begun)

    async def attacked() -> bytes:
        async with edge() as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
            writer.write(CHUNKED % field)
            answer = asyncio.create_task(reader.readuntil(b"\r\n"))
            with contextlib.suppress(ConnectionError):
                for part in pieces:
                    if answer.done():
                        break
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
            got = await asyncio.wait_for(answer, HANG_S)
            writer.close()
            assert [fault.kind for fault in running.faults] == [Kind.BODY_TOO_LARGE]
            assert running.served == []
            return got

    pieces = list(body())
    monkeypatch.setattr(asyncio.Handle, "_run", measured)
    # asyncio's own loop, whose callbacks can be measured one by one; it reads as many bytes at once as uvloop
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert runner.run(attacked()).startswith(b"HTTP/1.1 413 ")
    assert len(turns) > 50
    record_property("figure", f"{name}: 413, the loop is held for {1000 * timely(max(turns), LOOP_LAG_S):.0f} ms at most")  # type: ignore[operator]
