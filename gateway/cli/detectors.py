"""Detectors as `tidegate check` shows them: where texts go, which rules send them there, and detectors that no rule asks."""

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from gateway.config.guards import DetectorSettings, GuardModelSettings, ModerationsSettings
from gateway.config.settings import Settings
from guardrails.policy import DetectorRule
from policies.compile import PolicySet, TenantPolicy
from policies.schema import EVERYONE

PAGE: Final = "docs/reference/guards.md#detectors"
"""Where to read about detectors."""
MAX_NAMED: Final = 5
"""Rules that are named for one detector."""


def detectors_in_words(settings: Settings, policies: PolicySet | None) -> Iterator[str]:
    """A line for each detector of the settings: what it is, where the texts go that it is asked about, and the rules that ask it.

    Args:
        policies: None where they are not known here.
    """
    asking = rules_asking(policies) if policies is not None else {}
    for name, detector in settings.guards.detectors.items():
        rules = asking.get(name, [])
        more = f" and {len(rules) - MAX_NAMED} more" if len(rules) > MAX_NAMED else ""
        asked_by = f", asked by {', '.join(rules[:MAX_NAMED])}{more}" if rules else ""
        yield f"detector {name}: {detector.kind}, texts go to {_where(detector)}{asked_by}"


def unused_detectors(settings: Settings, policies: PolicySet) -> list[str]:
    """A note for each detector of the settings that no rule of a policy asks."""
    asking = rules_asking(policies)
    return [
        f"no rule of a policy asks the detector {name} (guards.detectors.{name}); add a rule of the kind detector, or remove it ({PAGE})"
        for name in settings.guards.detectors
        if name not in asking
    ]


def rules_asking(policies: PolicySet) -> Mapping[str, list[str]]:
    """The rules that ask each detector, in words: their ids, and the tenants whose policy has them. A rule of the default policy is named
    once."""
    found: dict[str, dict[str, None]] = {}
    of_everyone: set[str] = set()
    for policy in sorted(policies.policies(), key=lambda one: one.tenant != EVERYONE):
        for rule in _detector_rules(policy):
            if policy.tenant == EVERYONE:
                of_everyone.add(rule.id)
            elif rule.id in of_everyone:
                continue  # no tenant's policy can have such an id again, so it is that rule
            whose = "every tenant" if policy.tenant == EVERYONE else f"tenant {policy.tenant}"
            found.setdefault(rule.detector, {})[f"rule {rule.id} of {whose}"] = None
    return {detector: list(rules) for detector, rules in found.items()}


def _detector_rules(policy: TenantPolicy) -> list[DetectorRule]:
    levels = policy.guards.places().values() if policy.guards is not None else ()
    return [rule for guards in levels for rule in guards.rules if isinstance(rule, DetectorRule)]


def _where(detector: DetectorSettings) -> str:
    """The pool, or scheme and host: the path and query of a URL may hold what others should not read."""
    if isinstance(detector, GuardModelSettings):
        return f"pool {detector.pool}"
    if isinstance(detector, ModerationsSettings) and detector.pool is not None:
        return f"pool {detector.pool}"
    parts = urlsplit(str(detector.url))
    return f"{parts.scheme}://{parts.netloc}"
