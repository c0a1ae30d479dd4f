"""The weights: the file says what was written, a damaged one is refused with what to do, and a score is the formula's."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.classifier.features import STRIDE, WINDOW, tokens
from guardrails.classifier.model import (
    FORMAT,
    SLOPE,
    WEIGHTS,
    Header,
    Model,
    WeightsUnusable,
    packaged,
    packaged_version,
    read,
    threshold,
    written,
)

HEADER = Header(FORMAT, 3, -1.0, 0.5, {"normal": (1.0, 2.0)}, "by hand")


def test_a_score_is_the_bias_and_the_weights_over_the_root_of_their_number() -> None:
    model = Model(HEADER, {"1ignore": 2.0, "2ignore rules": 1.0, "1rules": 0.0})
    (window,) = model.score(tokens("ignore rules ignore"))
    assert window.score == pytest.approx(-1 + 3 / math.sqrt(3))
    assert [one.score for one in model.score(tokens("nothing known"))] == [-1]
    assert model.score(tokens("")) == []


def test_an_attempt_deep_in_a_long_text_scores_as_in_its_window_alone() -> None:
    model = Model(HEADER, {"1ignore": 4.0})
    scored = model.score(tokens("word " * 5 * WINDOW + "ignore " + "word " * 5 * WINDOW))
    assert {(one.begin <= 5 * WINDOW < one.end, one.score) for one in scored} == {(True, 3.0), (False, -1.0)}
    assert scored[1].begin == STRIDE


def test_thresholds_rise_with_the_number_of_windows_and_never_fall_below_that_of_one() -> None:
    assert threshold((1.0, 2.0), 1) == 1.0
    assert threshold((1.0, 2.0), 4) == 2.0
    assert threshold((1.0, 2.0), 64) == pytest.approx(2 + 4 * SLOPE)
    assert threshold((1.0, 0.0), 2) == 1.0
    with pytest.raises(ValueError, match="'high' is unknown; there are normal"):
        Model(HEADER, {}).threshold("high", 1)


names = st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1, max_size=6).map("1".__add__)


@given(st.dictionaries(names, st.integers(-127, 127), max_size=20))
def test_a_file_says_what_was_written_in_the_same_bytes_whatever_the_order(weights: dict[str, int]) -> None:
    header = Header(FORMAT, len(weights), 0.25, 0.5, {"normal": (1.0, 2.0)}, "by hand")
    data = written(header, weights)
    assert written(header, dict(reversed(weights.items()))) == data
    model = read(data)
    assert model.header == header
    assert [round(weight / 0.5) for weight in model._weights] == [weights[name] for name in sorted(weights)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no header"),
        (b'{"format":1}\nxx', "no header"),
        (written(HEADER, {"a": 1, "b": 2, "c": 3})[:-4], "cut short"),
        (written(HEADER, {"a": 1, "b": 2}), "cut short or too long"),
        (written(HEADER, {"a": 1, "b": 2, "c": 3}).replace(b"classifier 1", b"classifier 9"), "not 'tidegate classifier 1'"),
        (written(HEADER, {"a": 1, "b": 2, "c": 3}).partition(b"\n")[0] + b"\nnot zlib", "damaged"),
    ],
)
def test_a_damaged_file_is_refused_with_what_to_do(data: bytes, message: str) -> None:
    with pytest.raises(WeightsUnusable, match=message) as refused:
        read(data)
    assert "install the package again" in str(refused.value)


def test_the_packaged_weights_are_small_and_have_all_sensitivities_in_order() -> None:
    assert WEIGHTS.stat().st_size < 300_000
    thresholds = packaged().header.thresholds
    assert set(thresholds) == {"low", "normal", "high"}
    for one in (0, 1):
        assert thresholds["low"][one] >= thresholds["normal"][one] >= thresholds["high"][one]
    assert len(packaged_version()) == 16
