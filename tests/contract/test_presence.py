"""Laws of `tenancy.ports.Presence`: in memory, and on every kind of real store."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tenancy.counter_url import parse_counter_url
from tenancy.ports import CountersAway, Presence, Seats
from tenancy.stores.memory import MemoryPresence, MemoryRoom
from tenancy.stores.valkey import ValkeyPresence
from tenancy.stores.valkey.client import ValkeyScripts
from tests.timing import skip_stalled
from tests.valkey_servers import single_server

GONE_S = 0.4
"""The time to live of members whose silence a test is about."""
LONG_S = 600.0
"""The time to live of all other members: none of them is gone while a machine stands still."""

pytestmark = pytest.mark.usefixtures("patient")


class Place:
    """Where members meet, and how time goes by there."""

    def __init__(self, member: Callable[..., Presence], wait: Callable[[float], Awaitable[None]]) -> None:
        self.member = member
        self.wait = wait


@pytest.fixture(params=["memory", "single", "cluster"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "memory":
        now = [0.0]

        async def wait(seconds: float) -> None:
            now[0] += seconds

        room = MemoryRoom(lambda: now[0], GONE_S)
        yield Place(lambda name, _gone_s=LONG_S: MemoryPresence(room, name), wait)
        return
    url = request.getfixturevalue({"single": "valkey_url", "cluster": "cluster_url"}[request.param])
    scripts = ValkeyScripts(parse_counter_url(url))
    try:
        assert await scripts.start(60.0), scripts.why
        yield Place(lambda name, gone_s=LONG_S: ValkeyPresence(scripts, name, gone_s), asyncio.sleep)
    finally:
        await scripts.close()


async def test_everyone_who_beats_is_counted_once_and_has_a_place_of_its_own(place: Place) -> None:
    members = [place.member(name) for name in ("b", "c", "a")]
    assert await members[0].beat("chat") == Seats(1, 0)
    for _ in range(2):
        for member in members:
            await member.beat("chat")
    assert [await member.beat("chat") for member in members] == [Seats(3, 1), Seats(3, 2), Seats(3, 0)]


async def test_groups_know_nothing_of_each_other(place: Place) -> None:
    a, b = place.member("a"), place.member("b")
    groups = [f"pool-{number}" for number in range(20)]
    assert await asyncio.gather(*(a.beat(group) for group in groups)) == [Seats(1, 0)] * 20
    assert (await b.beat("pool-3"), await b.beat("other")) == (Seats(2, 1), Seats(1, 0))


async def test_who_is_silent_is_gone_after_the_time_and_not_before(place: Place) -> None:
    a, b = place.member("a", GONE_S), place.member("b", GONE_S)
    await a.beat("chat")
    await b.beat("chat")
    for _ in range(3):
        await place.wait(GONE_S / 2)
        found = await b.beat("chat")
    assert found == Seats(1, 0)
    began = time.monotonic()
    await b.beat("chat")
    both = await a.beat("chat")
    await place.wait(GONE_S / 4)
    still = await b.beat("chat")
    if time.monotonic() - began > GONE_S:
        skip_stalled("for longer than a member may be silent")
    assert (both, still) == (Seats(2, 0), Seats(2, 1))


async def test_who_leaves_is_gone_at_once_and_may_come_back(place: Place) -> None:
    a, b = place.member("a"), place.member("b")
    await a.beat("chat")
    await b.beat("chat")
    await a.leave("chat")
    await a.leave("chat")
    assert await b.beat("chat") == Seats(1, 0)
    assert await a.beat("chat") == Seats(2, 0)


async def test_a_store_that_is_away_says_so(tmp_path: Path) -> None:
    with single_server(tmp_path) as server:
        scripts = ValkeyScripts(parse_counter_url(server.url))
        assert await scripts.start(60.0), scripts.why
    presence = ValkeyPresence(scripts, "a", GONE_S)
    for asked in (presence.beat, presence.leave):
        with pytest.raises(CountersAway):
            await asked("chat")
    await scripts.close()
