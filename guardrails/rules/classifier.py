"""Prompt injection by a trained linear classifier: the adapter of `guardrails.classifier` to the port of scanners. Pure.

The lexical rule (`guardrails.rules.injection`) knows signs that people wrote down; this one weighs words and runs of words as training has
found them in attempts and in honest texts. Each finds what the other does not, so that a policy has both. `docs/numbers.md` says how much
each finds of sources that training had not seen.
"""

from collections.abc import Sequence
from typing import Final, Literal

from guardrails.classifier.features import places, tokens
from guardrails.classifier.model import Model, packaged
from guardrails.ports import Finding, Scanned

VERSION: Final = "classifier 1"
KIND: Final = "injection"

Sensitivity = Literal["low", "normal", "high"]


class Classifier:
    """Finds the windows of a text that look like prompt injection.

    Args:
        rule: the id of the rule.
        sensitivity: which of the calibrated thresholds counts.
        model: the weights; those of the package where none are given.

    Raises:
        WeightsUnusable: the weights of the package are missing or damaged.
        ValueError: the weights have no threshold for the sensitivity.
    """

    version = VERSION

    def __init__(self, rule: str, *, sensitivity: Sensitivity = "normal", model: Model | None = None) -> None:
        self._rule = rule
        self._sensitivity = sensitivity
        self._model = packaged() if model is None else model
        self._model.threshold(sensitivity, 1)

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> None:
        """None: the threshold depends on the length of the whole text."""
        return None

    def scan(self, text: Scanned) -> Sequence[Finding]:
        """The suspicious windows; windows that overlap are one finding."""
        scored = self._model.score(tokens(text.folded))
        threshold = self._model.threshold(self._sensitivity, len(scored))
        spans: list[tuple[int, int]] = []
        for window in scored:
            if window.score <= threshold:
                continue
            if spans and window.begin <= spans[-1][1]:
                spans[-1] = (spans[-1][0], window.end)
            else:
                spans.append((window.begin, window.end))
        if not spans:
            return ()
        at = places(text.folded)
        return [Finding(self._rule, KIND, *text.span(at[begin][0], at[end - 1][1])) for begin, end in spans]
