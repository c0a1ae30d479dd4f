from math import inf, log, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.assignment import Arm
from policies.rollout.samples import JUDGED, METRICS, ArmSums, Interval, RequestSample, Scale, from_fields, sums_of, to_fields, values_of

SECONDS = st.none() | st.floats(1e-6, 1e4)
SAMPLES = st.lists(
    st.builds(
        RequestSample,
        failed=st.booleans(),
        broken=st.none() | st.booleans(),
        refused=st.none() | st.booleans(),
        ttft_s=SECONDS,
        uncached_tokens=st.integers(0, 1_000_000),
        itl_s=SECONDS,
        output_tokens=st.none() | st.integers(0, 1_000_000),
        cost_nanousd=st.none() | st.integers(0, 10**12),
    ),
    max_size=20,
)


def assert_same(one: ArmSums, other: ArmSums) -> None:
    assert one.requests == other.requests
    assert {name: tally.n for name, tally in one.tallies.items()} == {name: tally.n for name, tally in other.tallies.items()}
    for name, tally in one.tallies.items():
        assert tally.total == pytest.approx(other.tallies[name].total, abs=1e-9)


@given(SAMPLES, SAMPLES, SAMPLES)
def test_gateways_sums_add_up_to_those_of_all_in_any_order(a: list[RequestSample], b: list[RequestSample], c: list[RequestSample]) -> None:
    assert_same(sums_of(a + b + c), sums_of(a) + sums_of(b) + sums_of(c))
    assert_same(sums_of(a) + sums_of(b), sums_of(b) + sums_of(a))
    assert_same((sums_of(a) + sums_of(b)) + sums_of(c), sums_of(a) + (sums_of(b) + sums_of(c)))
    assert_same(sums_of(a) + ArmSums(), sums_of(a))


@given(SAMPLES, SAMPLES, SAMPLES)
def test_a_counter_store_that_adds_fields_has_the_sums_of_all(
    a: list[RequestSample], b: list[RequestSample], c: list[RequestSample]
) -> None:
    fields: dict[str, float] = {"canary.of_a_later_version.n": 3}
    for arm, samples in ((Arm.CANARY, a), (Arm.BASELINE, b), (Arm.CANARY, c)):
        for name, value in to_fields(arm, sums_of(samples)).items():
            fields[name] = fields.get(name, 0) + value
    found = from_fields(7, fields)
    assert found.index == 7
    assert_same(found.canary, sums_of(a + c))
    assert_same(found.baseline, sums_of(b))


def test_only_one_interval_adds_up() -> None:
    some = sums_of([RequestSample(failed=True)])
    assert (Interval(3, canary=some) + Interval(3, baseline=some)) == Interval(3, some, some)
    with pytest.raises(ValueError, match="intervals 3 and 4"):
        Interval(3) + Interval(4)


def test_a_sample_counts_in_what_it_knows() -> None:
    assert values_of(RequestSample(failed=True)) == [("errors", 1.0)]
    whole = RequestSample(
        failed=False, broken=False, refused=True, ttft_s=0.5, uncached_tokens=744, itl_s=0.01, output_tokens=20, cost_nanousd=4000
    )
    assert dict(values_of(whole)) == {
        "errors": 0.0,
        "broken_streams": 0.0,
        "refusals": 1.0,
        "ttft": pytest.approx(log(0.0005)),
        "itl": pytest.approx(log(0.01)),
        "output_tokens": pytest.approx(log(20)),
        "token_cost": pytest.approx(log(200)),
    }
    assert dict(values_of(whole)).keys() == METRICS.keys() - {JUDGED}, "the judge has samples of its own"


@pytest.mark.parametrize("value", [0.0, -1.0, inf, nan])
def test_what_has_no_logarithm_is_left_out(value: float) -> None:
    sample = RequestSample(failed=False, ttft_s=value, itl_s=value, output_tokens=0, cost_nanousd=10)
    assert values_of(sample) == [("errors", 0.0)]


def test_margins_are_within_what_their_scale_has() -> None:
    assert all(0 < metric.margin < (0.1 if metric.scale is Scale.SHARE else 1) for metric in METRICS.values())
