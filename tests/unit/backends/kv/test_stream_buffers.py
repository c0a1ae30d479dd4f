from backends.kv import stream as kv_stream
from backends.kv.stream import RECENT_BATCHES, RecentBatches, WaitingBatches


def test_what_waits_is_taken_in_order() -> None:
    waiting = WaitingBatches()
    assert all(waiting.add(seq, b"x") for seq in (3, 5))
    assert waiting.first == 3
    assert [waiting.take(), waiting.take()] == [(3, b"x"), (5, b"x")]
    assert not waiting


def test_too_many_or_too_much_is_nothing(monkeypatch) -> None:  # type: ignore[no-untyped-def]  # pytest's
    monkeypatch.setattr(kv_stream, "MAX_WAITING", 2)
    monkeypatch.setattr(kv_stream, "MAX_WAITING_BYTES", 10)
    for sizes in ((1, 1, 1), (5, 6)):
        waiting = WaitingBatches()
        kept = [waiting.add(seq, bytes(size)) for seq, size in enumerate(sizes)]
        assert kept == [True] * (len(sizes) - 1) + [False]
        assert not waiting
        assert waiting.add(9, bytes(10)), "the room is there again"


def test_recent_ones_are_told_apart_by_their_beginning() -> None:
    recent = RecentBatches()
    for seq in range(RECENT_BATCHES + 1):
        recent.add(seq, b"%d" % seq + bytes(100))
    assert 0 not in recent
    assert 1 in recent
    assert recent.same(RECENT_BATCHES, b"%d" % RECENT_BATCHES + bytes(100))
    assert not recent.same(RECENT_BATCHES, b"x" + bytes(100))
    assert not recent.same(0, b"0" + bytes(100))
