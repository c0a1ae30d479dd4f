"""Detectors as `tidegate check` shows them: where texts go, rules that name a detector which is not there, detectors that nobody asks."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from gateway.config.guards import DetectorSettings, GuardModelSettings, ModerationsSettings
from gateway.config.settings import Settings
from guardrails.policy import DetectorRule, GuardRule
from policies.load import suggestion
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

PAGE: Final = "docs/reference/guards.md#detectors"
"""Where to read about detectors."""


def detectors_in_words(settings: Settings) -> Iterator[str]:
    """A line for each detector of the settings: what it is, and where the texts go that it is asked about."""
    for name, detector in settings.guards.detectors.items():
        yield f"detector {name}: {detector.kind}, texts go to {_where(detector)}"


def _where(detector: DetectorSettings) -> str:
    """The pool, or scheme and host: the path and query of a URL may hold what others should not read."""
    if isinstance(detector, GuardModelSettings):
        return f"pool {detector.pool}"
    if isinstance(detector, ModerationsSettings) and detector.pool is not None:
        return f"pool {detector.pool}"
    parts = urlsplit(str(detector.url))
    return f"{parts.scheme}://{parts.netloc}"


def unknown_detectors(rules: Iterable[tuple[Located, Path_, GuardRule]], detectors: Collection[str]) -> list[Problem]:
    """A problem for each rule that names a detector which the settings do not have.

    Args:
        rules: each with its file and its place there, as `("guards", "rules", 2)`.
        detectors: the names in `guards.detectors` of the settings.
    """
    otherwise = "tidegate.yaml has no guards.detectors; add it there, or remove the rule"
    return [
        located.problem((*path, "detector"), f"there is no detector {rule.detector!r}", suggestion(rule.detector, detectors, otherwise))
        for located, path, rule in rules
        if isinstance(rule, DetectorRule) and rule.detector not in detectors
    ]


def unused_detectors(rules: Iterable[GuardRule], detectors: Collection[str]) -> list[str]:
    """A note for each detector that no rule asks.

    Args:
        rules: those of every policy.
        detectors: the names in `guards.detectors` of the settings.
    """
    asked = {rule.detector for rule in rules if isinstance(rule, DetectorRule)}
    return [
        f"no rule of a policy asks the detector {name} (guards.detectors.{name}); add a rule of the kind detector, or remove it ({PAGE})"
        for name in detectors
        if name not in asked
    ]
