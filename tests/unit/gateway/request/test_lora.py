import msgspec
import pytest

from backends.dialects import DIALECTS
from backends.lora.loader import PoolAdapters
from backends.lora.residency import NONE, Adapter, AdaptersInUse
from backends.signals import Signals
from gateway.deps import Live
from gateway.placement.place import COMING_BACK
from gateway.request.lora import FRESH_S, SLOTS_READ_S, SlotWait, adapters_in_use
from routing.fleet import Fleet
from tests.placed import POOL, Worker, chat

BOT = Adapter("bot", "ab" * 32, "/adapters/bot")
OTHER = Adapter("other", "cd" * 32, "/adapters/other")


def test_an_engines_word_on_what_it_runs_counts_while_it_is_fresh() -> None:
    live = Live(None, None, Fleet({}))  # type: ignore[arg-type]  # only the signals are looked at
    assert adapters_in_use(live, lambda: 0.0, "a") == NONE
    live.signals["a"] = Signals(read_at=10.0, loras=("bot@1",))
    assert adapters_in_use(live, lambda: 10.0 + FRESH_S, "a") == AdaptersInUse(("bot@1",), 10.0)
    assert adapters_in_use(live, lambda: 10.1 + FRESH_S, "a") == NONE
    live.signals["a"] = Signals(read_at=10.0)
    assert adapters_in_use(live, lambda: 10.0, "a") == NONE


async def test_a_request_that_waits_for_a_slot_is_routed_anew_when_one_may_be_free_and_not_before() -> None:
    worker = Worker("a")
    loras = worker.deps.loras
    loras.pool_adapters[POOL] = PoolAdapters({}, 1, DIALECTS["vllm"])
    placement = msgspec.structs.replace(await worker.placed(chat()), adapter=OTHER)
    wait = SlotWait(placement, worker.deps, lacking=True)
    assert wait.may_be_over(), "the slot is free"
    adapters = loras.charge(POOL, "a", BOT)
    assert not wait.may_be_over()
    loras.charge(POOL, "a", BOT).release(BOT.served, worker.now)
    assert not wait.may_be_over(), "another request still needs it"
    adapters.release(BOT.served, worker.now)
    assert wait.may_be_over()
    adapters.reported([BOT.served], adapters.changes)
    told = [AdaptersInUse([BOT.served], worker.now)]
    loras.busy = lambda _: told[0]  # type: ignore[misc]  # what the engine reports
    worker.now += SLOTS_READ_S
    assert not wait.may_be_over(), "another process uses it"
    told[0] = NONE
    assert not wait.may_be_over(), "it is looked for ten times a second"
    worker.now += SLOTS_READ_S
    assert wait.may_be_over()


@pytest.mark.req("R51")
async def test_a_pool_that_comes_back_is_full_until_its_next_token_is_due() -> None:
    worker = Worker("a", "b")
    pool_state = worker.deps.pool_states["chat"]
    pool = worker.deps.live.fleet.pools["chat"]
    down = msgspec.structs.replace(pool, up=(), not_up=pool.backends)
    pool_state.recovering(pool, 0.0)
    for second in range(1, 60):
        pool_state.recovery.sent_tokens += 10_000.0
        pool_state.recovering(pool, float(second))
    for one, at in ((down, 60.0), (down, 89.0), (pool, 90.0)):
        pool_state.recovering(one, at)

    worker.now = 90.0
    first = await worker.placed(chat("x" * 4000))
    assert first.route.ranked
    pool_state.recovery.sent_tokens += 1000.0
    held = await worker.placed(chat("x" * 4000))
    assert (held.route.ranked, held.route.full) == ((), True)
    assert {one.reason for one in held.route.excluded} == {COMING_BACK}
    worker.now = 91.0
    assert (await worker.placed(chat("x" * 4000))).route.ranked
