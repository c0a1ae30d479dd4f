from backends.load_reports import Pushed
from backends.signals import Signals
from gateway.deps import Live
from gateway.fleet.signals import SignalBoard
from gateway.placement.pool_state import PoolStates
from tests.pool_states import charged, grounds_of, requests_on

READ = Signals(read_at=1.0, running=9, waiting=9, prefill_tokens=100)


def load_table() -> tuple[Live, SignalBoard, PoolStates]:
    live, pool_states = Live(None, None, None), grounds_of("a")  # type: ignore[arg-type]  # only signals are looked at
    return live, SignalBoard(live, pool_states), pool_states


def test_what_is_pushed_lies_over_the_reading_and_says_itself_what_it_can_know() -> None:
    live, shown, pool_states = load_table()
    shown.read("a", READ, 0.9)
    assert requests_on(pool_states, "a") == 18
    charged(pool_states, "a", now=1.8)
    shown.push("a", Pushed(2.0, 1, 0), 1.7)
    assert (live.signals["a"].running, live.signals["a"].prefill_tokens, requests_on(pool_states, "a")) == (1, 100, 2)
    shown.read("a", Signals(read_at=3.0, running=50, prefill_tokens=200), 2.9)
    assert (live.signals["a"].running, live.signals["a"].prefill_tokens, requests_on(pool_states, "a")) == (1, 200, 2)
    assert shown.last_read("a") == Signals(read_at=3.0, running=50, prefill_tokens=200)


def test_when_the_push_ends_the_reading_is_back_as_old_as_it_is() -> None:
    live, shown, _ = load_table()
    shown.read("a", READ, 0.9)
    shown.push("a", Pushed(2.0, 1, 0), 1.7)
    assert shown.is_pushed("a")
    shown.silent("a")
    assert (live.signals["a"], shown.is_pushed("a")) == (READ, False)


def test_an_engines_word_on_its_cache_bounds_what_it_is_taken_to_hold() -> None:
    _, shown, pool_states = load_table()
    shown.read("a", Signals(read_at=1.0, kv_capacity_tokens=640), 0.9)
    pool_states.index.touch("a", list(range(1, 9)), 1.0)
    pool_states.index.touch("a", list(range(101, 109)), 1.0)
    held = [pool_states.index.match(list(range(at, at + 8)), 1.0).held("a") for at in (1, 101)]
    assert 8 <= sum(held) <= 10


def test_nothing_is_left_of_a_backend_that_leaves() -> None:
    live, shown, _ = load_table()
    shown.read("a", READ, 0.9)
    shown.push("a", Pushed(2.0, 1, 0), 1.7)
    shown.unread("a")
    assert live.signals["a"].prefill_tokens is None
    shown.silent("a")
    assert (live.signals, shown.last_read("a")) == ({}, None)
