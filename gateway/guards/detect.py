"""Asks the detectors of a request's rules about its texts, and makes verdicts of their answers. The making is pure."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from guardrails.chain import Spot, owned
from guardrails.guard_set import GuardSet
from guardrails.policy import CHANGING, DetectorRule, Direction
from guardrails.ports import Detected, Detector, DetectorAway
from guardrails.verdict import GuardVerdict, Noted

MAX_TEXTS: Final = 64
"""Texts of one request that detectors see: the last ones, which nobody has judged before. Earlier turns of a longer conversation were the
last ones of earlier requests."""

Sample = tuple[str, Direction, str]
"""Path, direction and text."""


def verdict_of(rule: DetectorRule, text: str, detected: Iterable[Detected]) -> GuardVerdict:
    """What a rule makes of its detector's answer about a text: of a detection without a place the whole text is the finding."""
    findings = tuple(
        sorted(
            [
                Noted(found.begin, found.end if found.end > found.begin else len(text), rule.id, found.kind, rule.mode)
                for found in detected
                if (not rule.categories or found.kind in rule.categories)
                and (found.decided if rule.threshold is None else found.score >= rule.threshold)
            ],
            key=_place,
        )
    )
    if not findings or rule.mode not in CHANGING:
        return GuardVerdict(findings=findings, text=text)
    if rule.mode == "block":
        return GuardVerdict(findings=findings, ended="block", by=rule.id, cut=findings[0].begin, text=text[: findings[0].begin])
    parts: list[str] = []
    done = 0
    for run in owned([Spot(found.begin, found.end, 0, found.kind) for found in findings], 0, len(text)):
        parts += (text[done : run.begin], f"[{run.spot.kind.upper()}]" if rule.replacement is None else rule.replacement)
        done = run.end
    parts.append(text[done:])
    return GuardVerdict(findings=findings, text="".join(parts))


def _place(found: Noted) -> tuple[int, int, str]:
    return found.begin, found.end, found.kind


def away_of(rule: DetectorRule) -> GuardVerdict:
    """What a rule makes of a detector that is away."""
    if rule.closed:
        return GuardVerdict(ended="unavailable", by=rule.id, failed=(rule.id,))
    return GuardVerdict(failed=(rule.id,))


def samples_for(rule: DetectorRule, samples: Sequence[Sample]) -> list[Sample]:
    """The texts that a rule looks at."""
    return [sample for sample in samples if sample[1] in rule.on and sample[2]][-MAX_TEXTS:]


async def asked_of(rule: DetectorRule, text: str, direction: Direction, tenant: str, detectors: Mapping[str, Detector]) -> GuardVerdict:
    """One rule's verdict on one text."""
    detector = detectors.get(rule.detector)
    if detector is None:
        return away_of(rule)
    try:
        return verdict_of(rule, text, await detector.detect(text, direction, tenant))
    except DetectorAway:
        return away_of(rule)


async def judged_by(
    rules: Sequence[DetectorRule], samples: Sequence[Sample], tenant: str, detectors: Mapping[str, Detector]
) -> list[tuple[Sample, GuardVerdict]]:
    """The verdicts of rules on texts, all asked at once; by rule, then by text."""
    asked = [(rule, sample) for rule in rules for sample in samples_for(rule, samples)]
    verdicts = await asyncio.gather(*(asked_of(rule, text, direction, tenant, detectors) for rule, (_, direction, text) in asked))
    return [(sample, verdict) for (_, sample), verdict in zip(asked, verdicts, strict=True)]


def parted(guards: GuardSet) -> tuple[list[DetectorRule], list[DetectorRule]]:
    """The rules with detectors that change a text, which have to answer before anything else sees it, and the others."""
    rules = [rule for rule in guards.rules if isinstance(rule, DetectorRule)]
    changing = [rule for rule in rules if rule.mode in ("redact", "replace")]
    return changing, [rule for rule in rules if rule not in changing]
