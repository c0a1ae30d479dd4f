"""The law of KV events: whatever is lost, repeated, reordered or restarted, a stream that is said to be trusted holds exactly
what the engine holds, and one that is not says nothing that is not there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.kv.blocks import HeldBlocks
from backends.kv.stream import KvStream
from tests.kv_events import CLEARED, Engine, removed, stored
from tests.scale import scaled

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "remove", "clear", "restart", "told", "reconnect", "check"]),
        st.integers(0, 6),
        st.sampled_from(["come", "come", "come", "lost", "twice", "later"]),
        st.sampled_from(["answered", "answered", "slowly", "late", "cut", "fails"]),
    ),
    max_size=60,
)


def replays(stream: KvStream, engine: Engine, how: str) -> None:
    for _ in range(30):
        while stream.go_on() and how != "late":
            pass
        start = None if how == "late" else stream.next_replay()
        if start is None:
            return
        answer = engine.replay(start)
        if how == "cut":
            answer = [batch for at, batch in enumerate(answer) if at % 4 != 3]
        for seq, payload in answer:
            stream.replayed(seq, payload)
        stream.replay_over("no answer within 2 s" if how == "fails" else "")
        if how == "slowly":
            return  # what waits is taken one batch at a time, with other things in between


@pytest.mark.req("ROUTERS-11")
@settings(max_examples=scaled(300, 20_000), deadline=None)
@given(STEPS, st.integers(1, 12), st.booleans())
def test_trusted_means_equal(steps: list[tuple[str, int, str, str]], kept: int, can_replay: bool) -> None:
    engine = Engine(kept=kept)
    held = HeldBlocks()
    stream = KvStream(held, can_replay=can_replay)
    stream.connected()
    delayed: list[tuple[int, bytes]] = []
    for what, block, fate, replay in steps:
        if what in ("restart", "told", "reconnect"):
            # a connection that ends takes with it what is on its way
            delayed.clear()
            stream.disconnected()
            if what != "reconnect":
                engine = Engine(kept=kept, started=engine.at + 1.0)
            stream.connected()
            if what == "told":
                stream.restarted(engine.at)
        elif what == "check":
            stream.check()
        else:
            if what == "store":
                batch = engine.publish(stored([block, block + 1]))
            elif what == "remove":
                batch = engine.publish(*([removed(block)] if engine.copies[block] else []))
            else:
                batch = engine.publish(CLEARED)
            if fate == "later":
                delayed.append(batch)
            elif fate != "lost":
                stream.batch(*batch)
                if fate == "twice":
                    stream.batch(*batch)
                if delayed and block % 2:
                    stream.batch(*delayed.pop(0))
        replays(stream, engine, replay)
        there = engine.after[stream.next - 1] if 0 < stream.next <= len(engine.after) else frozenset()
        if stream.trusted:
            assert held.snapshot() == there
        elif not stream.reason.startswith(("catching up", "not connected")):
            assert held.snapshot() <= there
    stream.batch(*engine.publish(stored([99])))
    replays(stream, engine, "answered")
    if stream.trusted:
        assert held.snapshot() == engine.after[-1]
    stream.batch(*engine.publish(CLEARED))
    replays(stream, engine, "answered")
    stream.batch(*engine.publish(stored([5])))
    assert stream.trusted or not can_replay, stream.reason
