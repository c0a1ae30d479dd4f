"""The laws of pushed load: nothing an engine sends raises or grows anything, and what is said is the sum of every rank's last word."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.dialects.sglang import read_report
from backends.load_reports import FRESH_S, LoadReports
from backends.signals import MAX_NUMBER
from tests.load_push import report
from tests.scale import scaled

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


PAYLOADS = (
    st.binary(max_size=200)
    | VALUES.map(msgspec.msgpack.encode)
    | st.lists(VALUES).map(lambda values: msgspec.msgpack.encode(["LoadStat", *values]))
)


def sane(payload: bytes) -> str:
    """What is wrong with a payload, in words; else its report was read, and every number in it is one or unknown."""
    try:
        read = read_report(payload)
    except ValueError as error:
        return str(error)
    for value in msgspec.structs.astuple(read):
        assert value is None or (type(value) is int and 0 <= value <= MAX_NUMBER)
    return "-"


@settings(max_examples=scaled(500, 100_000), deadline=None)
@given(PAYLOADS)
def test_bytes_are_a_report_of_sane_numbers_or_are_refused_in_words(payload: bytes) -> None:
    assert 0 < len(sane(payload)) < 300


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["next", "next", "skip", "again", "none"]),
        st.integers(0, 50),
        st.booleans(),
        st.floats(0, 2),
    ),
    max_size=50,
)


@settings(max_examples=scaled(300, 20_000), deadline=None)
@given(STEPS)
def test_what_is_said_is_the_sum_of_every_ranks_last_word(steps: list[tuple[int, str, int, bool, float]]) -> None:
    reports, now = LoadReports(3, read_report), 0.0
    last: dict[int, tuple[int, float]] = {}
    numbers: dict[int, int] = {}
    for rank, how, running, good, after_s in steps:
        now += after_s
        before = numbers.get(rank)
        number = None if how == "none" else 0 if before is None or how == "again" else before + (1 if how == "next" else 5)
        if number is not None:
            if before is not None and number <= before:
                last.clear()
            numbers[rank] = number
        taken = reports.take_message(rank, number, report(running, 1, rank=rank) if good else b"garbage", now)
        assert taken is (good and number is not None)
        if taken:
            last[rank] = running, now
        fresh = [running for running, at in last.values() if now - at <= FRESH_S]
        pushed = reports.pushed(now)
        assert (pushed and (pushed.running, pushed.waiting)) == ((sum(fresh), 3) if len(fresh) == 3 else None)
