"""A worker's ring: what is new is given once, what is overwritten is counted by whoever asks, what nobody fetched is left behind."""

from pathlib import Path

import msgspec

from gateway.request_log.ring import FETCH_LINE, RequestRing, RequestsAsked, RequestsFetched, take_left
from tenancy.request_log import SealedContent

NOTHING = RequestsAsked({}, {})


def text(name: str) -> SealedContent:
    return SealedContent(at_us=1, id=name, tenant="acme", expires_us=2, kid="k", sealed=b"s" * 10)


def lines(fetched: RequestsFetched) -> list[bytes]:
    return [one.line for one in fetched.lines]


def test_what_is_new_is_given_from_where_the_last_answer_ended() -> None:
    ring = RequestRing("w")
    ring.note(b"a")
    ring.note(b"b", "ann", 5.0)
    ring.note_content(text("a"))
    first = ring.fetch(NOTHING)
    assert (lines(first), first.lines_from, first.more) == ([b"a", b"b"], 0, False)
    assert (first.lines[1].end_user, first.lines[1].hours) == ("ann", 5.0)
    assert first.contents == (text("a"),)
    ring.note(b"c")
    after = ring.fetch(RequestsAsked({"w": 2, "other": 9}, {"w": 1}))
    assert (lines(after), after.lines_from, after.contents) == ([b"c"], 2, ())


def test_the_ring_is_bounded_and_the_number_of_the_first_line_tells_what_was_lost() -> None:
    ring = RequestRing("w", most_lines=3, most_contents=1)
    for number in range(5):
        ring.note(b"%d" % number)
        ring.note_content(text(str(number)))
    fetched = ring.fetch(RequestsAsked({"w": 1}, {}))
    assert (lines(fetched), fetched.lines_from) == ([b"2", b"3", b"4"], 2)
    assert (fetched.contents, fetched.contents_from) == ((text("4"),), 4)


def test_a_long_answer_is_given_in_parts() -> None:
    ring = RequestRing("w")
    for _ in range(4):
        ring.note(b"x" * 10)
    part = ring.fetch(NOTHING, most_bytes=15)
    assert (len(part.lines), part.more) == (2, True)
    rest = ring.fetch(RequestsAsked({"w": 2}, {}), most_bytes=15)
    assert (len(rest.lines), rest.more) == (2, False)


async def test_what_nobody_fetched_is_left_and_taken_once(tmp_path: Path) -> None:
    ring = RequestRing("w")
    ring.note(b"a")
    (answer,) = ring.answers().values()
    assert FETCH_LINE in ring.answers()
    assert lines(msgspec.msgpack.decode(await answer(msgspec.msgpack.encode(NOTHING)), type=RequestsFetched)) == [b"a"]
    await answer(msgspec.msgpack.encode(RequestsAsked({"w": 1}, {})))
    ring.note(b"b")
    ring.leave(tmp_path)
    assert [lines(left) for left in take_left(tmp_path)] == [[b"b"]]
    assert take_left(tmp_path) == []
    ring.leave(tmp_path / "gone")  # no folder: a line in the log, and the worker ends as it would


def test_a_file_that_cannot_be_read_is_removed(tmp_path: Path) -> None:
    (tmp_path / "w.requests").write_bytes(b"\xc1torn")
    assert take_left(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_where_everything_was_fetched(tmp_path: Path) -> None:
    RequestRing("w").leave(tmp_path)
    assert list(tmp_path.iterdir()) == []
