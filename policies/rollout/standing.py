"""How a rollout stands, for whoever shows it: the admin API, the command line, metrics, the audit, webhooks. Pure."""

from math import isfinite
from typing import Final

import msgspec

from domain.rollouts import StoredRollout
from policies.rollout.document import RolloutDocument, document_of
from policies.rollout.plan import Plan
from policies.rollout.progress import Shares, State, Status, shares
from policies.rollout.verdict import Finding, judge

CLOSED: Final = "closed"
"""Status of one that somebody closed."""


class Unreadable(ValueError):
    """A rollout that this version cannot read: a newer one started it."""


class Shown(msgspec.Struct, frozen=True):
    """What is found of one metric."""

    metric: str
    judgement: str
    requests: int
    """Samples of the canary."""
    canary: float
    """A share, or a geometric mean in the metric's own unit (seconds, tokens, nano-dollars)."""
    baseline: float
    low: float
    """Least difference that is still possible: of shares, or as part of the baseline's value."""
    high: float | None
    """The greatest; None while it is too early to say."""
    words: str


class Standing(msgspec.Struct, frozen=True):
    """One rollout, now."""

    id: str
    name: str
    baseline: str
    canary: str
    experiment: bool
    open: bool
    """Whether it is in force."""
    status: str
    """A value of `progress.Status`, or `closed`."""
    phase: str
    """As reasons call it: `shadow`, `5 %`."""
    phase_index: int
    phases: int
    share: float
    """Of the conversations that the canary answers, 0 to 1."""
    mirrored: float
    """Of the requests that are mirrored to it."""
    entered_unix: float
    """When this phase began."""
    spent_s: float
    """Running time of this phase."""
    max_s: float
    counted: int
    """The canary's requests that were counted in this phase."""
    min_requests: int
    counted_in_all: int
    judgement: str
    reason: str
    """In words: of the last change."""
    findings: tuple[Shown, ...]
    """The worst first."""
    created_unix: float
    changed_unix: float


class Read(msgspec.Struct, frozen=True):
    """A stored rollout, read."""

    document: RolloutDocument
    plan: Plan
    state: State


def read(stored: StoredRollout) -> Read:
    """What is stored, as values. Raises Unreadable."""
    try:
        document = document_of(stored.document)
        state = msgspec.json.decode(stored.state, type=State)
        plan = document.plan(stored.id)
        plan.named()[state.phase]
    except (ValueError, IndexError, RecursionError) as error:  # msgspec's and pydantic's errors are ValueErrors
        raise Unreadable(f"{type(error).__name__}: {str(error).splitlines()[0][:200]}") from None
    return Read(document, plan, state)


def state_text(state: State) -> str:
    """As it is stored."""
    return msgspec.json.encode(state).decode()


def standing(stored: StoredRollout, found: Read, now: float) -> Standing:
    """How it stands at `now` (seconds since the epoch)."""
    plan, state = found.plan, found.state
    name, step = plan.named()[state.phase]
    verdict = judge(plan.terms, state.evidence)
    current = shares(plan, state) if stored.open else Shares(0.0)
    running = stored.open and state.status is Status.RUNNING
    return Standing(
        id=stored.id,
        name=stored.name,
        baseline=found.document.baseline,
        canary=found.document.canary,
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


def _shown(finding: Finding) -> Shown:
    return Shown(
        finding.metric,
        finding.judgement.value,
        finding.requests,
        finding.canary,
        finding.baseline,
        finding.low,
        finding.high if isfinite(finding.high) else None,
        finding.words,
    )


def brief(now: Standing) -> dict[str, object]:
    """What is written down of a change: by itself enough to know what was decided, and from what."""
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
