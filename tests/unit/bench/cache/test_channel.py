"""The trials of the side channel's bench, and what it says of times that are known to differ or not."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from bench.cache.channel import LEAK_P, NOBODY, OTHER, OWN, VARIANTS, Came, Variant, judged, rows_of, table, trials


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_trial_asks_a_fresh_text_which_only_its_group_has_asked_before(variant: Variant) -> None:
    came = list(trials(variant, 400, 1))
    assert (
        len({one.question for one in came} | {one.before for one in came if one.group == NOBODY})
        == len(came) + Counter(one.group for one in came)[NOBODY]
    )
    for one in came:
        assert (one.question == one.before) == (one.group != NOBODY and not variant.paraphrase)
        assert (one.system == one.before_system) == (one.group != OWN or not variant.asked_elsewhere)
        words = set(one.question.split()) & set(one.before.split())
        assert any(len(word) >= 10 for word in words) == (one.group != NOBODY)  # the made words are the long ones
        assert min(len(one.question), len(one.before)) >= min(60, variant.characters)


def test_groups_are_dealt_by_a_coin_and_a_seed_repeats_them() -> None:
    first, again, other = (list(trials(VARIANTS[0], 4_000, seed)) for seed in (1, 1, 2))
    assert first == again != other
    count = Counter(one.group for one in first)
    assert count[OTHER] + count[NOBODY] == 4_000
    assert 1_850 < count[OTHER] < 2_150
    assert 350 < count[OWN] < 550
    runs = sum(one.group != next_.group for one, next_ in pairwise(first))
    assert 0.5 < runs / len(first) < 0.65, "0.5 by two coins alone, and the control in between"


def _times(other_us: float, own_us: float) -> Came:
    dice = np.random.default_rng(4)

    def drawn(middle: float, count: int) -> list[float]:
        return (middle + dice.lognormal(4, 1, count)).tolist()

    return Came(drawn(other_us, 2_000), drawn(1_000, 2_000), drawn(own_us, 400))


def test_equal_times_do_not_leak_and_the_run_could_have_seen_it() -> None:
    found = judged("equal", _times(1_000, 300), 1)
    assert not found.leaks
    assert found.sees
    assert found.interval[0] < 0.5 < found.interval[1]
    assert 0 < found.seen_us < 20
    line = table([found]).splitlines()[-1]
    assert "leaks" not in line
    assert "below" not in line


def test_times_that_differ_leak_and_a_control_that_does_not_is_named() -> None:
    found = judged("other", _times(980, 1_000), 1)
    assert found.leaks
    assert found.p < LEAK_P
    assert not found.sees
    assert found.seen_us == 0
    assert found.interval[0] > 0.5
    line = table([found]).splitlines()[-1]
    assert "**leaks**" in line
    assert "below" in line
    assert {row["metric"]: row["value"] for row in rows_of(found)}["auc"] == pytest.approx(found.area, abs=1e-5)
