"""Laws of `tenancy.stores.valkey.client.Scripts` on every kind of real store, and what each kind's own failures do to it."""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenancy.counter_url import Address, CounterUrl, StoreKind, parse_counter_url
from tenancy.ports import CountersAway
from tenancy.stores.valkey.breaker import FAILURES
from tenancy.stores.valkey.client import ValkeyScripts
from tenancy.stores.valkey.node import TIMEOUT_S
from tenancy.stores.valkey.topology import slot_of
from tests.timing import loop_lateness, skip_stalled, until
from tests.valkey_servers import FaultProxy, ask, cluster_of_three, sentinel_set, single_server

SCRIPTS = {
    "add": "return redis.call('INCRBY', KEYS[1], ARGV[1])",
    "echo": "return {KEYS[1], KEYS[2], ARGV[1], ARGV[2]}",
    "wrong": "return redis.call('LPUSH', KEYS[1], 'x')",
    "server": "return redis.call('GET', KEYS[1])",
}
LATE_S = TIMEOUT_S + 0.01
"""What R18 allows."""
READY_S = 60.0
"""When a start is given up, so that a test ends that would hang."""


@contextlib.asynccontextmanager
async def opened(url: str | CounterUrl) -> AsyncIterator[ValkeyScripts]:
    scripts = ValkeyScripts(parse_counter_url(url) if isinstance(url, str) else url, SCRIPTS)
    try:
        assert await scripts.start(READY_S), scripts.why
        yield scripts
    finally:
        await scripts.close()


@pytest.fixture(params=["single", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    name = {"single": "valkey_url", "sentinel": "sentinel_url", "cluster": "cluster_url"}[request.param]
    return str(request.getfixturevalue(name))


async def eventually(scripts: ValkeyScripts, key: bytes) -> None:
    """Ask until the store is back."""
    while True:
        with contextlib.suppress(CountersAway):
            await scripts.run("add", [key], [0])
            return
        await asyncio.sleep(0.005)


@pytest.mark.usefixtures("patient")
async def test_a_script_gets_its_keys_and_arguments(url):
    async with opened(url) as scripts:
        assert await scripts.run("echo", [b"{t}:a", b"{t}:b"], [b"\x00\r\n\xff", 2**52]) == [
            b"{t}:a",
            b"{t}:b",
            b"\x00\r\n\xff",
            b"%d" % 2**52,
        ]


@pytest.mark.usefixtures("patient")
async def test_every_one_of_many_at_once_gets_its_own_answer(url):
    async with opened(url) as scripts:
        keys = [b"{tenant-%d}:x" % i for i in range(200)]
        assert await asyncio.gather(*(scripts.run("add", [key], [i]) for i, key in enumerate(keys))) == list(range(200))
        assert await asyncio.gather(*(scripts.run("add", [b"{t}:all"], [1]) for _ in range(500))) == list(range(1, 501))


@pytest.mark.usefixtures("patient")
async def test_a_server_that_forgot_the_scripts_is_given_them_again(valkey_url):
    async with opened(valkey_url) as scripts:
        ask(parse_counter_url(valkey_url).addresses[0].port, "SCRIPT", "FLUSH")
        assert sorted(await asyncio.gather(*(scripts.run("add", [b"n"], [1]) for _ in range(20)))) == list(range(1, 21))


@pytest.mark.usefixtures("patient")
async def test_a_script_that_fails_does_not_look_like_a_store_that_is_away_for_others(valkey_url):
    async with opened(valkey_url) as scripts:
        await scripts.run("add", [b"n"], [1])
        for _ in range(20):
            with pytest.raises(CountersAway, match="WRONGTYPE"):
                await scripts.run("wrong", [b"n"], [])
        assert scripts.up
        assert await scripts.run("add", [b"n"], [1]) == 2


@pytest.mark.usefixtures("patient")
async def test_a_caller_that_goes_away_takes_no_one_elses_answer(valkey_url):
    async with opened(valkey_url) as scripts:
        asking = [asyncio.create_task(scripts.run("add", [b"%d" % i], [i])) for i in range(50)]
        await asyncio.sleep(0)
        for task in asking[::3]:
            task.cancel()
        done = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) if i % 3 == 0 else answer == i for i, answer in enumerate(done))
        assert await scripts.run("add", [b"7"], [1]) == 8


@pytest.mark.usefixtures("patient")
async def test_credentials_and_database(tmp_path):
    with single_server(tmp_path / "plain") as plain:
        ask(plain.port, "CONFIG", "SET", "requirepass", "p@ss/word")
        async with opened(f"redis://:p%40ss%2Fword@127.0.0.1:{plain.port}/3") as scripts:
            assert await scripts.run("add", [b"n"], [5]) == 5
        wrong = ValkeyScripts(parse_counter_url(f"redis://:guess@127.0.0.1:{plain.port}"), SCRIPTS)
        assert not await wrong.start(0.3)
        await until(lambda: "WRONGPASS" in wrong.why)
        assert not wrong.up and "guess" not in wrong.why
        await wrong.close()


async def test_a_replica_is_not_taken_for_the_store(sentinel_url, sentinel_servers):
    replica = next(server for server in sentinel_servers.data if server is not sentinel_servers.primary)
    scripts = ValkeyScripts(parse_counter_url(replica.url), SCRIPTS)
    assert not await scripts.start(0.5)
    await until(lambda: "replica" in scripts.why)
    assert not scripts.up
    await scripts.close()


async def test_nothing_listens(tmp_path):
    scripts = ValkeyScripts(CounterUrl(StoreKind.SINGLE, (Address(str(tmp_path / "no.sock"), 0),)), SCRIPTS)
    assert not await scripts.start(0.3)
    async with loop_lateness() as lateness:
        waits = [await refused(scripts) for _ in range(10)]
    assert max(waits) < LATE_S + 2 * max(lateness)
    await scripts.close()


@pytest.mark.usefixtures("patient")
async def test_a_server_that_starts_again_is_found_again(tmp_path):
    with single_server(tmp_path / "server") as server:
        async with opened(server.url) as scripts:
            await scripts.run("add", [b"n"], [1])
            lineage = scripts.lineage(b"n")
            server.stop(signal.SIGKILL)
            with pytest.raises(CountersAway):
                await scripts.run("add", [b"n"], [1])
            server.start()
            await eventually(scripts, b"n")
            assert scripts.lineage(b"n") != lineage, "an empty server is told from the old one"


async def refused(scripts: ValkeyScripts) -> float:
    """Seconds that one call waited for nothing."""
    began = time.monotonic()
    with pytest.raises(CountersAway):
        await scripts.run("add", [b"n"], [1])
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.req("R18")
async def test_a_slow_store_holds_nobody_up(tmp_path, record_property):
    """As many requests wait as open the breaker, each for the time-out; no other is sent to the store, and none waits."""
    with single_server(tmp_path / "server") as server:
        async with FaultProxy(server.port) as proxy, opened(proxy.url) as scripts, loop_lateness() as lateness:
            await eventually(scripts, b"n")
            proxy.delay_s, sent = 2.0, proxy.scripts
            began = time.monotonic()
            waits = [await refused(scripts)]
            while scripts.up:
                waits.append(await refused(scripts))
            opened_after = time.monotonic() - began
            while time.monotonic() - began < 3.0:
                waits.append(await refused(scripts))
                await asyncio.sleep(0.1)
            record_property("figure", f"longest wait {max(waits) * 1e3:.0f} ms, breaker open after {opened_after:.2f} s")
            assert proxy.scripts - sent <= FAILURES and not scripts.up
            assert max(waits) < LATE_S + 2 * max(lateness)
            proxy.delay_s = 0.0
            await eventually(scripts, b"n")


@pytest.mark.req("R18")
async def test_a_store_that_answers_late_every_time_is_not_back(tmp_path):
    """It would pass a patient greeting; requests must not pay for finding that out again and again."""
    with single_server(tmp_path / "server") as server:
        async with FaultProxy(server.port) as proxy, opened(proxy.url) as scripts, loop_lateness() as lateness:
            await eventually(scripts, b"n")
            proxy.delay_s, sent = 0.3, proxy.scripts
            began = time.monotonic()
            while time.monotonic() - began < 3.0:
                with contextlib.suppress(CountersAway):
                    await scripts.run("add", [b"n"], [1])
                await asyncio.sleep(0.02)
            if max(lateness) > proxy.delay_s - TIMEOUT_S:
                skip_stalled("a late answer was there as soon as its time-out was looked at")
            assert proxy.scripts - sent <= FAILURES, "five time-outs and no more"


@pytest.mark.slow
async def test_a_silent_server_is_left_alone_and_found_again(tmp_path):
    with single_server(tmp_path / "server") as server:
        async with FaultProxy(server.port) as proxy, opened(proxy.url) as scripts, loop_lateness() as lateness:
            await eventually(scripts, b"n")
            server.pause()
            sent, waits = proxy.scripts, []
            for _ in range(40):
                waits += await asyncio.gather(*(refused(scripts) for _ in range(8)))
                await asyncio.sleep(0.005)
            assert proxy.scripts - sent <= 8, "those that were under way together"
            assert max(waits) < LATE_S + 2 * max(lateness)
            server.resume()
            await eventually(scripts, b"n")


async def until_kept(scripts: ValkeyScripts) -> int:
    """What the store has counted."""
    while True:
        with contextlib.suppress(CountersAway):
            return int(await scripts.run("add", [b"{t}:n"], [0]))
        await asyncio.sleep(0.005)


@pytest.mark.slow
async def test_a_killed_primary_is_replaced_under_load(tmp_path, record_property):
    with sentinel_set(tmp_path) as servers:
        async with opened(servers.url) as scripts, loop_lateness() as lateness:
            counted, longest_s = 0, 0.0

            async def count() -> int:
                nonlocal counted, longest_s
                asked = time.monotonic()
                answers = await asyncio.gather(*(scripts.run("add", [b"{t}:n"], [1]) for _ in range(16)), return_exceptions=True)
                longest_s = max(longest_s, time.monotonic() - asked)
                assert all(isinstance(answer, int | CountersAway) for answer in answers)
                done = sum(isinstance(answer, int) for answer in answers)
                counted += done
                await asyncio.sleep(0.002)
                return done

            for _ in range(100):
                await count()
            servers.primary.stop(signal.SIGKILL)
            killed_at = time.monotonic()
            while not await count():
                pass
            back_s = time.monotonic() - killed_at
            kept = await until_kept(scripts)
            lost = counted - kept
            record_property("figure", f"back {back_s:.1f} s after the kill, {max(lost, 0)} of {counted} writes lost")
            assert lost <= counted * 0.05 + 16
            assert longest_s < 0.5 + 2 * max(lateness)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_slot_moves_under_load(cluster_url, cluster_nodes):
    async with opened(cluster_url) as scripts:
        key = b"{moving-%d}:n" % random.randrange(10_000)
        slot = slot_of(key)
        source = cluster_nodes.owner(slot)
        target = next(node for node in cluster_nodes.nodes if node is not source)
        stop, counted, away = asyncio.Event(), 0, 0

        async def count() -> None:
            nonlocal counted, away
            while not stop.is_set():
                try:
                    await scripts.run("add", [key], [1])
                    counted += 1
                except CountersAway:
                    away += 1
                await asyncio.sleep(0.001)

        counting = asyncio.create_task(count())
        await until(lambda: counted > 50)
        await asyncio.to_thread(cluster_nodes.move, slot, target)
        before = counted
        await until(lambda: counted > before + 100)
        stop.set()
        await counting
        assert away <= 5, "the move is nobody's refusal"
        assert counted <= await scripts.run("add", [key], [0]) <= counted + away, "and counts nothing twice"
        await asyncio.to_thread(cluster_nodes.move, slot, source)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
async def test_a_node_of_a_cluster_is_away_for_its_own_tenants_only(tmp_path: Path):
    with cluster_of_three(tmp_path) as cluster:
        async with opened(cluster.url) as scripts:
            keys = {cluster.owner(slot_of(b"{t%d}" % i)).port: b"{t%d}" % i for i in range(50)}
            assert len(keys) == 3
            down = cluster.nodes[1]
            down.stop(signal.SIGKILL)
            for port, key in keys.items():
                if port == down.port:
                    with pytest.raises(CountersAway):
                        await scripts.run("add", [key], [1])
                else:
                    assert await scripts.run("add", [key], [1]) == 1
            down.start()
            await eventually(scripts, keys[down.port])
