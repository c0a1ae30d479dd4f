"""Order and trust of one engine's KV events, against an engine that keeps what it publishes (`tests/kv_events.py`)."""

import pytest

from backends.kv import stream as kv_stream
from backends.kv.blocks import HeldBlocks
from backends.kv.stream import MAX_ROUNDS, KvStream
from tests.kv_events import CLEARED, Engine, packed, recorded, removed, served, stored


def listening(engine: Engine, *, can_replay: bool = True, max_blocks: int = 1000) -> tuple[KvStream, HeldBlocks]:
    held = HeldBlocks(max_blocks)
    stream = KvStream(held, can_replay=can_replay)
    stream.connected()
    served(stream, engine)
    return stream, held


def test_events_in_order_are_what_the_engine_holds() -> None:
    engine = Engine()
    stream, held = listening(engine)
    assert stream.trusted, "the replay said that there is nothing yet"
    for events in ([stored([1, 2, 3])], [stored([4]), removed(2)], [stored([4])], [removed(4)]):
        stream.batch(*engine.publish(*events))
        assert stream.trusted
        assert held.snapshot() == engine.after[-1]
    state = stream.state()
    assert (state.blocks, state.trusted, state.reason, state.counts.batches, state.counts.gaps) == (3, True, "", 4, 0)
    assert (state.counts.stored, state.counts.removed) == (5, 2)


def test_what_was_published_before_comes_from_the_replay() -> None:
    engine = Engine()
    engine.publish(stored([1, 2]))
    engine.publish(removed(1))
    stream, held = listening(engine)
    assert stream.trusted
    assert held.snapshot() == {2}


def test_who_begins_too_late_knows_that() -> None:
    engine = Engine(kept=2)
    for block in range(5):
        engine.publish(stored([block]))
    stream, held = listening(engine)
    assert not stream.trusted
    assert stream.reason == "the connection is new, and the engine's buffer begins at batch 3"
    assert held.snapshot() == {3, 4}, "what it says is certain all the same"
    late, held = listening(Engine(), can_replay=False)
    assert late.reason == "nothing heard from the engine yet"
    late.batch(*engine.publish(stored([5])))
    assert late.reason == "listening since batch 5 only, and there is no replay address"
    late.batch(*engine.publish(CLEARED, stored([6])))
    assert late.trusted
    assert held.snapshot() == engine.after[-1]


@pytest.mark.req("ROUTERS-11")
def test_a_gap_is_closed_by_a_replay(record_property: pytest.FixtureRequest) -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1, 2, 3])))
    for event in (removed(1), stored([7]), removed(2)):
        engine.publish(event)  # lost
    stream.batch(*engine.publish(stored([8])))
    assert stream.reason == "catching up: gap of 3 batches"
    stream.batch(*engine.publish(stored([9])))  # comes while the replay is under way
    served(stream, engine)
    assert stream.trusted
    assert held.snapshot() == engine.after[-1] == {3, 7, 8, 9}
    counts = stream.state().counts
    assert (counts.gaps, counts.missed, counts.replays) == (1, 3, 2)
    record_property("figure", "gap of 3 batches closed by one replay")  # type: ignore[operator]


@pytest.mark.req("ROUTERS-11")
def test_a_gap_beyond_the_buffer_is_said_and_then_rebuilt() -> None:
    engine = Engine(kept=4)
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1, 2, 3])))
    engine.publish(removed(1))  # lost, and gone from the buffer
    for block in range(10, 14):
        engine.publish(stored([block]))
    stream.batch(*engine.publish(stored([14])))
    served(stream, engine)
    assert stream.reason == "gap of 5 batches, and the engine's buffer begins at batch 3"
    assert held.snapshot() == {11, 12, 13, 14}
    assert held.snapshot() < engine.after[-1]
    stream.batch(*engine.publish(CLEARED))
    stream.batch(*engine.publish(stored([20])))
    assert stream.trusted
    assert held.snapshot() == {20}


@pytest.mark.req("ROUTERS-11")
def test_without_a_replay_address_a_gap_ends_trust() -> None:
    engine = Engine()
    stream, held = listening(engine, can_replay=False)
    stream.batch(*engine.publish(stored([1, 2])))
    engine.publish(removed(1))
    stream.batch(*engine.publish(stored([3])))
    assert stream.next_replay() is None
    assert stream.reason == "gap of 1 batch, and there is no replay address"
    assert held.snapshot() == {3}


@pytest.mark.req("ROUTERS-11")
@pytest.mark.parametrize("can_replay", [True, False])
def test_a_batch_that_comes_twice_counts_once(can_replay: bool) -> None:
    engine = Engine()
    stream, held = listening(engine, can_replay=can_replay)
    batches = [engine.publish(stored([block])) for block in (1, 2, 3)]
    for batch in [*batches, *batches]:
        stream.batch(*batch)
    stream.batch(*engine.publish(removed(2)))
    assert stream.trusted
    assert held.snapshot() == {1, 3}
    assert stream.counts.repeated == 3


@pytest.mark.req("ROUTERS-11")
def test_batches_out_of_order_are_put_in_order() -> None:
    engine = Engine()
    stream, held = listening(engine)
    first, second, third = (engine.publish(event) for event in (stored([1]), removed(1), stored([1, 2])))
    for batch in (first, third, second):
        stream.batch(*batch)
    served(stream, engine)
    assert stream.trusted
    assert held.snapshot() == engine.after[-1]


def test_a_replay_that_loses_batches_is_repeated_while_it_brings_something() -> None:
    engine = Engine()
    for block in range(10):
        engine.publish(stored([block]))
    held = HeldBlocks()
    stream = KvStream(held, can_replay=True)
    stream.connected()
    rounds = 0
    while (start := stream.next_replay()) is not None:
        rounds += 1
        for seq, payload in [*engine.replay(start)[:4], *engine.replay(start)[5:6]]:
            stream.replayed(seq, payload)
        stream.replay_over()
    assert stream.trusted
    assert held.snapshot() == engine.after[-1]
    assert 1 < rounds < MAX_ROUNDS


def test_a_replay_that_fails_is_said() -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    engine.publish(removed(1))
    stream.batch(*engine.publish(stored([2])))
    assert stream.next_replay() == 0
    stream.replay_over("no answer within 2 s")
    assert stream.reason == "gap of 1 batch, and the replay failed: no answer within 2 s"
    assert held.snapshot() == {2}
    stream.replayed(1, b"late")
    stream.replay_over()
    assert held.snapshot() == {2}, "what comes after the end is not taken"


@pytest.mark.req("ROUTERS-10")
@pytest.mark.parametrize("can_replay", [True, False])
@pytest.mark.parametrize("noticed", ["by the connection", "by its start", "not at all"])
def test_a_new_process_begins_with_nothing(can_replay: bool, noticed: str) -> None:
    old = Engine()
    stream, held = listening(old, can_replay=can_replay)
    for block in range(5):
        stream.batch(*old.publish(stored([block])))
    new = Engine(started=100.0)
    if noticed == "by the connection":
        stream.disconnected()
        assert stream.reason == "not connected"
        stream.connected()
        served(stream, new)
    elif noticed == "by its start":
        stream.restarted(at_unix=99.0)
        served(stream, new)
        assert held.count == 0
    stream.batch(*new.publish(stored([70])))
    served(stream, new)
    assert stream.trusted
    assert held.snapshot() == {70}
    assert stream.epoch == 1
    stream.restarted(at_unix=99.0)
    assert held.snapshot() == {70}, "this process is known already"


@pytest.mark.req("ROUTERS-10")
def test_a_new_process_that_has_come_further_than_the_old_one_is_found_out() -> None:
    old, new = Engine(), Engine(started=100.0)
    stream, held = listening(old)
    for block in range(3):
        stream.batch(*old.publish(stored([block])))
    for block in range(50, 60):
        new.publish(stored([block]))
    stream.batch(*new.publish(stored([60])))
    served(stream, new)
    assert stream.trusted
    assert held.snapshot() == new.after[-1]
    stream.gone()
    assert held.count == 0


def test_a_lost_connection_is_made_good_by_a_replay_or_ends_trust() -> None:
    engine = Engine()
    for can_replay in (True, False):
        stream, held = listening(engine, can_replay=can_replay)
        stream.batch(*engine.publish(stored([engine.seq])))
        stream.disconnected()
        engine.publish(removed(0))
        stream.connected()
        served(stream, engine)
        assert stream.trusted is can_replay
        assert held.snapshot() == (engine.after[-1] if can_replay else frozenset())
        engine = Engine()


def test_the_last_batch_is_missed_only_until_the_next_check() -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    engine.publish(removed(1))
    stream.check()
    assert stream.trusted, "nothing says otherwise yet"
    served(stream, engine)
    assert held.count == 0
    stream.check()
    assert stream.next_replay() == 1
    stream.replay_over("no answer within 2 s")
    assert stream.trusted, "that a check failed says nothing of the events"


def test_a_batch_that_cannot_be_read_ends_trust_until_the_cache_is_cleared() -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    stream.batch(1, packed({"type": "BlockMoved"}))
    assert stream.reason.startswith("batch 1 has an event of unknown type")
    stream.batch(2, packed(stored([5])))
    assert held.snapshot() == {5}
    stream.batch(3, packed(CLEARED))
    assert stream.trusted
    assert stream.counts.refused == 1


def test_more_blocks_than_are_remembered_are_no_exact_state() -> None:
    engine = Engine()
    stream, _ = listening(engine, max_blocks=2)
    stream.batch(*engine.publish(stored([1, 2, 3])))
    assert stream.reason == "the engine holds more than 2 blocks"


def test_what_came_during_a_replay_is_taken_one_by_one_and_in_order() -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    missed = engine.publish(stored([2]))
    for block in range(3, 7):
        stream.batch(*engine.publish(stored([block])))
    assert stream.next_replay() == 0
    stream.replayed(0, engine.buffer[0][1])
    stream.replayed(*missed)
    stream.replay_over()
    for block in (4, 5):
        assert (stream.next - 1, held.snapshot()) == (block - 2, engine.after[block - 2])
        assert stream.next_replay() is None, "one is over that brought everything"
        assert stream.reason.startswith("catching up"), "not all of it is known yet"
        assert stream.go_on()
    stream.batch(*engine.publish(removed(1)))  # comes behind those that wait
    assert stream.go_on()
    assert not stream.go_on()
    assert stream.trusted
    assert held.snapshot() == engine.after[-1] == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("end", ["disconnected", "connected"])
def test_a_connection_that_ends_takes_what_waits_with_it(end: str) -> None:
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    engine.publish(stored([2]))
    for block in range(3, 7):
        stream.batch(*engine.publish(stored([block])))
    assert stream.next_replay() == 0
    for seq, payload in engine.replay(0)[:2]:
        stream.replayed(seq, payload)
    stream.replay_over()
    getattr(stream, end)()
    assert not stream.go_on()
    stream.connected()
    served(stream, engine)
    assert stream.trusted
    assert held.snapshot() == engine.after[-1]


def test_what_waits_for_a_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_stream, "MAX_WAITING", 10)
    engine = Engine()
    stream, held = listening(engine)
    stream.batch(*engine.publish(stored([1])))
    engine.publish(stored([2]))
    for block in range(10, 22):
        stream.batch(*engine.publish(stored([block])))
    assert stream.reason == "gap of 1 batch; too many batches came while waiting for the replay"
    assert held.snapshot() == {20, 21}


def test_how_the_engine_hashes_is_told() -> None:
    stream = KvStream(HeldBlocks(), can_replay=False)
    stream.connected()
    for seq, (_, payload) in enumerate(recorded("sglang-0.5.23")):
        stream.batch(seq, payload)
    assert stream.trusted
    assert (stream.state().blocks, stream.state().hashing) == (1, "sglang")


def test_a_replay_that_brought_something_and_lost_its_end_is_gone_on_with() -> None:
    engine, held = Engine(), HeldBlocks()
    stream = KvStream(held, can_replay=True)
    for block in range(4):
        engine.publish(stored([block]))
    stream.connected()
    assert stream.next_replay() == 0
    for seq, payload in engine.replay(0)[:2]:
        stream.replayed(seq, payload)
    stream.replay_over("no answer")
    served(stream, engine)
    assert stream.trusted
    assert held.snapshot() == {0, 1, 2, 3}
