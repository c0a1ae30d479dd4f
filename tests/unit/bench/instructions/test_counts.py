import pytest

from bench.instructions.counts import Dump, by_thread, per_request, read_dump

HEAD = """# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 7595
cmd:  python -m bench.instructions.worker
part: 2
thread: 5


desc: I1 cache:
desc: Timerange: Basic block 6278236 - 14589482
desc: Trigger: dump busy

positions: line
events: Ir
summary: 8918552


fn=(13566) sqlite3BeginTrigger
27 4
"""


def test_a_dump_says_its_thread_its_part_and_its_sum() -> None:
    assert read_dump(HEAD + "\ntotals: 8918552\n") == Dump("busy", 5, 8_918_552)


def test_a_dump_that_was_cut_short_is_refused() -> None:
    with pytest.raises(ValueError, match="cut short"):
        read_dump(HEAD)


def test_a_file_of_all_threads_together_is_refused() -> None:
    with pytest.raises(ValueError, match="no thread line"):
        read_dump(HEAD.replace("thread: 5\n", "") + "\ntotals: 1\n")


def test_parts_are_told_apart_by_what_ended_them() -> None:
    dumps = [Dump("warm", 1, 5), Dump("busy", 1, 1_000_000), Dump("busy", 2, 30_000), Dump("Program termination", 1, 7)]
    assert by_thread(dumps, "busy") == {1: 1_000_000, 2: 30_000}


def test_what_goes_on_without_requests_is_subtracted_by_thread() -> None:
    assert per_request({1: 1_000_000, 2: 30_000}, {1: 200_000, 3: 9}, 10) == {1: 80.0, 2: 3.0}
