from statistics import mean

from hypothesis import given
from hypothesis import strategies as st

from policies.rollout.assignment import Arm, assign, mirrored, place

SHARES = st.floats(0, 1)


@given(st.text(), st.text(), SHARES, SHARES)
def test_a_growing_share_only_moves_keys_to_the_canary(salt: str, key: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    if assign(salt, key, small).arm is Arm.CANARY:
        assert assign(salt, key, large).arm is Arm.CANARY


@given(st.text(), st.text())
def test_nobody_is_on_a_canary_without_traffic_and_all_on_one_with_everything(salt: str, key: str) -> None:
    assert assign(salt, key, 0.0).arm is Arm.BASELINE
    assert assign(salt, key, 1.0).arm is Arm.CANARY


def test_keys_lie_evenly_and_rollouts_do_not_begin_with_the_same() -> None:
    keys = [str(i) for i in range(20_000)]
    one, other = [{key for key in keys if assign(salt, key, 0.1).arm is Arm.CANARY} for salt in ("one", "other")]
    assert 0.09 < len(one) / len(keys) < 0.11
    assert 0.005 < len(one & other) / len(keys) < 0.015


def test_what_is_mirrored_is_drawn_by_request_and_apart_from_the_shares() -> None:
    requests = [str(i) for i in range(20_000)]
    shadowed = {request for request in requests if mirrored("r1", request, 0.2)}
    canary = {request for request in requests if assign("r1", request, 0.2).arm is Arm.CANARY}
    assert 0.19 < len(shadowed) / len(requests) < 0.21
    assert 0.03 < len(shadowed & canary) / len(requests) < 0.05


def test_who_tests_gets_what_they_ask_for_and_is_not_counted() -> None:
    for arm in Arm:
        given_ = assign("r1", "key", 0.5, wanted=arm)
        assert given_.arm is arm
        assert not given_.counted
    assert assign("r1", "key", 0.5).counted


def test_a_place_is_on_the_unit_interval_and_stays():
    places = [place("m", f"k{n}") for n in range(2_000)]
    assert all(0 <= at < 1 for at in places)
    assert places == [place("m", f"k{n}") for n in range(2_000)]
    assert abs(mean(places) - 0.5) < 0.03


def test_salts_deal_independently():
    """Else those who are in one experiment would be in every one."""
    both = sum(place("a", f"k{n}") < 0.5 and place("b", f"k{n}") < 0.5 for n in range(2_000))
    assert abs(both / 2_000 - 0.25) < 0.05
    assert place("a", "bc") != place("ab", "c")
