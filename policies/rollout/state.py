"""The state of a rollout for display: in the admin API, the command line, metrics, the audit and webhooks. Pure."""

from math import isfinite
from typing import Final

import msgspec

from domain.rollouts import StoredRollout
from policies.rollout.document import RolloutDocument, document_of
from policies.rollout.plan import RolloutPlan
from policies.rollout.progress import RolloutState, Shares, Status, shares
from policies.rollout.verdict import MetricFinding, judge

CLOSED: Final = "closed"
"""Status of a rollout that an operator closed."""


class UnreadableRollout(ValueError):
    """A stored rollout that this version cannot read, because a newer version started it."""


class MetricStatus(msgspec.Struct, frozen=True):
    """The finding on one metric."""

    metric: str
    judgement: str
    requests: int
    """Number of samples of the canary."""
    canary: float
    """A share, or a geometric mean in the metric's own unit (seconds, tokens, nano-dollars)."""
    baseline: float
    low: float
    """Lower bound of the difference: of shares, or relative to the baseline's value."""
    high: float | None
    """Upper bound of the difference; None while there are too few samples."""
    words: str


class RolloutStatus(msgspec.Struct, frozen=True):
    """The state of one rollout at one moment."""

    id: str
    name: str
    baseline: str
    canary: str
    experiment: bool
    open: bool
    """Whether the rollout is active."""
    status: str
    """A value of `progress.Status`, or `closed`."""
    phase: str
    """The phase's name in reasons: `shadow`, `5 %`."""
    phase_index: int
    phases: int
    share: float
    """Share of the conversations that the canary answers, 0 to 1."""
    mirrored: float
    """Share of the requests that are mirrored to the canary, 0 to 1."""
    entered_unix: float
    """When this phase began, in seconds since the epoch."""
    spent_s: float
    """Seconds that this phase has run, without pauses and gates."""
    max_s: float
    counted: int
    """Requests of the canary that were counted in this phase."""
    min_requests: int
    counted_in_all: int
    judgement: str
    reason: str
    """The reason of the last change, as text."""
    findings: tuple[MetricStatus, ...]
    """The findings by metric, the worst first."""
    created_unix: float
    changed_unix: float


class Read(msgspec.Struct, frozen=True):
    """A stored rollout, decoded."""

    document: RolloutDocument
    plan: RolloutPlan
    state: RolloutState


def read(stored: StoredRollout) -> Read:
    """Decode a stored rollout. Raises Unreadable."""
    try:
        document = document_of(stored.document)
        state = msgspec.json.decode(stored.state, type=RolloutState)
        plan = document.plan(stored.id)
        plan.named()[state.phase]
    except (ValueError, IndexError, RecursionError) as error:  # msgspec's and pydantic's errors are ValueErrors
        raise UnreadableRollout(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}") from None
    return Read(document, plan, state)


def state_text(state: RolloutState) -> str:
    """A state as it is stored."""
    return msgspec.json.encode(state).decode()


def standing(stored: StoredRollout, rollout: Read, now: float) -> RolloutStatus:
    """The state of a rollout at `now` (seconds since the epoch), for display."""
    plan = rollout.plan
    state = rollout.state
    name, step = plan.named()[state.phase]
    verdict = judge(plan.terms, state.evidence)
    current = shares(plan, state) if stored.open else Shares(0.0)
    running = stored.open and state.status is Status.RUNNING
    return RolloutStatus(
        id=stored.id,
        name=stored.name,
        baseline=rollout.document.baseline,
        canary=rollout.document.canary,
        experiment=not plan.acts,
        open=stored.open,
        status=state.status.value if stored.open or state.status is Status.ROLLED_BACK else CLOSED,
        phase=name,
        phase_index=state.phase,
        phases=len(plan.named()),
        share=current.live,
        mirrored=current.mirrored,
        entered_unix=state.entered_at,
        spent_s=state.spent_s + (max(0.0, now - state.seen_at) if running else 0.0),
        max_s=step.max_s,
        counted=state.evidence.requests - state.before,
        min_requests=step.min_requests,
        counted_in_all=state.evidence.requests,
        judgement=verdict.judgement.value,
        reason=state.reason,
        findings=tuple(map(_shown, verdict.findings)),
        created_unix=stored.created_unix,
        changed_unix=stored.changed_unix,
    )


def _shown(finding: MetricFinding) -> MetricStatus:
    return MetricStatus(
        finding.metric,
        finding.judgement.value,
        finding.requests,
        finding.canary,
        finding.baseline,
        finding.low,
        finding.high if isfinite(finding.high) else None,
        finding.words,
    )


def brief(now: RolloutStatus) -> dict[str, object]:
    """The record of a change for the audit: the decision and the findings behind it."""
    return {
        "status": now.status,
        "phase": now.phase,
        "share": now.share,
        "mirrored": now.mirrored,
        "reason": now.reason,
        "requests": now.counted_in_all,
        "judgement": now.judgement,
        "findings": [msgspec.structs.asdict(finding) for finding in now.findings],
    }
