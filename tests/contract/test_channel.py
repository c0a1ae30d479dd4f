"""A channel of the real store: everyone hears everything in order, and an outage ends by itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenancy.counter_url import parse_counter_url
from tenancy.stores.valkey.channel import MAX_WAITING_BYTES, ValkeyChannel
from tests.timing import until
from tests.valkey_servers import single_server

HELLO = b"hello"


class Listener:
    """One gateway's end, and what it has heard."""

    def __init__(self, url: str, name: str = "hosts") -> None:
        self.channel = ValkeyChannel(parse_counter_url(url), name)
        self.heard: list[bytes] = []

    @contextlib.asynccontextmanager
    async def on(self) -> AsyncIterator["Listener"]:
        running = asyncio.create_task(self.channel.run(self.heard.append))
        try:
            await self.reached()
            yield self
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def reached(self) -> None:
        """Wait until it hears itself, as gateways do each second."""

        def itself() -> bool:
            self.channel.publish(HELLO)
            return HELLO in self.heard

        await until(itself, 0.05)


def others(heard: list[bytes]) -> list[bytes]:
    return [message for message in heard if message != HELLO]


@pytest.fixture(params=["valkey_url", "cluster_url"], ids=["single", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


async def test_everyone_hears_everything_in_order_and_other_channels_nothing(url: str) -> None:
    async with Listener(url).on() as one, Listener(url).on() as other, Listener(url, "another").on() as stranger:
        told = [b"%d" % number * 1000 for number in range(100)]
        assert all(one.channel.publish(message) for message in told)
        await asyncio.wait_for(one.channel.sent(), None)
        await until(lambda: len(others(other.heard)) == len(others(one.heard)) == len(told))
        assert others(other.heard) == others(one.heard) == told
        assert others(stranger.heard) == []


async def test_an_outage_ends_by_itself_and_nothing_waits_for_it(tmp_path: Path) -> None:
    with single_server(tmp_path / "valkey") as valkey:
        async with Listener(valkey.url).on() as one, Listener(valkey.url).on() as other:
            valkey.stop()
            await until(lambda: not one.channel.publish(b"lost"), 0.05)
            await one.channel.sent()
            valkey.start()
            one.heard.clear()
            other.heard.clear()
            await one.reached()
            await other.reached()
            assert one.channel.publish(b"found")
            await until(lambda: b"found" in other.heard)


async def test_what_waits_is_bounded(url: str) -> None:
    async with Listener(url).on() as one:
        await one.channel.sent()
        half = bytes(MAX_WAITING_BYTES // 2)
        assert one.channel.publish(half)
        assert one.channel.publish(half)
        assert not one.channel.publish(b"one more")
        await one.channel.sent()
        assert one.channel.publish(b"one more")
        await until(lambda: others(one.heard)[-1:] == [b"one more"])


async def test_a_channel_that_never_was_reached_drops_what_it_is_told() -> None:
    channel = ValkeyChannel(parse_counter_url("redis://127.0.0.1:1"), "hosts")
    assert not channel.publish(b"lost")
    await channel.sent()
