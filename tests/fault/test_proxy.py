"""The fault proxy does what it is told, on connections that run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fault.proxy import PASS, Fault, Proxy, black_hole, cut, deaf, delay, drip, proxied, reset, split
from tests.scripted_server import Peer, scripted
from tests.timing import hang_s

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(peer: Peer) -> None:
    while data := await peer.reader.read(100_000):
        await peer.send(data)


@asynccontextmanager
async def through(fault: Fault) -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    async with scripted(echo) as server, proxied(server.url) as proxy:
        proxy.fault = fault
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        yield proxy, reader, writer
        writer.close()


async def took(reader: asyncio.StreamReader, count: int) -> float:
    begun = asyncio.get_running_loop().time()
    await asyncio.wait_for(reader.readexactly(count), hang_s())
    return asyncio.get_running_loop().time() - begun


async def test_what_passes_is_not_changed() -> None:
    sent = bytes(range(256)) * 200
    async with through(PASS) as (_, reader, writer):
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent


async def test_delay_and_drip_take_their_time_and_end_when_they_are_told() -> None:
    async with through(delay(0.1)) as (proxy, reader, writer):
        writer.write(b"a")
        await took(reader, 1)
        writer.write(b"b")  # waits for what the first one's delay leaves
        assert await took(reader, 1) >= 0.05
        proxy.fault = drip(1, 0.05)
        writer.write(b"12345")
        assert await took(reader, 4) >= 0.1
        await reader.readexactly(1)
        proxy.fault = drip(1, 60.0)
        writer.write(b"12345")
        await reader.readexactly(1)
        proxy.fault = PASS
        assert await took(reader, 4) < 5


async def test_a_split_makes_two_pieces() -> None:
    async with through(split(3)) as (_, reader, writer):
        writer.write(b"abcdef")
        assert await reader.read(100) == b"abc"
        assert await reader.read(100) == b"def"


@pytest.mark.parametrize("after", [0, 3])
async def test_a_cut_is_an_end_after_so_many_bytes(after: int) -> None:
    async with through(cut(after)) as (_, reader, writer):
        writer.write(b"abcdef")
        assert await asyncio.wait_for(reader.read(), hang_s()) == b"abcdef"[:after]


async def test_a_reset_is_no_clean_end() -> None:
    async with through(reset(3)) as (_, reader, writer):
        writer.write(b"abcdef")
        with pytest.raises(ConnectionResetError):
            while await asyncio.wait_for(reader.read(100), hang_s()):
                pass
    async with through(PASS) as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(100), hang_s())


async def test_a_black_hole_takes_everything_and_what_it_took_never_comes() -> None:
    async with through(PASS) as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.fault = black_hole()
        late = await asyncio.open_connection("127.0.0.1", proxy.port)
        for one in (writer, late[1]):
            one.write(b"x" * 1_000_000)
            await asyncio.wait_for(one.drain(), hang_s())
        proxy.fault = PASS
        writer.write(b"b")
        for half_open in (reader, late[0]):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(half_open.read(1), 0.1)
        late[1].close()


async def test_a_deaf_one_takes_nothing_until_it_hears_again() -> None:
    sent = b"x" * 20_000_000
    async with through(PASS) as (proxy, reader, writer):
        writer.write(b"a")
        await reader.readexactly(1)
        proxy.fault = deaf()
        writer.write(sent)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.2)
        proxy.fault = PASS
        assert await asyncio.wait_for(reader.readexactly(len(sent)), hang_s()) == sent


async def test_an_end_of_one_side_reaches_the_other() -> None:
    async def says_bye(peer: Peer) -> None:
        await peer.send(b"bye")

    async with scripted(says_bye, echo) as server, proxied(server.url) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await asyncio.wait_for(reader.read(), hang_s()) == b"bye"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"a")
        await reader.readexactly(1)
        writer.close()
        async with asyncio.timeout(hang_s()):
            while proxy.links:
                await asyncio.sleep(0.01)
            assert await server.peers[1].reader.read() == b""
