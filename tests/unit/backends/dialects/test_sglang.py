import msgspec
import pytest

from backends.dialects.sglang import read_report
from backends.load_reports import MAX_REPORT_BYTES, LoadReport
from tests.load_push import recorded, report

# msgspec's encoding of the engine's own class (0.5.23): 3 running, 2 waiting, 1,000 of 500,000 tokens used, rank 1, 4,096
# uncached, 5,096 with the queue's, 64 at most, 123,456,789 prefilled in 987,654,321 us
GOLDEN = bytes.fromhex("9ba84c6f6164537461740302cd03e8ce0007a12001cd1000cd13e840ce075bcd15ce3ade68b1")


def test_a_report_is_read_by_position() -> None:
    assert read_report(GOLDEN) == LoadReport(3, 2, 4096, 1000, 500_000, 1)


def test_what_real_sglang_sent_is_read_whole() -> None:
    seen = recorded()
    numbers = [number for _, _, number, _ in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert {topic for _, topic, _, _ in seen} == {b"load"}
    reports = [read_report(payload) for *_, payload in seen]
    assert None not in {value for one in reports for value in msgspec.structs.astuple(one)}
    assert {(one.rank, one.kv_capacity_tokens) for one in reports} == {(0, 32768)}
    full = next(one for one in reports if one.running == 4)
    assert (full.waiting, full.waiting_uncached_tokens, full.kv_used_tokens) == (3, 1251, 1728)
    idle = (reports[0], reports[-1])
    assert [(one.running, one.waiting, one.kv_used_tokens) for one in idle] == [(0, 0, 0)] * 2


def test_more_fields_are_ignored_and_missing_ones_unknown() -> None:
    assert read_report(msgspec.msgpack.encode([*msgspec.msgpack.decode(GOLDEN), "new", {"and": 1}])) == read_report(GOLDEN)
    older = msgspec.msgpack.encode(["LoadStat", 3, 2, 1000, 500_000, None])
    assert read_report(older) == LoadReport(3, 2, None, 1000, 500_000, None)
    assert read_report(msgspec.msgpack.encode(["LoadStat"])) == LoadReport()


def test_numbers_that_no_engine_counts_are_unknown() -> None:
    read = read_report(report(running=-1, waiting=2**60, capacity=0))
    assert (read.running, read.waiting, read.kv_capacity_tokens, read.kv_used_tokens) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "no array in msgpack"),
        (b"\xff", "no array in msgpack"),
        (b"\x90", "no array in msgpack"),
        (GOLDEN[:-1], "no array in msgpack"),
        (b"\x91" * 3000, "no array in msgpack"),
        (msgspec.msgpack.encode({"LoadStat": 1}), "no array in msgpack"),
        (msgspec.msgpack.encode([1.5, [], 0]), "the tag is a float"),
        (msgspec.msgpack.encode(["KvStat", 1, 2]), "the tag is 'KvStat'"),
        (report(running="3"), "running is a str"),
        (report(waiting=True), "waiting is a bool"),
        (report(used=1.5), "kv_used_tokens is a float"),
        (report(running="x" * MAX_REPORT_BYTES), "are no report"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_report_is_named(payload: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_report(payload)
