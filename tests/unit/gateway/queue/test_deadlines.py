from math import inf

import pytest

from domain.faults import Fault, Kind
from domain.priority import Class
from gateway.queue.deadlines import DEFAULT_WAIT_S, asked_wait_s, wait_s


def test_a_caller_may_want_less_than_its_policy_and_never_gets_more() -> None:
    assert asked_wait_s(b"2.5") == 2.5
    assert wait_s(Class.DEFAULT, None, inf) == DEFAULT_WAIT_S[Class.DEFAULT]
    assert wait_s(Class.DEFAULT, 20.0, inf) == 20.0
    assert wait_s(Class.BATCH, 20.0, 5.0) == 5.0
    assert wait_s(Class.INTERACTIVE, 20.0, 500.0) == 20.0


@pytest.mark.parametrize("given", [b"", b"soon", b"0", b"-1", b"nan", b"inf", b"86401", b"1e400", b"1 s", b"1" * 33, b"\xff"])
def test_what_is_no_number_of_seconds_is_refused(given: bytes) -> None:
    with pytest.raises(Fault) as raised:
        asked_wait_s(given)
    assert raised.value.kind is Kind.INVALID_VALUE
    assert "x-tidegate-timeout-s" in raised.value.message


def test_every_class_has_a_wait_and_the_docstring_says_it() -> None:
    from gateway.queue import deadlines

    assert set(DEFAULT_WAIT_S) == set(Class)
    for one, seconds in DEFAULT_WAIT_S.items():
        assert f"| {one.word} | {seconds:.0f} |" in (deadlines.__doc__ or "")
