from statistics import mean

from policies.rollout.assignment import place


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
