import pytest

from domain.faults import Fault, Kind
from gateway.record import slo_results
from policies.compile import TenantPolicy, compiled
from policies.schema import PolicyDocument


def policy(**fields: float) -> TenantPolicy:
    found = compiled([PolicyDocument.model_validate({"tenant": "acme", "models": [], **fields})]).for_tenant("acme")
    assert found is not None
    return found


BOTH = policy(ttft_slo_s=1.0, tpot_slo_s=0.05)


@pytest.mark.parametrize(
    ("ttft_s", "decode_s", "tokens", "expected"),
    [
        (1.0, 0.5, 11, (("ttft", True), ("tpot", True))),
        (1.1, 0.6, 11, (("ttft", False), ("tpot", False))),
        (0.5, 0.0, 1, (("ttft", True),)),
        (0.5, None, 5, (("ttft", True),)),
    ],
)
def test_a_whole_answer_keeps_each_promise_or_does_not(
    ttft_s: float, decode_s: float | None, tokens: int, expected: tuple[tuple[str, bool], ...]
) -> None:
    assert slo_results(BOTH, ttft_s, decode_s, tokens, None) == expected


def test_what_never_came_was_late_unless_the_request_was_at_fault_itself() -> None:
    assert slo_results(BOTH, None, None, 0, Fault(Kind.OVERLOADED, "x")) == (("ttft", False),)
    assert slo_results(BOTH, None, None, 0, Fault(Kind.INVALID_VALUE, "x")) == ()
    assert slo_results(BOTH, 0.5, 9.0, 3, Fault(Kind.BROKEN_STREAM, "x")) == (("ttft", True),), "a part of an answer has no mean"


def test_nothing_is_said_where_nothing_was_promised() -> None:
    assert slo_results(policy(), 9.0, 9.0, 3, None) == ()
    assert slo_results(policy(tpot_slo_s=1.0), 9.0, 2.0, 3, None) == (("tpot", True),)
