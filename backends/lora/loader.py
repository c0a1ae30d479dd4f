"""Loads LoRA adapters onto engines: makes the calls that `backends.lora.residency` decides on, one at a time per engine and adapter.

`LoraLoader` serves the requests of one worker. A request charges its adapter on a backend as soon as it is decided that it goes there, has
it loaded before it is sent, and releases it when it is over. Where the adapter is not loaded, the first request that needs it starts the
load, and later requests wait for the same load. A load is a task of its own: a caller that leaves does not cut it short for the others.
Adapters evicted for one that the engine then refuses are loaded again.

`LoraOrders` makes the calls that load, unload and list adapters on one engine, and reads the meaning of its replies.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from backends.dialects.dialect import Dialect, LoraCalls
from backends.fetch import FetchedReply, FetchError, fetch
from backends.lora.residency import HOLD_OFF_S, Adapter, AdaptersInUse, LoadedAdapters, LoraUnavailable, NoSlot
from backends.model_list import read_model_list
from backends.ports import Upstream
from domain.clock import Clock

MAX_ANSWER_BYTES: Final = 1024 * 1024
"""Room for a model list of thousands; the reply to a load is a sentence."""

_ALREADY: Final = b"already"
"""Part of the 400 for a name that is loaded: names are pinned to content, so the adapter is the wanted one."""
_ABSENT: Final = (b"cannot be found", b"does not exist")
"""Parts of the refusal to unload a name that is not loaded; vLLM sends a 404."""


class OrderReply(msgspec.Struct, frozen=True):
    """The result of a load or unload call."""

    why: str = ""
    """Why it failed; empty when it did not."""
    sure: bool = True
    """False when the reply was lost, so that the engine may have followed the call or not."""


ORDER_DONE: Final = OrderReply()


class LoraOrders:
    """The adapter calls to one engine. `timeout_s` is always the longest wait for its reply, in seconds."""

    def __init__(self, upstream: Upstream, dialect: Dialect) -> None:
        self._upstream = upstream
        self._dialect = dialect

    async def listed(self, timeout_s: float) -> Iterable[str]:
        """The adapters that the engine lists. Raises FetchError, or LoraUnavailable when its reply is no list."""
        path = self._dialect.models_path
        reply = await fetch(self._upstream, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES)
        try:
            return read_model_list(reply.body).loras
        except ValueError as error:
            raise LoraUnavailable(f"{path}: {error}") from None

    async def load(self, adapter: Adapter, timeout_s: float) -> OrderReply:
        """Have the engine load the adapter."""
        calls = self._calls()
        order = msgspec.json.encode({calls.name_field: adapter.served, calls.path_field: adapter.path})
        reply = await self._post(calls.load_path, order, timeout_s)
        if isinstance(reply, OrderReply):
            return reply
        loaded = reply.status == 200 or (reply.status == 400 and _ALREADY in reply.body)
        return ORDER_DONE if loaded else _refused(calls.load_path, reply)

    async def unload(self, served: str, timeout_s: float) -> OrderReply:
        """Have the engine unload the adapter with this engine-side name."""
        calls = self._calls()
        reply = await self._post(calls.unload_path, msgspec.json.encode({calls.name_field: served}), timeout_s)
        if isinstance(reply, OrderReply):
            return reply
        gone = reply.status in (200, 404) or any(word in reply.body for word in _ABSENT)
        return ORDER_DONE if gone else _refused(calls.unload_path, reply)

    async def _post(self, path: str, order: bytes, timeout_s: float) -> FetchedReply | OrderReply:
        try:
            return await fetch(self._upstream, path, timeout_s=timeout_s, max_bytes=MAX_ANSWER_BYTES, body=order)
        except FetchError as error:
            return OrderReply(f"{path}: {error}", sure=False)

    def _calls(self) -> LoraCalls:
        calls = self._dialect.lora
        assert calls is not None  # `backends.lora.residency` decides on no call to an engine that cannot load adapters
        return calls


def _refused(path: str, reply: FetchedReply) -> OrderReply:
    """A failure with the beginning of the engine's reply, on one line; for logs."""
    excerpt = " ".join(reply.body[:200].decode("utf-8", "replace").split())
    return OrderReply(f"{path} answers {reply.status}: {excerpt}")


LEFT_FLEET: Final = "it has left the fleet"


class Whereabouts(NamedTuple):
    """Where an adapter is in a pool."""

    having: set[str]
    """The backends that have it, are loading it or have requests that wait for it."""
    unable: dict[str, str]
    """The backends that cannot get it, each with the reason."""
    busy: dict[str, str]
    """The backends that cannot get it for now, because requests use every slot; each with the reason."""
    load_s: float
    """Seconds that a load takes in this pool, the unloads before it included."""


USUAL_LOAD_S: Final = 1.0
"""Seconds that a load is taken to last before one was measured."""
LOAD_GAIN: Final = 0.2
"""Weight of the newest load in the mean of the loads: five loads tell an operator's disk from another one."""


class LoadDone(msgspec.Struct, frozen=True):
    """The result of one load or unload, for metrics."""

    backend: str
    served: str
    act: str
    """`load` or `unload`."""
    why: str
    """Why it failed; empty when it did not."""
    took_s: float


class PoolAdapters(msgspec.Struct, frozen=True):
    """The adapters of one pool: those of the settings, and those that operators registered."""

    adapters: Mapping[str, Adapter]
    """The adapters by the name that policies use."""
    slots: int
    """Adapters that one engine can hold at once."""
    dialect: Dialect


class LoraLoader:
    """Loads and unloads adapters for requests on all backends of one worker.

    Args:
        pool_adapters: the adapters of the settings, of each pool that has some or may get some (`register`).
        upstreams: the transport to each backend, by id; looked up for every call, so backends may come and go.
        busy: returns the adapters that a backend itself reports as in use, by its id.
        load_s: longest time for one load, the unloads before it included.
        done: called with each result.
        check: returns why an adapter must not be loaded within so many seconds, empty where nothing is known against it; called before each
            load, and before anything is evicted for it.
    """

    def __init__(
        self,
        pool_adapters: Mapping[str, PoolAdapters],
        upstreams: Mapping[str, Upstream],
        busy: Callable[[str], AdaptersInUse],
        clock: Clock,
        load_s: float,
        done: Callable[[LoadDone], None] = lambda _: None,
        *,
        check: Callable[[Adapter, float], Awaitable[str]] | None = None,
    ) -> None:
        self._configured = pool_adapters
        self.pool_adapters: Final = dict(pool_adapters)
        self._digests: dict[str, dict[str, str]] = {}
        self.busy: Final = busy
        self.clock: Final = clock
        self.load_s: Final = load_s
        self.done: Final = done
        self.check: Final = check
        self._upstreams = upstreams
        self._adapters_on: dict[str, LoadedAdapters] = {}
        # done when a backend leaves; made for backends that a request waits for, so bounded by the fleet
        self._leaving: dict[str, asyncio.Future[None]] = {}
        # one task per engine and adapter, removed when it ends; bounded by backends times adapters
        self._loads: dict[tuple[str, str], asyncio.Task[LoraUnavailable | None]] = {}
        self.unloads: Final[dict[tuple[str, str], asyncio.Task[str]]] = {}
        """Unloads under way, by engine and adapter."""
        self._load_s: dict[str, float] = {}
        self.register({})

    def register(self, registered: Mapping[str, Mapping[str, Adapter]]) -> None:
        """Replace the registered adapters (by pool and name) of every pool; an adapter of the settings comes before a registered one of its
        name. Running requests keep the adapter that they have; engines keep an adapter that is gone until its slot is needed."""
        for pool, configured in self._configured.items():
            adapters = {**registered.get(pool, {}), **configured.adapters}
            self.pool_adapters[pool] = msgspec.structs.replace(configured, adapters=adapters)
            self._digests[pool] = {adapter.served: adapter.digest for adapter in adapters.values()}

    def adapter(self, pool: str, name: str) -> Adapter | None:
        """The adapter behind a policy's name; None where the pool has none, or has it no more."""
        adapters = self.pool_adapters.get(pool)
        return None if adapters is None else adapters.adapters.get(name)

    def digest_of(self, pool: str, served: str) -> str | None:
        """The digest of an adapter by its engine-side name; None for a name that is none of ours."""
        return self._digests.get(pool, {}).get(served)

    def adapters_on(self, pool: str, backend: str) -> LoadedAdapters:
        """The known adapters of a backend, made on first use; the entries of backends that left are dropped then."""
        adapters = self._adapters_on.get(backend)
        if adapters is None:
            # draining backends have no transport either, but the requests on them still need their adapters
            for gone in [known for known, loaded in self._adapters_on.items() if known not in self._upstreams and loaded.idle]:
                del self._adapters_on[gone]
            configured = self.pool_adapters[pool]
            adapters = self._adapters_on[backend] = LoadedAdapters(configured.slots, loads=configured.dialect.lora is not None)
        return adapters

    def forget(self, backend: str) -> None:
        """Forget this backend's adapters, except those in use or being loaded: it left, or another process may be behind its address."""
        adapters = self._adapters_on.get(backend)
        if adapters is None:
            return
        if adapters.idle:
            del self._adapters_on[backend]
        else:
            adapters.doubted()

    def resident(self, backend: str) -> tuple[str, ...]:
        """The adapters believed to be on a backend, by engine-side name."""
        adapters = self._adapters_on.get(backend)
        return adapters.resident() if adapters is not None else ()

    def where(self, pool: str, backends: Collection[str], adapter: Adapter) -> Whereabouts:
        """Where the adapter is or comes, and where it cannot be had.

        A load takes its slot only after the engine's list was read and an unload under way has ended, which takes up to seconds. Requests
        that come meanwhile join the load: elsewhere they would load the adapter a second time, for which another one is evicted.
        """
        now = self.clock()
        found = Whereabouts(set(), {}, {}, self._load_s.get(pool, USUAL_LOAD_S))
        for backend in backends:
            adapters = self.adapters_on(pool, backend)
            loading = self.loading((backend, adapter.served)) and not adapters.refusal(adapter.served, now)
            if loading or adapters.comes(adapter.served):
                found.having.add(backend)
            elif (obstacle := adapters.obstacle(adapter.served, now, self.busy(backend))) is not None:
                (found.busy if obstacle.passes else found.unable)[backend] = obstacle.why
            elif adapters.needed(adapter.served):
                found.having.add(backend)  # its load is about to begin
        return found

    def took(self, pool: str, seconds: float) -> None:
        """Learn from a load that has succeeded how long they take in this pool."""
        known = self._load_s.get(pool, USUAL_LOAD_S)
        self._load_s[pool] = known + LOAD_GAIN * (seconds - known)

    def moves(self, backends: Iterable[str]) -> int:
        """A number that changes whenever one of these backends may have got a free slot by a request of this process. Loads and polls may
        free one as well."""
        on = self._adapters_on
        return sum([adapters.moves + adapters.changes for backend in backends if (adapters := on.get(backend)) is not None])

    def charge(self, pool: str, backend: str, adapter: Adapter) -> LoadedAdapters:
        """A request that is sent to the backend needs the adapter from now on; it is released on the returned record."""
        adapters = self.adapters_on(pool, backend)
        adapters.charge(adapter.served, self.clock())
        return adapters

    def end_waits(self, backend: str) -> None:
        """The backend takes no new requests: end all waits for its adapters. Loads under way continue."""
        leaving = self._leaving.pop(backend, None)
        if leaving is not None:
            leaving.set_result(None)

    async def load(self, pool: str, backend: str, adapter: Adapter, within_s: float, until: asyncio.Future[None] | None = None) -> None:
        """Load the adapter onto the backend where it is missing. A request charges it before, so that no other load evicts it meanwhile.

        Args:
            until: ends the wait when it is done, because the request needs the adapter no more.

        Raises:
            LoraUnavailable: it is not loaded within `within_s`, or the backend has left, or `until` is done; `NoSlot` where requests use
                every slot.
        """
        if not self.adapters_on(pool, backend).has(adapter.served):
            await self._loaded(pool, backend, adapter, within_s, until)

    def bar(self, adapters: LoadedAdapters, adapter: Adapter, why: str) -> None:
        """Keep requests for the adapter away from a backend for `HOLD_OFF_S`; the next request after that loads it anew."""
        adapters.lost(adapter.served)
        adapters.bar(adapter.served, why, self.clock() + HOLD_OFF_S)

    def begin(self, key: tuple[str, str], load: Coroutine[Any, Any, LoraUnavailable | None]) -> asyncio.Task[LoraUnavailable | None]:
        """Run the only load of an adapter (key: backend and engine-side name); all requests that need it wait for this task."""
        task = self._loads[key] = asyncio.get_running_loop().create_task(load)
        task.add_done_callback(lambda _: self._loads.pop(key, None))
        return task

    def loading(self, key: tuple[str, str]) -> bool:
        """Whether a load is under way for this backend and engine-side name."""
        return key in self._loads

    async def _loaded(self, pool: str, backend: str, adapter: Adapter, within_s: float, until: asyncio.Future[None] | None) -> None:
        key = (backend, adapter.served)
        task = self._loads.get(key)
        upstream = self._upstreams.get(backend)
        if upstream is None:
            raise LoraUnavailable(LEFT_FLEET)
        if task is None:
            load = _AdapterLoad(self, pool, backend, self.adapters_on(pool, backend), upstream)
            task = self.begin(key, load.run(adapter))
        leaving = self._leaving.get(backend)
        if leaving is None:
            leaving = self._leaving[backend] = asyncio.get_running_loop().create_future()
        ends: set[asyncio.Future[Any]] = {task, leaving} if until is None else {task, leaving, until}
        done, _ = await asyncio.wait(ends, timeout=max(0.0, within_s), return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            raise LoraUnavailable(LEFT_FLEET)
        if until in done:
            raise LoraUnavailable("not needed any more")
        if not done:
            raise LoraUnavailable(f"not loaded within {within_s:.3g} s")
        if (failure := task.result()) is not None:
            raise type(failure)(*failure.args)  # an exception of its own for each request that waited: they get tracebacks of their own


class _AdapterLoad:
    """One load, with the unloads that it needs. Failures of the engine are returned, never raised."""

    def __init__(self, loader: LoraLoader, pool: str, backend: str, adapters: LoadedAdapters, upstream: Upstream) -> None:
        self._loader = loader
        self._pool = pool
        self._configured = loader.pool_adapters[pool]
        self._backend = backend
        self._adapters = adapters
        self._upstream = upstream
        self._orders = LoraOrders(upstream, self._configured.dialect)
        self._begun = loader.clock()
        self._deadline = self._begun + loader.load_s

    async def run(self, adapter: Adapter) -> LoraUnavailable | None:
        """Load the adapter; returns why that failed, None when it did not."""
        served = adapter.served
        adapters = self._adapters
        loader = self._loader
        try:
            leaving = loader.unloads.get((self._backend, served))
            if leaving is not None:
                await asyncio.wait((leaving,))
            # the engine's list first, because other gateway processes load and evict as well
            changes = adapters.changes
            adapters.reported(await self._orders.listed(self._left_s()), changes, loader.clock())
            if adapters.has(served):
                return None  # another gateway process was faster
            if loader.check is not None and (why := await loader.check(adapter, self._left_s())):
                adapters.bar(served, why, loader.clock() + HOLD_OFF_S)
                loader.done(LoadDone(self._backend, served, "load", why, loader.clock() - self._begun))
                return LoraUnavailable(why)
            victims = adapters.begin(served, loader.clock(), loader.busy(self._backend))
        except LoraUnavailable as error:
            return error
        except FetchError as error:
            return LoraUnavailable(str(error))
        used = {victim: adapters.used_at(victim) for victim in victims}
        whys = await asyncio.gather(*map(self._begin_unload, victims))
        outcome = OrderReply("; ".join(filter(None, whys)))
        if not outcome.why:
            known = adapters.known.union(victims)
            outcome = await self._orders.load(adapter, self._left_s())
            if outcome.why and outcome.sure and (taken := await self._slot_taken(adapter, known)):
                return NoSlot(taken)
        self._over(adapter, outcome, loader.clock())
        if outcome.why and outcome.sure:
            self._put_back(used)
        return LoraUnavailable(outcome.why) if outcome.why else None

    async def _slot_taken(self, adapter: Adapter, known: Collection[str]) -> str:
        """Whether the engine refused the load because another gateway process has taken the slot meanwhile; if so, that, in words. The load
        is over then, and the adapter may be loaded as soon as there is a slot.

        Args:
            known: the adapters that were known there before; where one of them is back, it took no slot that was free.
        """
        adapters = self._adapters
        changes = adapters.changes
        try:
            listed = list(await self._orders.listed(self._left_s()))
        except (LoraUnavailable, FetchError):
            return ""
        others = sorted(name for name in listed if name not in known)
        if not others or len(listed) < self._configured.slots or adapter.served in listed:
            return ""
        adapters.reported(listed, changes, self._loader.clock())
        adapters.failed(adapter.served, "", -inf, sure=True)
        why = f"another gateway process took its slot: {', '.join(others[:10])} came meanwhile"
        self._loader.done(LoadDone(self._backend, adapter.served, "load", why, self._loader.clock() - self._begun))
        return why

    def _over(self, adapter: Adapter, said: OrderReply, used_at: float) -> None:
        now = self._loader.clock()
        if said.why:
            self._adapters.failed(adapter.served, said.why, now + HOLD_OFF_S, sure=said.sure)
        else:
            self._adapters.loaded(adapter.served, used_at)
            self._loader.took(self._pool, now - self._begun)
        self._loader.done(LoadDone(self._backend, adapter.served, "load", said.why, now - self._begun))

    def _put_back(self, used: Mapping[str, float]) -> None:
        """Load the adapters again that were evicted in vain. Only the engine can tell whether a path is good, because the path is on its
        machine. Loading first and evicting afterwards would tell in time, but SGLang refuses an adapter over its number of slots, and
        vLLM drops one of its own choice for it. An adapter that is not configured any more has no path here and is not loaded again."""
        known = {adapter.served: adapter for adapter in self._configured.adapters.values()}
        for victim in sorted(used, key=used.__getitem__, reverse=True):
            key = (self._backend, victim)
            if victim in known and not self._loader.loading(key) and self._adapters.put_back(victim, used[victim]):
                again = _AdapterLoad(self._loader, self._pool, self._backend, self._adapters, self._upstream)
                self._loader.begin(key, again.restore(known[victim], used[victim]))

    async def restore(self, adapter: Adapter, used_at: float) -> LoraUnavailable | None:
        """Load an adapter for which `put_back` has taken a slot; returns why that failed, None when it did not."""
        outcome = await self._orders.load(adapter, self._left_s())
        self._over(adapter, outcome, used_at)
        return LoraUnavailable(outcome.why) if outcome.why else None

    def _begin_unload(self, victim: str) -> asyncio.Task[str]:
        unloads = self._loader.unloads
        key = (self._backend, victim)
        task = unloads[key] = asyncio.get_running_loop().create_task(self._unload(victim))
        task.add_done_callback(lambda _: unloads.pop(key, None))
        return task

    async def _unload(self, victim: str) -> str:
        loader = self._loader
        adapters = self._adapters
        begun = loader.clock()
        outcome = await self._orders.unload(victim, self._left_s())
        if outcome.why:
            adapters.stays(victim, sure=outcome.sure)
        else:
            adapters.unloaded(victim)
        loader.done(LoadDone(self._backend, victim, "unload", outcome.why, loader.clock() - begun))
        return outcome.why

    def _left_s(self) -> float:
        return max(0.0, self._deadline - self._loader.clock())
