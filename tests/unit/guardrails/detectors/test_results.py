"""What is remembered of detectors: the bounds of the memory, and keys that only equal questions share."""

from hypothesis import given
from hypothesis import strategies as st

from guardrails.detectors.results import ENTRY_BYTES, FOUND_BYTES, Results, result_key
from guardrails.ports import Detected

FOUND = (Detected("S1", 1.0, 0, 4),)
_WORD = st.text(max_size=4)


@given(st.lists(st.tuples(_WORD, _WORD, _WORD, _WORD), min_size=2, max_size=2))
def test_keys_are_equal_for_equal_questions_alone(questions: list[tuple[str, str, str, str]]) -> None:
    first, second = questions
    assert (result_key(*first) == result_key(*second)) is (first == second)


def test_parts_that_only_run_together_alike_have_other_keys() -> None:
    keys = {
        result_key("v", "a", "bc", "t"),
        result_key("v", "ab", "c", "t"),
        result_key("va", "", "bc", "t"),
        result_key("v", "a", "b", "ct"),
    }
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    assert result_key("v", "a", "input", "\ud800") != result_key("v", "a", "input", "?"), "half a surrogate pair is another text"


def test_the_memory_has_a_bound_in_bytes_and_forgets_what_was_asked_for_longest_ago() -> None:
    size = ENTRY_BYTES + FOUND_BYTES
    results = Results(200 * size)
    for number in range(200):
        results.put(b"%d" % number, FOUND, 10.0)
    assert (len(results), results.bytes) == (200, 200 * size)
    assert results.get(b"0", 0.0) == FOUND
    results.put(b"new", FOUND, 10.0)
    assert (len(results), results.bytes) == (200, 200 * size)
    assert results.get(b"0", 0.0) == FOUND
    assert results.get(b"1", 0.0) is None


def test_the_memory_has_a_bound_in_entries() -> None:
    results = Results(10**9, most=3)
    for number in range(5):
        results.put(b"%d" % number, (), 10.0)
    assert [results.get(b"%d" % number, 0.0) for number in range(5)] == [None, None, (), (), ()]


def test_a_result_without_findings_is_one() -> None:
    results = Results(10**6)
    results.put(b"k", (), 10.0)
    assert results.get(b"k", 9.9) == ()
    assert results.get(b"k", 10.0) is None
    assert (len(results), results.bytes) == (0, 0)


def test_a_result_as_large_as_the_memory_and_a_memory_of_nothing_keep_nothing() -> None:
    results = Results(100 * ENTRY_BYTES)
    results.put(b"large", FOUND * 100, 10.0)
    assert len(results) == 0
    none = Results(0)
    none.put(b"k", (), 10.0)
    assert none.get(b"k", 0.0) is None


def test_a_result_that_is_put_again_counts_once() -> None:
    results = Results(10**6)
    for _ in range(5):
        results.put(b"k", FOUND, 10.0)
    assert (len(results), results.bytes) == (1, ENTRY_BYTES + FOUND_BYTES)
