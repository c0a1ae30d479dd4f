"""Loads as they happen: one per engine and adapter, however many ask; and nothing left behind after ten thousand."""

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable

import pytest

from backends.dialects import DIALECTS
from backends.lora.loader import USUAL_LOAD_S, LoadDone, LoraLoader, PoolAdapters
from backends.lora.residency import HOLD_OFF_S, NONE, Adapter, AdaptersInUse, LoraUnavailable, NoSlot
from backends.ports import Call, Flight, Loss, ReplySink, Upstream
from tests.scale import scaled

ADAPTERS = {name: Adapter(name, digit * 64, f"/adapters/{name}") for name, digit in zip("abc", "012", strict=True)}
A, B, C = ADAPTERS.values()
CYCLES = scaled(2_000, 10_000)


class Engine(Upstream):
    """vLLM's three routes in memory; `answer` may be replaced to misbehave."""

    def __init__(self, slots: int = 2) -> None:
        self.slots = slots
        self.loaded: list[str] = []
        self.orders: list[tuple[str, str]] = []
        self.most = 0
        self.answer: Callable[[Call], tuple[int, bytes] | Loss | None] = self.behave

    def behave(self, call: Call) -> tuple[int, bytes]:
        if call.method == "GET":
            cards = [{"id": "m"}, *({"id": name, "parent": "m"} for name in self.loaded)]
            return 200, json.dumps({"data": cards}).encode()
        order = json.loads(call.body)
        name = order["lora_name"]
        self.orders.append((call.path.removeprefix("/v1/").partition("_")[0], name))
        if "unload" in call.path:
            if name not in self.loaded:
                return 404, b"cannot be found"
            self.loaded.remove(name)
            return 200, b"Success"
        if name in self.loaded:
            return 400, b"has already been loaded"
        assert order["lora_path"] == f"/adapters/{name[0]}"
        self.loaded.append(name)
        self.most = max(self.most, len(self.loaded))
        return 200, b"Success"

    def dispatch(self, call: Call, sink: ReplySink) -> Flight:
        asyncio.get_running_loop().call_soon(self._reply, call, sink)
        return _Flight()

    def _reply(self, call: Call, sink: ReplySink) -> None:
        found = self.answer(call)
        if isinstance(found, Loss):
            sink.on_loss(found, "gone")
        elif found is not None:
            sink.on_head(found[0], {})
            sink.on_data(found[1])
            sink.on_end()

    async def close(self) -> None: ...


class _Flight(Flight):
    def abort(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Site:
    def __init__(self, *engines: Engine, dialect: str = "vllm", slots: int = 2, load_s: float = 5.0) -> None:
        self.now = 100.0
        self.done: list[LoadDone] = []
        self.engines = {f"e{i}": engine for i, engine in enumerate(engines)}
        self.busy: dict[str, AdaptersInUse] = {}
        stand = PoolAdapters(ADAPTERS, slots, DIALECTS[dialect])
        self.loader = LoraLoader(
            {"p": stand}, self.engines, lambda backend: self.busy.get(backend, NONE), lambda: self.now, load_s, self.done.append
        )

    async def hold(self, adapter: Adapter, backend: str = "e0") -> None:
        """Charge it, have it loaded, and keep it."""
        adapters = self.loader.charge("p", backend, adapter)
        try:
            await self.loader.load("p", backend, adapter, 5.0)
        except BaseException:
            adapters.release(adapter.served, self.now)
            raise

    async def use(self, adapter: Adapter, backend: str = "e0") -> None:
        self.now += 1
        await self.hold(adapter, backend)
        self.loader.adapters_on("p", backend).release(adapter.served, self.now)

    async def refused(self, work: Awaitable[None]) -> str:
        with pytest.raises(LoraUnavailable) as caught:
            await work
        return str(caught.value)


async def test_fifty_first_requests_are_one_load_per_backend() -> None:
    site = Site(Engine(), Engine())
    await asyncio.gather(*(site.hold(A, f"e{i % 2}") for i in range(100)))
    for engine in site.engines.values():
        assert engine.orders == [("load", A.served)]
    assert [(done.backend, done.act, done.why) for done in site.done] == [("e0", "load", ""), ("e1", "load", "")]


async def test_the_least_recently_used_is_unloaded_before_the_third_is_loaded() -> None:
    engine = Engine()
    site = Site(engine)
    for adapter in (A, B, A, C):
        await site.use(adapter)
    assert engine.orders == [("load", A.served), ("load", B.served), ("unload", B.served), ("load", C.served)]
    assert engine.most == 2
    assert site.loader.resident("e0") == (A.served, C.served)


async def test_what_has_requests_is_kept_and_the_newcomer_refused() -> None:
    engine = Engine()
    site = Site(engine)
    await site.hold(A)
    await site.hold(B)
    assert "all 2 adapter slots are in use" in await site.refused(site.hold(C))
    site.busy["e0"] = AdaptersInUse([B.served], site.now + 1)
    site.loader.adapters_on("p", "e0").release(A.served, site.now)
    site.loader.adapters_on("p", "e0").release(B.served, site.now)
    await site.use(C)
    assert engine.orders[-2:] == [("unload", A.served), ("load", C.served)]  # B is in use by somebody else's word


async def test_many_adapters_at_once_stay_within_the_slots() -> None:
    engine = Engine()
    site = Site(engine, slots=1)

    async def one(adapter: Adapter) -> None:
        for _ in range(20):
            try:
                await site.use(adapter)
            except LoraUnavailable:
                await asyncio.sleep(0)

    await asyncio.gather(*(one(adapter) for adapter in ADAPTERS.values()))
    assert engine.most == 1


async def test_a_slot_that_another_process_takes_between_the_list_and_the_load_is_a_lost_race_and_no_bad_adapter() -> None:
    engine = Engine(slots=1)
    site = Site(engine, slots=1)

    def behave(call: Call) -> tuple[int, bytes]:
        if call.path.endswith("/load_lora_adapter") and not engine.loaded:
            engine.loaded.append(A.served)
            return (400, b"no slot")
        return engine.behave(call)

    await site.use(C)
    engine.loaded.clear()
    engine.answer = behave
    with pytest.raises(NoSlot, match="another gateway process took its slot"):
        await site.hold(B)
    assert site.loader.where("p", ["e0"], B).busy.keys() == {"e0"}
    engine.answer = engine.behave
    site.now += 1.0
    await site.use(B)
    assert engine.loaded == [B.served], "it is tried again as soon as there is a slot"


async def test_a_bad_adapter_is_none_for_a_race_though_another_process_has_put_back_what_was_evicted_for_it() -> None:
    engine = Engine(slots=1)
    site = Site(engine, slots=1)

    def behave(call: Call) -> tuple[int, bytes]:
        if call.path.endswith("/load_lora_adapter"):
            engine.loaded[:] = [A.served]
            return (404, b"no such path")
        return engine.behave(call)

    await site.use(A)
    engine.answer = behave
    with pytest.raises(LoraUnavailable, match="no such path") as refused:
        await site.hold(B)
    assert not isinstance(refused.value, NoSlot)


async def test_another_process_was_faster() -> None:
    engine = Engine()
    site = Site(engine)
    engine.loaded.append(A.served)
    await site.use(A)
    assert engine.orders == []
    site.loader.adapters_on("p", "e0").lost(A.served)
    engine.answer = lambda call: (200, b'{"data":[]}') if call.method == "GET" else engine.behave(call)
    await site.use(A)  # its list is behind: "already loaded" is what was wanted
    assert engine.orders == [("load", A.served)]
    assert site.done[-1].why == ""


class SlowList(Engine):
    """Answers its list when it is told to."""

    def __init__(self, slots: int = 2) -> None:
        super().__init__(slots)
        self.asked: list[ReplySink] = []

    def _reply(self, call: Call, sink: ReplySink) -> None:
        if call.method == "GET":
            self.asked.append(sink)
        else:
            super()._reply(call, sink)

    def list_now(self) -> None:
        while self.asked:
            super()._reply(Call("GET", "/v1/models", b"", ""), self.asked.pop())


async def until_asked(engine: SlowList) -> None:
    while not engine.asked:
        await asyncio.sleep(0)


async def test_how_long_a_load_takes_is_learned_from_those_that_succeed() -> None:
    engine = Engine()
    site = Site(engine, slots=1, load_s=60.0)

    def slow(call: Call) -> tuple[int, bytes]:
        site.now += 8.0 if call.path.endswith("/load_lora_adapter") else 0.0
        return engine.behave(call)

    engine.answer = slow
    assert site.loader.where("p", ["e0"], A).load_s == USUAL_LOAD_S
    for adapter in (A, B) * 10:
        await site.use(adapter)
    assert 7.5 < site.loader.where("p", ["e0"], A).load_s <= 8.0
    engine.answer = lambda call: (500, b"no") if call.path.endswith("/load_lora_adapter") else slow(call)
    before = site.loader.where("p", ["e0"], A).load_s
    await site.refused(site.hold(C))
    while not site.loader.adapters_on("p", "e0").idle:
        await asyncio.sleep(0)
    assert site.loader.where("p", ["e0"], A).load_s == before, "a load that failed says nothing"


async def test_where_requests_wait_for_the_adapter_no_second_load_is_needed() -> None:
    """The first request waits for the engine's list, so nothing is being loaded yet."""
    engine = SlowList()
    site = Site(engine, Engine())
    first = asyncio.create_task(site.hold(A))
    await until_asked(engine)
    assert site.loader.where("p", ["e0", "e1"], A) == ({"e0"}, {}, {}, USUAL_LOAD_S)
    assert site.loader.where("p", ["e0", "e1"], B) == (set(), {}, {}, USUAL_LOAD_S)
    engine.list_now()
    await first
    assert site.loader.where("p", ["e0", "e1"], A).having == {"e0"}
    assert engine.orders == [("load", A.served)]


async def test_where_requests_wait_for_the_adapter_the_backend_is_not_excluded_as_busy() -> None:
    """A is being unloaded for B, and a request for A waits for it to come back: the slots are taken, and one of them is for A."""
    engine = SlowList(slots=1)
    site = Site(engine, slots=1)
    adapters = site.loader.adapters_on("p", "e0")
    adapters.reported([A.served], adapters.changes)
    assert adapters.begin(B.served, site.now, NONE) == (A.served,)
    assert site.loader.where("p", ["e0"], A) == (set(), {}, {"e0": f"all 1 adapter slots are in use: {B.served}"}, USUAL_LOAD_S)
    again = asyncio.create_task(site.hold(A))
    await until_asked(engine)
    assert site.loader.where("p", ["e0"], A) == ({"e0"}, {}, {}, USUAL_LOAD_S)
    assert site.loader.where("p", ["e0"], C).busy.keys() == {"e0"}
    adapters.unloaded(A.served)
    adapters.loaded(B.served, site.now)
    engine.list_now()
    await again
    assert engine.orders == [("unload", B.served), ("load", A.served)]


async def test_waiting_promises_nothing_that_the_engine_has_refused() -> None:
    engine = SlowList()
    site = Site(engine, Engine())
    waits = asyncio.create_task(site.refused(site.hold(A)))
    await until_asked(engine)
    site.loader.bar(site.loader.adapters_on("p", "e0"), A, "another answer than the adapter's")
    assert site.loader.where("p", ["e0", "e1"], A) == (set(), {"e0": "another answer than the adapter's"}, {}, USUAL_LOAD_S)
    engine.list_now()
    assert await waits == "another answer than the adapter's"
    fixed = SlowList()
    served_only = Site(fixed, dialect="openai")
    hopeless = asyncio.create_task(served_only.refused(served_only.hold(A)))
    await until_asked(fixed)
    assert "does not list" in served_only.loader.where("p", ["e0"], A)[1]["e0"]
    fixed.list_now()
    assert "does not list" in await hopeless


async def test_a_refused_load_says_why_and_is_not_tried_again_at_once() -> None:
    engine = Engine()
    site = Site(engine)
    refusal = (404, b'{"error": "no adapter\n in /adapters/a"}')
    engine.answer = lambda call: refusal if call.path.endswith("/load_lora_adapter") else engine.behave(call)
    assert await site.refused(site.hold(A)) == '/v1/load_lora_adapter answers 404: {"error": "no adapter in /adapters/a"}'
    engine.answer = engine.behave
    assert "answers 404" in await site.refused(site.hold(A))
    assert site.loader.where("p", ["e0"], A) == (set(), {"e0": site.done[0].why}, {}, USUAL_LOAD_S)
    assert engine.orders == []
    site.now += HOLD_OFF_S
    await site.use(A)
    assert engine.orders == [("load", A.served)]


@pytest.mark.parametrize("refusal", [(404, b"No adapter found for /adapters/c"), (400, b"rank 64 is over 16"), (500, b"out of memory")])
@pytest.mark.parametrize("slots", [1, 2])
async def test_a_load_that_the_engine_refuses_costs_no_other_adapter_its_place(refusal: tuple[int, bytes], slots: int) -> None:
    """The law: whatever an engine says to a newcomer, those that were there are there afterwards, and in the same order of use."""
    engine = Engine()
    site = Site(engine, slots=slots)
    there = (A, B)[:slots]
    for adapter in there:
        await site.use(adapter)
    engine.answer = lambda call: refusal if b"/adapters/c" in call.body else engine.behave(call)
    for _ in range(3):
        assert f"answers {refusal[0]}" in await site.refused(site.hold(C))
        await site.use(there[-1])  # one that waits for it to be back is served; the others are not touched
        while not site.loader.adapters_on("p", "e0").idle:
            await asyncio.sleep(0)
        assert sorted(engine.loaded) == [adapter.served for adapter in there] == list(site.loader.resident("e0"))
        assert engine.orders[-2:] == [("unload", A.served), ("load", A.served)]  # A is the one whose use is longest ago, each time
        site.now += HOLD_OFF_S
    assert engine.most == slots
    engine.answer = engine.behave
    await site.use(C)
    assert engine.orders[-2:] == [("unload", A.served), ("load", C.served)]


async def test_an_adapter_that_is_not_configured_any_more_is_not_put_back() -> None:
    engine = Engine()
    site = Site(engine, slots=1)
    old = Adapter("a", "f" * 64, "/adapters/a").served
    engine.loaded.append(old)
    engine.answer = lambda call: (404, b"no") if call.path.endswith("/load_lora_adapter") else engine.behave(call)
    await site.refused(site.hold(B))
    assert engine.orders == [("unload", old)]
    assert site.loader.adapters_on("p", "e0").idle


async def test_what_fails_to_come_back_is_loaded_when_it_is_needed() -> None:
    engine = Engine()
    site = Site(engine, slots=1)
    await site.use(A)
    engine.answer = lambda call: (500, b"no") if call.path.endswith("/load_lora_adapter") else engine.behave(call)
    await site.refused(site.hold(B))
    while site.loader.loading(("e0", A.served)):
        await asyncio.sleep(0)
    assert [(done.served, bool(done.why)) for done in site.done[-2:]] == [(B.served, True), (A.served, True)]
    engine.answer = engine.behave
    site.now += HOLD_OFF_S
    await site.use(A)
    assert engine.loaded == [A.served]


@pytest.mark.parametrize("answer", [Loss.NO_REPLY, (500, b"out of memory")])
async def test_an_eviction_that_fails_loads_nothing(answer: Loss | tuple[int, bytes]) -> None:
    engine = Engine()
    site = Site(engine, slots=1)
    await site.use(A)
    engine.answer = lambda call: answer if "unload" in call.path else engine.behave(call)
    assert "/v1/unload_lora_adapter" in await site.refused(site.hold(B))
    assert engine.loaded == [A.served]
    assert engine.orders == [("load", A.served)]


async def test_a_lost_load_holds_its_slot_and_the_next_look_tells() -> None:
    engine = Engine()
    site = Site(engine, slots=1)
    engine.answer = lambda call: Loss.CUT if call.method == "POST" and engine.behave(call) else engine.behave(call)
    assert "cut: gone" in await site.refused(site.hold(A))
    engine.answer = engine.behave
    await site.use(A)
    assert engine.orders == [("load", A.served)]


async def test_whoever_waits_too_long_leaves_and_the_load_goes_on_for_others() -> None:
    engine = Engine()
    site = Site(engine)
    engine.answer = lambda call: None
    assert await site.refused(site.loader.load("p", "e0", A, 0.0)) == "not loaded within 0 s"  # type: ignore[arg-type]  # awaited for its exception
    waiting = asyncio.create_task(site.hold(A))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert site.loader.adapters_on("p", "e0").obstacle(A.served, 0.0, NONE) is None


async def test_the_wait_ends_with_the_need_or_the_backend_and_the_load_goes_on() -> None:
    engine = Engine()
    site = Site(engine)
    engine.answer = lambda call: None
    left = asyncio.get_running_loop().create_future()
    waits = [asyncio.create_task(site.loader.load("p", "e0", A, 5.0, until)) for until in (left, None)]
    await asyncio.sleep(0)
    left.set_result(None)
    with pytest.raises(LoraUnavailable, match="not needed"):
        await waits[0]
    assert not waits[1].done()
    site.loader.end_waits("e0")
    with pytest.raises(LoraUnavailable, match="left the fleet"):
        await waits[1]
    adapters = site.loader.adapters_on("p", "e0")
    assert len(asyncio.all_tasks()) == 2  # this one and the load
    assert adapters.idle  # no slot is taken before the engine has listed what it has


async def test_engines_without_run_time_loading_are_never_told() -> None:
    engine = Engine()
    site = Site(engine, dialect="openai")
    assert "cannot be told to load it" in await site.refused(site.hold(A))
    engine.loaded.append(A.served)
    await site.use(A)
    assert engine.orders == []


async def test_what_is_in_use_still_counts_after_a_backend_came_back() -> None:
    engine = Engine()
    site = Site(engine)
    await site.hold(A)
    adapters = site.loader.adapters_on("p", "e0")
    await site.use(B)
    site.loader.forget("e0")
    assert site.loader.resident("e0") == ()  # until the engine lists it
    await site.use(C)
    assert engine.orders[-2:] == [("unload", B.served), ("load", C.served)]
    adapters.release(A.served, site.now)
    site.loader.forget("e0")
    assert site.loader.adapters_on("p", "e0") is not adapters  # nothing runs any more, so nothing is kept


async def test_a_drained_backends_adapters_in_use_outlive_another_ones_first_request() -> None:
    site = Site(Engine(), Engine())
    await site.hold(A)
    adapters = site.loader.adapters_on("p", "e0")
    way = site.engines.pop("e0")
    await site.use(A, "e1")
    site.engines["e0"] = way
    assert site.loader.adapters_on("p", "e0") is adapters


async def test_nothing_is_loaded_where_the_way_is_gone_and_nothing_is_held() -> None:
    site = Site(Engine())
    await site.use(A)
    adapters = site.loader.adapters_on("p", "e0")
    adapters.lost(A.served)
    del site.engines["e0"]
    assert await site.refused(site.hold(A)) == "it has left the fleet"


async def test_a_backend_that_left_is_forgotten() -> None:
    site = Site(Engine())
    for i in range(100):
        site.engines.clear()
        site.engines[f"new-{i}"] = Engine()
        await site.use(A, f"new-{i}")
    assert sum(bool(site.loader.resident(f"new-{i}")) for i in range(100)) == 1


@pytest.mark.req("ROUTERS-9")
async def test_cycles_of_loads_leave_nothing_behind(record_property: pytest.FixtureRequest) -> None:
    engine = Engine()
    site = Site(engine, slots=1)

    async def cycle(times: int) -> tuple[int, int, int]:
        for i in range(times):
            await site.use((A, B)[i % 2])
        engine.orders.clear()
        site.done.clear()
        await asyncio.sleep(0)
        gc.collect()
        return len(gc.get_objects()), len(asyncio.all_tasks()), threading.active_count()

    before = await cycle(100)
    after = await cycle(CYCLES)
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 100
    record_property("figure", f"{CYCLES} load/unload cycles: {after[0] - before[0]:+d} objects, +0 tasks, +0 threads")  # type: ignore[operator]


def test_registered_adapters_stand_beside_those_of_the_settings_and_never_in_their_place() -> None:
    settings = PoolAdapters({"a": A}, 1, DIALECTS["vllm"])
    loader = LoraLoader({"p": settings, "q": PoolAdapters({}, 1, DIALECTS["vllm"])}, {}, lambda _: NONE, lambda: 0.0, 1.0)
    assert (loader.adapter("p", "b"), loader.adapter("q", "a"), loader.adapter("gone", "a")) == (None, None, None)
    other = Adapter("a", "9" * 64, "/adapters/other")
    loader.register({"p": {"a": other, "b": B}, "gone": {"c": C}})
    assert (loader.adapter("p", "a"), loader.adapter("p", "b"), loader.adapter("q", "b"), loader.adapter("gone", "c")) == (A, B, None, None)
    assert (loader.digest_of("p", B.served), loader.digest_of("p", other.served), loader.digest_of("q", B.served)) == (B.digest, None, None)
    loader.register({"q": {"b": B}})
    assert (loader.adapter("p", "b"), loader.digest_of("p", B.served), loader.adapter("q", "b")) == (None, None, B)
