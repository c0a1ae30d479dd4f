"""`python -m bench.guards.train --data DIR`: trains the classifier for injection and writes its weights; deterministic.

1. Texts: the visible sets (`bench.guards.classifier_data`) and made texts (`bench.guards.made_attacks`).
2. Features (`guardrails.classifier.features`): of those in at least `LEAST_TEXTS` texts the `FEATURES` whose counts differ most between
   attempts and honest texts (largest absolute z of the log-odds with a prior of one half; Monroe et al., Fightin' Words, 2008, eq. 22).
3. Weights: L2-regularised logistic regression over windows, by L-BFGS (Liu and Nocedal, 1989) from zero, a fixed number of steps. Each
   source of a class weighs the square root of its number of texts, both classes weigh the same.
4. Thresholds: from scores of honest tuning texts by models that were trained without them (four folds), so that at most the stated share
   of each group of `Sensitivity` is above.
5. Weights are rounded to a signed byte.

Needs numpy, which the extra `semantic` brings. Scoring needs nothing.
"""

import argparse
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bench.guards import classifier_data as texts_of
from bench.guards.classifier_data import Example
from guardrails.classifier.features import KnownFeatures, halves_of, known, names, tokens, windows
from guardrails.classifier.model import FORMAT, SLOPE, WEIGHTS, Header, written
from guardrails.text import Text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

FEATURES: Final = 40_000
LEAST_TEXTS: Final = 3
COST: Final = 3.0
"""Inverse strength of the regularisation, as C of other projects; chosen by nested leave-one-source-out (`bench.guards.injection`)."""
STEPS: Final = 60
MEMORY: Final = 10
TRAINED_WINDOWS: Final = 10
"""Windows of a longer text that train, evenly spread; all of them are scored."""
WEIGHT_SUM: Final = 2000.0
"""The weights of all training windows of a class together; with it `COST` means the same for any amount of data."""
GROUPS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "low": (("BANKING77",), ("CLINC150",), ("BFCL tools", "prompts-bench")),
    "normal": (("BANKING77",), ("CLINC150",), ("BFCL tools", "prompts-bench")),
    "high": (("BANKING77",), ("CLINC150",)),
}
"""For each sensitivity the groups of short honest texts of which at most its share may be found."""
SHARES: Final = {"low": 0.002, "normal": 0.01, "high": 0.02}
SINGLES: Final = 0.5
"""The share of one-window messages among the messages of agent sessions that may be found; the others may be longer. One share for all
sensitivities, so that a higher one finds all that a lower one finds."""
SESSIONS: Final = "agent sessions"


class Matrix(NamedTuple):
    """Windows by features, in rows that lie one behind the other."""

    features: "Ints"
    values: "Floats"
    rows: "Ints"
    """For each entry its window."""
    owner: "Ints"
    """For each window its text."""
    per_text: "Ints"
    """Windows of each text."""

    def scores(self, weights: "Floats", bias: float) -> "Floats":
        """The score of each window."""
        return np.bincount(self.rows, weights=self.values * weights[self.features], minlength=len(self.owner)) + bias

    def highest(self, weights: "Floats", bias: float) -> "Floats":
        """The highest score of each text; minus infinity for a text without tokens."""
        highest = np.full(len(self.per_text), -np.inf)
        np.maximum.at(highest, self.owner, self.scores(weights, bias))
        return highest


class Prepared:
    """Texts cut into tokens, once for all trainings."""

    def __init__(self, examples: Sequence[Example], earlier: "Prepared | None" = None) -> None:
        """`earlier` has texts that need not be cut again."""
        cut = {one.text: both for one, *both in zip(earlier.examples, earlier.words, earlier.names, strict=True)} if earlier else {}
        self.examples = examples
        self.words: list[list[str]] = []
        self.names: list[set[str]] = []
        for one in examples:
            if one.text in cut:
                words, found = cut[one.text]
            else:
                words = tokens(Text(one.text).folded)
                found = names(words)
            self.words.append(words)
            self.names.append(found)
        self.attack = np.array([one.attack for one in examples])
        self.source = np.array([one.source for one in examples])
        self.tuning = np.array([one.tuning for one in examples])
        self.fold = np.array([one.fold for one in examples])


def chosen(found: Iterable[tuple[Iterable[str], bool, float]], most: int) -> list[str]:
    """The names of the features that are kept, in order.

    Args:
        found: the features of each training text, whether it is an attempt, and its weight.
    """
    texts: Counter[str] = Counter()
    mass: dict[bool, dict[str, float]] = {True: {}, False: {}}
    totals = {True: 0.0, False: 0.0}
    for features, attack, weight in found:
        texts.update(features)
        share = mass[attack]
        totals[attack] += weight
        for name in features:
            share[name] = share.get(name, 0.0) + weight
    ranked = []
    for name, count in texts.items():
        if count < LEAST_TEXTS:
            continue
        a, h = mass[True].get(name, 0.0) + 0.5, mass[False].get(name, 0.0) + 0.5
        odds = math.log(a / (totals[True] + 1 - a)) - math.log(h / (totals[False] + 1 - h))
        ranked.append((-abs(odds) / math.sqrt(1 / a + 1 / h), name))
    return sorted(name for _, name in sorted(ranked)[:most])


def matrix(words: Sequence[Sequence[str]], vocabulary: KnownFeatures) -> Matrix:
    """The windows of texts."""
    features: list[int] = []
    values: list[float] = []
    sizes: list[int] = []
    owner: list[int] = []
    per_text = []
    for at, of_text in enumerate(words):
        halves = known(of_text, vocabulary)
        count = 0
        for begin, end in windows(len(of_text)):
            first, second = halves_of(begin, end)
            once = sorted(halves[first] | halves[second])
            features += once
            values += [1 / math.sqrt(len(once))] * len(once) if once else []
            sizes.append(len(once))
            owner.append(at)
            count += 1
        per_text.append(count)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    return Matrix(np.array(features, np.int64), np.array(values), rows, np.array(owner, np.int64), np.array(per_text, np.int64))


def text_weights(attack: "NDArray[np.bool_]", source: "NDArray[np.str_]") -> "Floats":
    """The weight of each text: a source of a class weighs the square root of its texts, a class `WEIGHT_SUM`."""
    weights = np.zeros(len(attack))
    for label in (True, False):
        for name in np.unique(source[attack == label]):
            of_source = (attack == label) & (source == name)
            weights[of_source] = 1 / math.sqrt(of_source.sum())
        weights[attack == label] *= WEIGHT_SUM / max(1e-9, weights[attack == label].sum())
    return weights


def fitted(windows_of: Matrix, label: "Floats", weight: "Floats", features: int, cost: float) -> tuple["Floats", float]:
    """The weights and the bias that minimise `|w|^2 / 2 + cost * sum(weight * log loss)`; the bias is not regularised."""
    sign = np.where(label > 0, 1.0, -1.0)

    def loss(point: "Floats") -> tuple[float, "Floats"]:
        margin = sign * windows_of.scores(point[:-1], float(point[-1]))
        pull = -sign * weight * cost / (1 + np.exp(np.clip(margin, -500, 500)))
        slope = np.bincount(windows_of.features, weights=windows_of.values * pull[windows_of.rows], minlength=features)
        value = 0.5 * float(point[:-1] @ point[:-1]) + cost * float(weight @ np.logaddexp(0, -margin))
        return value, np.append(point[:-1] + slope, pull.sum())

    point = descended(loss, np.zeros(features + 1))
    return point[:-1], float(point[-1])


def descended(loss: Callable[["Floats"], tuple[float, "Floats"]], point: "Floats") -> "Floats":
    """The point after at most `STEPS` steps of L-BFGS with backtracking; it ends early where a step no longer lowers the loss."""
    value, slope = loss(point)
    pairs: list[tuple[Floats, Floats, float]] = []
    for _ in range(STEPS):
        direction = -slope
        used: list[float] = []
        for step, change, curve in reversed(pairs):
            used.append(float(step @ direction) / curve)
            direction = direction - used[-1] * change
        if pairs:
            step, change, curve = pairs[-1]
            direction = direction * (curve / float(change @ change))
        else:
            direction = direction / max(1.0, float(np.linalg.norm(slope)))
        for (step, change, curve), share in zip(pairs, reversed(used), strict=True):
            direction = direction + (share - float(change @ direction) / curve) * step
        size, descent = 1.0, float(slope @ direction)
        while True:
            following = point + size * direction
            after, after_slope = loss(following)
            if after <= value + 1e-4 * size * descent:
                break
            size /= 2
            if size < 1e-8:
                return point
        step, change = following - point, after_slope - slope
        curve = float(step @ change)
        if curve > 1e-12:
            pairs = [*pairs, (step, change, curve)][-MEMORY:]
        done = value - after < 1e-7 * max(1.0, abs(value))
        point, value, slope = following, after, after_slope
        if done:
            break
    return point


class Trained(NamedTuple):
    """What training gives."""

    names: list[str]
    weights: "Floats"
    bias: float
    scores: "Floats"
    """The highest score of each prepared text."""
    per_text: "Ints"
    calibration: "Floats"
    """For honest tuning texts the highest score by a model that was trained without them; else not a number."""


def trained(prepared: Prepared, left_out: str | None, cost: float = COST, features: int = FEATURES) -> Trained:
    """A model that saw nothing of the source that is left out, and of honest sets the tuning parts alone.

    The made texts among `prepared` have to be those for the same source.
    """
    usable = prepared.tuning & (prepared.source != (left_out or ""))
    weights_of = text_weights(prepared.attack[usable], prepared.source[usable])
    weight = np.zeros(len(usable))
    weight[usable] = weights_of
    found = ((prepared.names[at], bool(prepared.attack[at]), float(weight[at])) for at in np.flatnonzero(usable))
    kept = chosen(found, features)
    whole = matrix(prepared.words, KnownFeatures(kept))
    calibrated = usable & ~prepared.attack & np.isin(prepared.source, texts_of.HONEST)
    calibration = np.full(len(usable), np.nan)
    for fold in range(texts_of.FOLDS):
        aside = calibrated & (prepared.fold == fold)
        model = _fit(prepared, whole, usable & ~aside, len(kept), cost)
        calibration[aside] = whole.highest(*model)[aside]
    point, bias = _fit(prepared, whole, usable, len(kept), cost)
    return Trained(kept, point, bias, whole.highest(point, bias), whole.per_text, calibration)


def _fit(prepared: Prepared, whole: Matrix, usable: "NDArray[np.bool_]", features: int, cost: float) -> tuple["Floats", float]:
    """The weights learned from the windows of usable texts."""
    of_text = np.zeros(len(usable))
    of_text[usable] = text_weights(prepared.attack[usable], prepared.source[usable])
    used = np.minimum(whole.per_text, TRAINED_WINDOWS)
    first = np.cumsum(whole.per_text) - whole.per_text
    place = np.arange(len(whole.owner)) - first[whole.owner]
    count = whole.per_text[whole.owner]
    # evenly spread: a window trains where the count of spread windows rises at its place
    rises = (place + 1) * used[whole.owner] // count > place * used[whole.owner] // count
    keep = rises & usable[whole.owner]
    weight = of_text[whole.owner] / np.sqrt(used[whole.owner])
    for label in (True, False):
        of_label = keep & (prepared.attack[whole.owner] == label)
        weight[of_label] *= WEIGHT_SUM / max(1e-9, weight[of_label].sum())
    entries = keep[whole.rows]
    numbers = np.cumsum(keep) - 1
    part = Matrix(whole.features[entries], whole.values[entries], numbers[whole.rows[entries]], whole.owner[keep], whole.per_text)
    return fitted(part, prepared.attack[part.owner].astype(np.float64), weight[keep], features, cost)


def thresholds(prepared: Prepared, model: Trained, sensitivity: str) -> tuple[float, float]:
    """The thresholds for texts of one window and of four: the lowest of which the calibration scores allow."""
    share = SHARES[sensitivity]
    scored = ~np.isnan(model.calibration)
    single = model.per_text <= 1
    sessions = scored & (prepared.source == SESSIONS)
    allowed = math.floor(share * sessions.sum())
    short = -math.inf
    for group in GROUPS[sensitivity]:
        scores = model.calibration[scored & np.isin(prepared.source, group) & single]
        if len(scores):
            short = max(short, _with_above(scores, math.floor(share * len(scores))))
    singles, longer = model.calibration[sessions & single], sessions & ~single
    if len(singles):
        short = max(short, _with_above(singles, int(allowed * SINGLES)))
    if not longer.any():
        return round(short, 4), round(short, 4)
    shifted = model.calibration[longer] - SLOPE * np.log2(model.per_text[longer] / 4)
    return round(short, 4), round(_with_above(shifted, allowed - int(allowed * SINGLES)), 4)


def _with_above(scores: "Floats", most: int) -> float:
    """The lowest of the scores that at most so many lie above, rounded up in the fourth digit."""
    return math.ceil(float(np.sort(scores)[::-1][min(most, len(scores) - 1)]) * 1e4) / 1e4


def fires(scores: "Floats", per_text: "Ints", short_long: tuple[float, float]) -> "NDArray[np.bool_]":
    """Which texts are suspicious; the same rule as `guardrails.classifier.model.threshold`."""
    short, long = short_long
    return scores > np.where(per_text <= 1, short, np.maximum(short, long + SLOPE * np.log2(np.maximum(per_text, 1) / 4)))


def packed(model: Trained, by_sensitivity: dict[str, tuple[float, float]], made: str) -> bytes:
    """The file of a model."""
    scale = float(np.abs(model.weights).max()) / 127 or 1.0
    rounded = np.rint(model.weights / scale).astype(int)
    weights = {name: int(value) for name, value in zip(model.names, rounded, strict=True)}
    header = Header(FORMAT, len(weights), round(model.bias, 6), float(f"{scale:.9g}"), by_sensitivity, made)
    return written(header, weights)


def main() -> None:
    """Train on everything, and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the visible sets")
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="the file to write")
    args = parser.parse_args()
    examples = texts_of.attempts(args.data) + texts_of.honest(args.data, texts_of.HONEST)
    examples += texts_of.made(examples, None)
    prepared = Prepared(examples)
    model = trained(prepared, None)
    by_sensitivity = {name: thresholds(prepared, model, name) for name in GROUPS}
    digest = hashlib.sha256("\0".join(one.text for one in examples).encode("utf-8", "replace")).hexdigest()[:16]
    data = packed(model, by_sensitivity, f"python -m bench.guards.train --data DIR; texts {digest}")
    args.out.write_bytes(data)
    print(f"{args.out}: {len(data):,} bytes, {len(model.names):,} features, thresholds {by_sensitivity}")


if __name__ == "__main__":
    main()
