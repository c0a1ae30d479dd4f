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
"""Texts of one request that detectors see by themselves: the last ones. Those in front of them are put together, so that a request of very
many texts is a bounded number of questions and none of its texts passes unseen."""
GROUP_TEXTS: Final = 16
"""Texts that are put together for one question."""
GROUP_CHARS: Final = 8 * 1024
"""A group with so many characters takes no further text."""

Sample = tuple[str, Direction, str]
"""Path, direction and text."""


def counts(rule: DetectorRule, found: Detected) -> bool:
    """Whether something that a detector says is a finding of a rule."""
    if rule.categories and found.kind not in rule.categories:
        return False
    return found.decided if rule.threshold is None else found.score >= rule.threshold


def verdict_of(rule: DetectorRule, text: str, detected: Iterable[Detected]) -> GuardVerdict:
    """What a rule makes of its detector's answer about a text: of a detection without a place the whole text is the finding."""
    findings = tuple(
        sorted(
            [
                Noted(found.begin, found.end if found.end > found.begin else len(text), rule.id, found.kind, rule.mode)
                for found in detected
                if counts(rule, found)
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


def samples_for(rule: DetectorRule, samples: Sequence[Sample]) -> list[list[Sample]]:
    """The texts that a rule looks at, in groups with a question each. A group has texts of one direction. As texts are added behind them,
    the groups of the first texts stay as they are, so that their answers are found in memory."""
    wanted = [sample for sample in samples if sample[1] in rule.on and sample[2]]
    early = max(0, len(wanted) - MAX_TEXTS)
    groups: list[list[Sample]] = []
    open_groups: dict[Direction, tuple[list[Sample], int]] = {}
    for sample in wanted[: early - early % GROUP_TEXTS]:
        group, chars = open_groups.get(sample[1], ([], 0))
        if not group:
            groups.append(group)
        group.append(sample)
        chars += len(sample[2])
        full = len(group) >= GROUP_TEXTS or chars >= GROUP_CHARS
        open_groups[sample[1]] = ([], 0) if full else (group, chars)
    return groups + [[sample] for sample in wanted[early - early % GROUP_TEXTS :]]


async def asked_of(rule: DetectorRule, text: str, direction: Direction, tenant: str, detectors: Mapping[str, Detector]) -> GuardVerdict:
    """One rule's verdict on one text."""
    detector = detectors.get(rule.detector)
    if detector is None:
        return away_of(rule)
    try:
        return verdict_of(rule, text, await detector.detect(text, direction, tenant))
    except DetectorAway:
        return away_of(rule)


async def _asked_of_group(
    rule: DetectorRule, group: Sequence[Sample], tenant: str, detectors: Mapping[str, Detector]
) -> list[tuple[Sample, GuardVerdict]]:
    """One rule's verdict on texts that are asked about together; where something is found, each of them is asked about by itself, so that
    the verdict names its text."""
    path, direction, text = group[0]
    verdict = await asked_of(rule, "\n".join([one[2] for one in group]), direction, tenant, detectors)
    if len(group) == 1 or not verdict.findings:
        return [(group[0], verdict)]
    alone = await asyncio.gather(*(asked_of(rule, one[2], direction, tenant, detectors) for one in group))
    judged = list(zip(group, alone, strict=True))
    if any(one.findings or one.refused for one in alone):
        return judged
    # only together they are what the rule looks for: a text cannot be changed for that, but the request can be refused
    whole = GuardVerdict(findings=verdict.findings, ended=verdict.ended, by=verdict.by, failed=verdict.failed, text=text)
    return [((path, direction, text), whole)]


async def judged_by(
    rules: Sequence[DetectorRule], samples: Sequence[Sample], tenant: str, detectors: Mapping[str, Detector]
) -> list[tuple[Sample, GuardVerdict]]:
    """The verdicts of rules on texts, all asked at once; by rule, then by text."""
    asked = [(rule, group) for rule in rules for group in samples_for(rule, samples)]
    verdicts = await asyncio.gather(*(_asked_of_group(rule, group, tenant, detectors) for rule, group in asked))
    return [one for of_group in verdicts for one in of_group]


def parted(guards: GuardSet) -> tuple[list[DetectorRule], list[DetectorRule]]:
    """The rules with detectors that change a text, which have to answer before anything else sees it, and the others."""
    rules = [rule for rule in guards.rules if isinstance(rule, DetectorRule)]
    changing = [rule for rule in rules if rule.mode in ("redact", "replace")]
    return changing, [rule for rule in rules if rule not in changing]
