"""Gauges of the active rollouts, and counters of the changes and messages that the gateway made by itself. Labels are bounded by
`domain.rollouts.MAX_OPEN`."""

from collections.abc import Iterator
from typing import Final

import msgspec

from gateway.rollouts.hook import HookCounts
from gateway.rollouts.keeper import CHANGES, KeeperState
from policies.rollout.progress import Status
from policies.rollout.verdict import Judgement

ROLLOUT_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_rollout_share_ratio": ("Share of the traffic that the canary has.", ("rollout", "traffic")),
    "tidegate_rollout_phase": ("Which phase the rollout is in, from 0.", ("rollout",)),
    "tidegate_rollout_status": ("1 for the status that the rollout has.", ("rollout", "status")),
    "tidegate_rollout_requests": ("The canary's requests that were counted.", ("rollout",)),
    "tidegate_rollout_difference_ratio": (
        "Least and greatest difference from the baseline that is still possible.",
        ("rollout", "metric", "bound"),
    ),
    "tidegate_rollout_judgement": ("1 worse, 0 undecided, -1 good enough.", ("rollout", "metric")),
    "tidegate_rollout_unreadable": ("Rollouts in force that this version cannot read.", ()),
    "tidegate_rollout_looked_timestamp_seconds": ("When rollouts were last looked at.", ()),
}
ROLLOUT_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_rollout_changes_total": ("Changes of rollouts that this gateway made by itself.", ("change",)),
    "tidegate_rollout_webhooks_total": ("Messages about rollouts.", ("result",)),
}
_JUDGED: Final = {Judgement.WORSE.value: 1.0, Judgement.UNDECIDED.value: 0.0, Judgement.GOOD_ENOUGH.value: -1.0}

Rows = list[tuple[tuple[str, ...], float]]


class RolloutFigures(msgspec.Struct, frozen=True):
    """The admin process's state of rollouts and their webhook."""

    keeper: KeeperState
    hook: HookCounts


def rollout_rows(figures: RolloutFigures | None) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none before the database has answered."""
    if figures is None or not figures.keeper.looked_unix:
        return
    state = figures.keeper
    shares = Rows()
    differences = Rows()
    judgements = Rows()
    for standing in state.standings:
        shares += [((standing.name, "live"), standing.share), ((standing.name, "mirrored"), standing.mirrored)]
        for finding in standing.findings:
            differences.append(((standing.name, finding.metric, "low"), finding.low))
            if finding.high is not None:
                differences.append(((standing.name, finding.metric, "high"), finding.high))
            judgements.append(((standing.name, finding.metric), _JUDGED[finding.judgement]))
    yield "tidegate_rollout_share_ratio", shares
    yield "tidegate_rollout_phase", [((standing.name,), float(standing.phase_index)) for standing in state.standings]
    statuses: Rows = [
        ((standing.name, status.value), float(standing.status == status.value)) for standing in state.standings for status in Status
    ]
    yield "tidegate_rollout_status", statuses
    yield "tidegate_rollout_requests", [((standing.name,), float(standing.counted_in_all)) for standing in state.standings]
    yield "tidegate_rollout_difference_ratio", differences
    yield "tidegate_rollout_judgement", judgements
    yield "tidegate_rollout_unreadable", [((), float(state.unreadable))]
    yield "tidegate_rollout_looked_timestamp_seconds", [((), state.looked_unix)]


def rollout_counts(figures: RolloutFigures | None) -> Iterator[tuple[str, Rows]]:
    """Samples by counter."""
    if figures is None:
        return
    yield "tidegate_rollout_changes_total", [((change,), float(figures.keeper.changes.get(change, 0))) for change in CHANGES]
    yield "tidegate_rollout_webhooks_total", [(("sent",), float(figures.hook.sent)), (("failed",), float(figures.hook.failed))]
