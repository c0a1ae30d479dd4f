"""One parseable line per Record, whatever it holds, and no reader can make a request wait."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.usage import Usage
from gateway.guards.facts import GuardCount, GuardRecord
from gateway.record import Record
from gateway.telemetry import access_log
from gateway.telemetry.access_log import FLUSH_AFTER_S, FLUSH_BYTES, MAX_LINE_BYTES, MAX_PENDING_BYTES, AccessLog, line_of, slices

RECORD = Record(
    request_id="req_1",
    at_unix=1.7e9,
    outcome="ok",
    status=200,
    duration_s=0.0123456,
    overhead_s=0.00004,
    tenant="acme",
    model="llama",
    pool="p",
    usage=Usage(100, 20, 64, 5),
    ttft_s=0.01,
    queue_s=0.001,
)
TEXT_FIELDS = [field.name for field in msgspec.structs.fields(Record) if field.type is str]
FORBIDDEN = {
    chr(c) for c in (*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
}
BREAKERS = ['a"b', "\\", '","outcome":"ok', "a\r\nb", "\x00", "\ud800"]
DECEIVERS = ["\x1b[31mred\x1b[0m", "\u202egnp.exe", "\u2028", "\x85", "\x9b31m"]
ATTACKS = [*BREAKERS, *DECEIVERS, "é" * 3000, "\x01" * 3000]


class Later:
    """Stands in for `loop.call_later`."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.asked.append((delay_s, call))


def test_a_key_has_the_value_of_the_field_with_its_name() -> None:
    """Lines are filled by place, so that two keys that change places would go unnoticed by types."""
    values: dict[str, str | int] = {name: name for name in TEXT_FIELDS}
    numbers = [field.name for field in msgspec.structs.fields(Record) if field.type is int]
    values |= {name: 1000 + at for at, name in enumerate(numbers)}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3, "reasoning_tokens": 4, "audio_seconds": 5, "audio_bytes": 6}
    told = json.loads(line_of(msgspec.structs.replace(RECORD, usage=Usage(**usage), **values), end_user=True))
    expected = values | usage | {"request_id": "gateway_id", "cache": "cache:not_kept"}
    shared = expected.keys() & {field.name for field in msgspec.structs.fields(access_log.AccessLogEntry)}
    assert len(shared) > 35
    assert {name: told[name] for name in shared} == {name: expected[name] for name in shared}


def test_a_line_is_flat_and_in_whole_microseconds() -> None:
    assert json.loads(line_of(RECORD)) == {
        "at": "2023-11-14T22:13:20Z",
        "request_id": "req_1",
        "outcome": "ok",
        "status": 200,
        "duration_us": 12345,
        "overhead_us": 40,
        "tenant": "acme",
        "model": "llama",
        "pool": "p",
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "cached_tokens": 64,
        "reasoning_tokens": 5,
        "ttft_us": 10000,
        "queue_us": 1000,
    }


def test_what_it_cost_and_whose_it_was_is_in_the_line() -> None:
    record = msgspec.structs.replace(
        RECORD,
        cost_nanousd=1_500,
        price_id="p1",
        degraded=True,
        user="ann@example.com",
        client="203.0.113.7",
        user_agent="curl/8",
        trace_id="4bf9",
    )
    told = json.loads(line_of(record, end_user=True))
    assert (told["cost_nanousd"], told["price_id"], told["degraded"]) == (1_500, "p1", True)
    assert (told["user"], told["client"], told["user_agent"], told["trace_id"]) == ("ann@example.com", "203.0.113.7", "curl/8", "4bf9")
    assert b"ann@" not in line_of(record), "only where it is asked for"


SAID = GuardRecord(
    "block",
    "keys",
    "output",
    True,
    (GuardCount("keys", "aws_key", "block", "output", 1), GuardCount("people", "email", "redact", "input", 2)),
    ("model",),
    ("image_url",),
    "0123456789abcdef",
)


def test_what_guard_rules_said_is_in_the_line_and_only_where_there_are_rules() -> None:
    assert not [name for name in json.loads(line_of(RECORD)) if name.startswith("guard")]
    told = json.loads(line_of(msgspec.structs.replace(RECORD, guards=SAID)))
    assert {name: value for name, value in told.items() if name.startswith("guard")} == {
        "guard": "block",
        "guard_by": "keys",
        "guard_direction": "output",
        "guard_late": True,
        "guard_found": "keys:aws_key:block:output=1, people:email:redact:input=2",
        "guard_failed": "model",
        "guard_unread": "image_url",
        "guard_version": "0123456789abcdef",
    }
    passed = GuardRecord("passed", "", "", False, (), (), (), "0123456789abcdef")
    told = json.loads(line_of(msgspec.structs.replace(RECORD, guards=passed)))
    assert {name for name in told if name.startswith("guard")} == {"guard", "guard_version"}


@pytest.mark.req("R39")
def test_a_thousand_findings_still_fit_one_line() -> None:
    counts = tuple(GuardCount(f"{'r' * 60}{at}", "k" * 64, "block", "tool_arguments", 2**53) for at in range(100))
    record = msgspec.structs.replace(RECORD, **dict.fromkeys(TEXT_FIELDS, "\x01" * 3000))
    for one in (RECORD, record):
        line = line_of(msgspec.structs.replace(one, guards=msgspec.structs.replace(SAID, counts=counts, failed=("f" * 64,) * 100)))
        assert len(line) <= MAX_LINE_BYTES
        assert json.loads(line)["guard"] == "block"


def test_the_time_has_the_form_of_the_other_logs() -> None:
    told = json.loads(line_of(msgspec.structs.replace(RECORD, at_unix=1_790_000_000.25)))
    assert told["at"] == "2026-09-21T14:13:20.250000Z"


@pytest.mark.req("R39")
@given(st.dictionaries(st.sampled_from(TEXT_FIELDS), st.one_of(st.sampled_from(ATTACKS), st.text(max_size=700)), min_size=1))
def test_whatever_a_record_holds_is_exactly_one_parseable_line(texts: dict[str, str]) -> None:
    line = line_of(msgspec.structs.replace(RECORD, **texts))
    assert len(line) <= MAX_LINE_BYTES
    assert line.endswith(b"\n")
    assert len(line.decode().splitlines()) == 1
    assert not FORBIDDEN & set(line[:-1].decode())
    assert json.loads(line)["status"] == 200


@pytest.mark.req("R39")
def test_every_field_at_its_worst_still_fits_one_line() -> None:
    for attack in ATTACKS:
        line = line_of(msgspec.structs.replace(RECORD, **dict.fromkeys(TEXT_FIELDS, attack * 200)))
        assert len(line) <= MAX_LINE_BYTES
        json.loads(line)


def test_a_field_is_at_most_2_kib() -> None:
    line = line_of(msgspec.structs.replace(RECORD, detail="\U0001f600" * 5000))
    assert 0 < len(json.loads(line)["detail"].encode()) <= 2048


def test_lines_wait_for_company_and_then_reach_the_file_in_order(tmp_path: Path) -> None:
    path, later = tmp_path / "access.log", Later()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    log = AccessLog(fd, later)
    for at in range(10):
        log.write(msgspec.structs.replace(RECORD, request_id=str(at)))
    assert [delay for delay, _ in later.asked] == [FLUSH_AFTER_S], "one timer per batch"
    later.asked[0][1]()
    log.write(msgspec.structs.replace(RECORD, request_id="10"))
    assert len(later.asked) == 2
    log.close()
    os.close(fd)
    assert [json.loads(line)["request_id"] for line in path.read_text().splitlines()] == [str(at) for at in range(11)]
    assert log.dropped == 0
    log.write(RECORD)
    assert log.dropped == 1, "a closed log loses, and says so"


def test_a_full_batch_does_not_wait_for_the_timer() -> None:
    read, write = os.pipe()
    log = AccessLog(write, Later())
    for _ in range(FLUSH_BYTES // len(line_of(RECORD)) + 1):
        log.write(RECORD)
    assert json.loads(os.read(read, 4096).split(b"\n")[0])["request_id"] == "req_1"
    os.close(read)
    log.close()
    os.close(write)


@pytest.mark.parametrize("non_blocking", [False, True])
def test_a_pipe_that_nobody_reads_costs_lines_not_time(non_blocking: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, not non_blocking)
    log = AccessLog(write, Later())
    size = len(line_of(RECORD))
    fit = MAX_PENDING_BYTES // size
    for _ in range(2 * fit + 2000):  # returns: that is the test
        log.write(RECORD)
    # the pipe itself holds 64 KiB more, which the thread may or may not have handed over in time
    assert 2 * fit + 2000 - fit - 65536 // size - 10 <= log.dropped <= fit + 2000
    accepted = 2 * fit + 2000 - log.dropped
    log.flush()
    lines = 0
    while lines < accepted:  # a reader that comes late finds everything that was not counted as dropped, whole
        lines += os.read(read, 1 << 20).count(b"\n")
    log.close()
    os.close(read)
    os.close(write)
    assert lines == accepted


def test_a_reader_that_left_is_counted_and_does_not_end_the_log() -> None:
    read, write = os.pipe()
    os.close(read)
    log = AccessLog(write, Later())
    for _ in range(20):
        log.write(RECORD)
    log.close()
    os.close(write)
    assert log.dropped == 20


def test_slices_are_whole_lines_in_order_and_small_enough_not_to_be_mixed_with_other_workers() -> None:
    batch = [line_of(RECORD)] * 40 + [b"x" * MAX_LINE_BYTES]
    found = slices(batch, MAX_LINE_BYTES)
    assert all(len(b"".join(batch[start:end])) <= MAX_LINE_BYTES for start, end in found)
    assert [line for start, end in found for line in batch[start:end]] == batch


@pytest.mark.parametrize(
    ("request_id", "engine_id", "logged"),
    [
        ("req-1", "", {"request_id": "req-1"}),
        ("theirs", "req-1", {"request_id": "req-1", "caller_request_id": "theirs"}),
        ("theirs", "req-2", {"request_id": "req-1", "caller_request_id": "theirs", "engine_request_id": "req-2"}),
        ("req-1", "req-2", {"request_id": "req-1", "engine_request_id": "req-2"}),
    ],
)
def test_a_line_is_known_by_our_id_and_names_the_callers_own(request_id: str, engine_id: str, logged: dict[str, str]) -> None:
    """`req-2`: another model answered in place of the one that was asked for."""
    record = msgspec.structs.replace(RECORD, request_id=request_id, engine_request_id=engine_id, gateway_id="req-1")
    line = json.loads(line_of(record))
    assert {name: line[name] for name in line if name.endswith("request_id")} == logged


def test_a_line_with_every_text_at_its_shortest_fits_whatever_the_texts_are() -> None:
    entry = access_log._flat(RECORD, end_user=True, chain_key="")
    numbers = {name: 2**53 for name, value in msgspec.structs.asdict(entry).items() if type(value) is int}
    texts = dict.fromkeys(access_log._TEXT_FIELDS, "\x7f\x01" * access_log.SHORT_FIELD_CHARS)
    worst = msgspec.structs.replace(entry, **numbers, **{name: text[: access_log.SHORT_FIELD_CHARS] for name, text in texts.items()})
    assert len(msgspec.json.encode(worst)) + 1 <= MAX_LINE_BYTES
    all_escaped = msgspec.structs.replace(worst, **dict.fromkeys(access_log._TEXT_FIELDS, "\x01" * access_log.SHORT_FIELD_CHARS))
    assert len(msgspec.json.encode(all_escaped)) + 1 <= MAX_LINE_BYTES
