"""Backends that come and go under load: what callers notice of it (nothing), and what is left of those that went (nothing)."""

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from domain.membership import Member
from gateway.fleet.sources import RegisteredSource, end_drain, order_drain
from routing.fleet import Availability, Backend
from tenancy.stores.memory import MemoryMemberStore
from tests.gateway_harness import Gateway, Stream, chat, gateway, stream
from tests.scale import scaled
from tests.timing import HANG_S, until

SIM = SimSettings(models=("sim",), speed=20)
"""Streams of a second or so, so that changes fall into them."""
QUICK = SimSettings(models=("sim",), speed=2000)


class Load:
    """Streams, all the time, until told to stop."""

    def __init__(self, client: httpx.AsyncClient, tokens: int) -> None:
        self._client = client
        self._tokens = tokens
        self._stop = False
        self.seen: list[Stream] = []

    async def caller(self) -> None:
        while not self._stop:
            self.seen.append(await stream(self._client, max_tokens=self._tokens, ignore_eos=True))

    def stop(self) -> None:
        self._stop = True

    def all_whole(self) -> bool:
        return bool(self.seen) and all(s.status == 200 and s.clean and s.done and not s.errors for s in self.seen)


@asynccontextmanager
async def load(running: Gateway, callers: int = 6, tokens: int = 24) -> AsyncIterator[Load]:
    async with running.client() as client:
        made = Load(client, tokens)
        tasks = [asyncio.create_task(made.caller()) for _ in range(callers)]
        try:
            yield made
        finally:
            made.stop()
            await asyncio.gather(*tasks)


def backend(running: Gateway, backend_id: str) -> Backend | None:
    return next((b for b in running.deps.live.fleet.pools["chat"].backends if b.id == backend_id), None)


async def until_is(running: Gateway, backend_id: str, state: Availability | None, within_s: float = HANG_S) -> None:
    async with asyncio.timeout(within_s):
        while True:
            found = backend(running, backend_id)
            if (found.state if found else None) is state:
                return
            await asyncio.sleep(0.01)


def nothing_left_of(running: Gateway, backend_id: str) -> bool:
    deps = running.deps
    keepers = (deps.upstreams, deps.pool_states["chat"].load_table.row_of, deps.live.names, deps.live.signals)
    return backend(running, backend_id) is None and not any(backend_id in keeper for keeper in keepers)


def listed(path: Path, **urls: str) -> None:
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps({"backends": [{"id": key, "url": url} for key, url in urls.items()]}))
    partial.replace(path)


@pytest.mark.req("ROUTERS-29")
async def test_a_file_rewritten_under_load_moves_the_fleet_and_cuts_no_stream(tmp_path: Path) -> None:
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        listed(tmp_path / "backends.yaml", a=one.url)
        pool = {"backends": [], "discover": {"file": "backends.yaml"}}
        async with gateway(pool=pool, base_dir=tmp_path) as running, load(running) as traffic:
            await asyncio.sleep(0.3)
            listed(tmp_path / "backends.yaml", a=one.url, b=two.url)
            await until_is(running, "b", Availability.UP)
            await until(lambda: two.counters.finished > 0)
            listed(tmp_path / "backends.yaml", b=two.url)
            await until_is(running, "a", None)
            assert nothing_left_of(running, "a")
            before = one.counters.finished
            await asyncio.sleep(0.5)
            assert one.counters.finished == before
            traffic.stop()
        assert traffic.all_whole()


async def test_a_bad_file_leaves_the_last_good_one_in_force_and_says_where_and_what(tmp_path: Path) -> None:
    file = tmp_path / "backends.yaml"
    async with SimEngine(QUICK) as one:
        listed(file, a=one.url)
        pool = {"backends": [], "discover": {"file": "backends.yaml"}}
        async with gateway(pool=pool, base_dir=tmp_path) as running, running.client() as client:
            file.write_text("backends:\n  - {id: a, url: 'ftp://x'}\n")
            async with asyncio.timeout(HANG_S):
                while not (trouble := running.fleet.membership.states()[1].trouble):
                    await asyncio.sleep(0.05)
            assert "backends.yaml:2" in trouble
            assert "write http://host:port" in trouble
            assert running.fleet.membership.states()[1].members == 1
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            file.unlink()
            await until(lambda: "create it" in running.fleet.membership.states()[1].trouble)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200


@pytest.mark.slow
@pytest.mark.req("ROUTERS-29")
async def test_registered_backends_join_drain_and_leave_under_load(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    store = MemoryMemberStore()
    async with SimEngine(SIM) as one, SimEngine(SIM) as two:
        async with gateway(one.url, registered=RegisteredSource(store)) as running, load(running) as traffic:
            await store.add(Member("chat", "late", two.url, "registered"), 0.0)
            await until_is(running, "late", Availability.UP)
            await until(lambda: two.counters.finished > 0)
            await store.set_drain("late", 20.0)
            await until_is(running, "late", Availability.DRAINING)
            async with asyncio.timeout(HANG_S):
                while running.deps.pool_states.in_flight("late"):
                    await asyncio.sleep(0.01)
            drained = two.counters.finished
            await asyncio.sleep(0.3)
            assert two.counters.finished == drained
            await store.set_drain("late", None)
            await until_is(running, "late", Availability.UP)
            await store.remove("late")
            await until_is(running, "late", None)
            assert nothing_left_of(running, "late")
            assert two.in_flight == 0
            traffic.stop()
        assert traffic.all_whole()
        record_property("figure", f"0 of {len(traffic.seen)} streams cut by a join, a drain, a resume and a removal")  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.fault("rolling upgrade")
async def test_the_roll_of_four_engines_under_load_fails_no_request(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    async with SimEngine(SIM) as a, SimEngine(SIM) as b, SimEngine(SIM) as c, SimEngine(SIM) as d:
        engines = [a, b, c, d]
        async with gateway(*(e.url for e in engines), run_dir=tmp_path, engines={"poll_s": 0.1}) as running, load(running) as traffic:
            for i, engine in enumerate(engines):
                order_drain(tmp_path, f"e{i}", 30.0)
                await until_is(running, f"e{i}", Availability.DRAINING)
                async with asyncio.timeout(HANG_S):
                    while running.deps.pool_states.in_flight(f"e{i}"):
                        await asyncio.sleep(0.01)
                # the upgrade: another process at the same address
                port = engine.port
                await engine.__aexit__(None, None, None)
                engine.settings = SimSettings(models=("sim",), speed=20, port=port)
                await engine.__aenter__()
                assert end_drain(tmp_path, f"e{i}")
                await until_is(running, f"e{i}", Availability.UP)
            traffic.stop()
        assert traffic.all_whole()
        assert {r.attempts for r in running.records} == {1}
        record_property("figure", f"4 of 4 engines rolled, 0 of {len(traffic.seen)} requests failed")  # type: ignore[operator]


async def test_what_outlives_its_grace_ends_with_an_error_event() -> None:
    slow = SimSettings(models=("sim",), speed=1)
    store = MemoryMemberStore()
    async with SimEngine(slow) as engine, gateway(registered=RegisteredSource(store), pool={"backends": []}, poll=True) as running:
        await store.add(Member("chat", "x", engine.url, "registered"), 0.0)
        await until_is(running, "x", Availability.UP)
        async with running.client() as client:
            begun = asyncio.Event()
            asked = asyncio.create_task(stream(client, begun=begun, max_tokens=4000, ignore_eos=True))
            await begun.wait()
            await store.set_drain("x", 0.2)
            seen = await asked
        assert [e["code"] for e in seen.errors] == ["upstream_error"]
        assert not seen.done
        assert (await running.recorded(1))[0].outcome == "backend_drained"
        assert running.deps.pool_states.in_flight("x") == 0
        await until(lambda: not engine.in_flight)
        assert running.open_holds == 0


async def test_the_same_id_at_another_address_is_another_process() -> None:
    store = MemoryMemberStore()
    async with SimEngine(QUICK) as one, SimEngine(QUICK) as two:
        async with gateway(registered=RegisteredSource(store), pool={"backends": []}) as running, running.client() as client:
            await store.add(Member("chat", "x", one.url, "registered"), 0.0)
            await until_is(running, "x", Availability.UP)
            await store.remove("x")
            await store.add(Member("chat", "x", two.url, "registered"), 0.0)
            async with asyncio.timeout(HANG_S):
                while (member := running.fleet.roster.member("x")) is None or member.url != two.url:
                    await asyncio.sleep(0.01)
            await until_is(running, "x", Availability.UP)
            one_before = one.counters.finished
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            assert (one.counters.finished, two.counters.finished) == (one_before, 1)


@pytest.mark.slow
@pytest.mark.req("ROUTERS-9", "ROUTERS-10", "ROUTERS-29")
async def test_a_thousand_joins_and_leaves_leave_nothing(record_property: pytest.FixtureRequest) -> None:
    cycles = scaled(200, 1000)
    async with SimEngine(QUICK) as engine, gateway(engine.url) as running, running.client() as client:
        roster, static = running.fleet.roster, Member("chat", "e0", engine.url, "static")

        async def cycle(n: int) -> None:
            roster.apply({"e0": static, f"g{n}": Member("chat", f"g{n}", engine.url, "registered")})
            await until_is(running, f"g{n}", Availability.UP)
            if n % 10 == 0:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            roster.apply({"e0": static})
            await until_is(running, f"g{n}", None)
            assert nothing_left_of(running, f"g{n}")

        def counted() -> tuple[int, int, int]:
            gc.collect()
            ours = Counter(type(o).__name__ for o in gc.get_objects() if type(o).__name__ in ("RelayUpstream", "_Connection", "_Entry"))
            return len(asyncio.all_tasks()), sum(ours.values()), len(engine._connections)

        for n in range(20):
            await cycle(n)
        await asyncio.sleep(0.2)
        before = counted()
        for n in range(20, 20 + cycles):
            await cycle(n)
        await asyncio.sleep(0.2)
        after = counted()
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + 4
        assert after[2] <= before[2] + 4
        assert running.deps.pool_states.total() == 0
        record_property("figure", f"{cycles} joins and leaves: tasks {before[0]} -> {after[0]}, objects {before[1]} -> {after[1]}")  # type: ignore[operator]
