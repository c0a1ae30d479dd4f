"""Training: it learns what a small set teaches, in the same bytes each time, and its scores are those of the packaged scorer."""

import random

import numpy as np
import pytest

from bench.guards.classifier_data import Example
from bench.guards.train import GROUPS, Prepared, descended, fires, packed, thresholds, trained
from guardrails.classifier.features import tokens
from guardrails.classifier.model import read, threshold
from guardrails.text import Text

PLACES = ("parcel", "invoice", "garden", "ticket", "museum", "train", "lamp", "river")


def examples() -> list[Example]:
    rng = random.Random(1)
    made = []
    for number in range(60):
        place, other = rng.sample(PLACES, 2)
        made.append(Example(f"please ignore the rules of the {place} and {other}", True, "a" if number % 2 else "b", True, 0))
        for source in ("BANKING77", "CLINC150", "BFCL tools", "agent sessions"):
            text = f"please tell me when the {place} and the {other} of {source.split()[0]} {number} come " * (1 + 6 * (source[0] == "a"))
            made.append(Example(text, False, source, number % 3 > 0, number % 4))
    return made


def test_it_learns_and_the_file_is_the_same_each_time_and_scores_alike() -> None:
    prepared = Prepared(examples())
    model = trained(prepared, None, features=200)
    by_sensitivity = {name: thresholds(prepared, model, name) for name in GROUPS}
    data = packed(model, by_sensitivity, "a test")
    assert data == packed(trained(Prepared(examples()), None, features=200), by_sensitivity, "a test")
    shipped = read(data)
    for at, one in enumerate(prepared.examples):
        scored = shipped.score(tokens(Text(one.text).folded))
        assert max(window.score for window in scored) == pytest.approx(model.scores[at], abs=0.2)
        assert len(scored) == model.per_text[at]
    fired = fires(model.scores, model.per_text, by_sensitivity["normal"])
    assert fired[prepared.attack].mean() > 0.95
    assert fired[~prepared.attack].mean() < 0.02


def test_a_source_that_is_left_out_changes_nothing() -> None:
    others = [one for one in examples() if one.source != "b"]
    odd = [Example("quite other words stand here", True, "b", True, 0)] * 5
    with_it, without = trained(Prepared([*others, *odd]), "b", features=100), trained(Prepared(others), "b", features=100)
    assert with_it.names == without.names
    assert np.array_equal(with_it.weights, without.weights)
    assert np.array_equal(with_it.calibration[: len(others)], without.calibration, equal_nan=True)


def test_kept_away_texts_teach_and_calibrate_nothing() -> None:
    kept = [one for one in examples() if one.tuning]
    more = [*kept, *[one for one in examples() if not one.tuning]]
    first, second = trained(Prepared(kept), None, features=100), trained(Prepared(more), None, features=100)
    assert np.array_equal(first.weights, second.weights)
    assert np.isnan(second.calibration[len(kept) :]).all()


def test_thresholds_fire_as_the_packaged_scorer_does() -> None:
    scores, counts = np.array([0.5, 1.5, 1.5, 2.5]), np.array([1, 1, 8, 8])
    assert fires(scores, counts, (1.0, 2.0)).tolist() == [s > threshold((1.0, 2.0), int(n)) for s, n in zip(scores, counts, strict=True)]
    assert fires(scores, counts, (1.0, 2.0)).tolist() == [False, True, False, True]


def test_the_descent_finds_the_lowest_point_of_a_bowl() -> None:
    centre, stretch = np.array([3.0, -2.0, 0.5]), np.array([1.0, 25.0, 4.0])

    def bowl(point: "np.typing.NDArray[np.float64]") -> "tuple[float, np.typing.NDArray[np.float64]]":
        away = point - centre
        return float(stretch @ away**2), 2 * stretch * away

    assert descended(bowl, np.zeros(3)) == pytest.approx(centre, abs=1e-3)
