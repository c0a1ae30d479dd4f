"""The active rollouts, made for look-ups on the request path: the requests that each splits between canary and baseline. Pure."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from domain.rollouts import StoredRollout
from policies.rollout.assignment import Arm, assign, mirrored
from policies.rollout.document import RolloutDocument, document_of
from policies.rollout.progress import OVER, RolloutState, shares
from policies.rollout.samples import JUDGED


class Running(msgspec.Struct, frozen=True):
    """One active rollout."""

    id: str
    name: str
    baseline: str
    """A pool, or a version of a prompt (`id@version`)."""
    canary: str
    """A pool, or a version of a prompt (`id@version`)."""
    live: float
    """Share of the conversations that the canary answers."""
    mirrored: float
    """Share of the requests of which the canary is sent a copy."""
    counting: bool
    """Whether the outcomes of requests still count, because the rollout is not over."""
    interval_s: float
    tenants: frozenset[str] | None = None
    """The tenants whose requests take part; None for all."""
    models: frozenset[str] | None = None
    """The public names of the models whose requests take part; None for all."""
    max_shadows: int = 0
    """Mirrored requests in flight per worker, at most."""
    judged: bool = False
    """Whether the judge compares answers of both arms for its verdict."""
    of_prompt: bool = False
    """Whether the arms are versions of a prompt, not pools."""

    def is_about(self, tenant: str, model: str) -> bool:
        """Whether this tenant's requests for this model take part in the rollout."""
        return (self.tenants is None or tenant in self.tenants) and (self.models is None or model in self.models)


class AssignedArm(msgspec.Struct, frozen=True):
    """The assignment of one request that takes part in a rollout."""

    running: Running
    arm: Arm
    """The arm that answers the request."""
    counted: bool
    """Whether its outcome is part of the comparison."""
    away: bool = False
    """Whether the canary was to answer and has no backend that is up: the baseline answers, and a failure of the
    canary is counted."""
    mirror: bool = False
    """Whether the canary is sent a copy of the request."""

    @property
    def words(self) -> str:
        """The rollout's name and the arm, as text."""
        return f"{self.running.name}: {self.arm.value}"

    @property
    def target(self) -> str:
        """The pool that the request goes to, or the version of the prompt that it gets."""
        return self.running.canary if self.arm is Arm.CANARY else self.running.baseline


def in_words(*dealt: AssignedArm | None) -> str:
    """The rollouts and arms of a request, as text."""
    return ", ".join([assigned.words for assigned in dealt if assigned is not None])


class ActiveRollouts(msgspec.Struct, frozen=True):
    """All active rollouts."""

    by_pool: Mapping[str, Running]
    """Rollouts of pools, by baseline: no pool takes part in two rollouts."""
    by_prompt: Mapping[str, Running] = MappingProxyType({})
    """Rollouts of prompts, by baseline (`id@version`)."""

    def all(self) -> list[Running]:
        """Every active rollout."""
        return [*self.by_pool.values(), *self.by_prompt.values()]

    def deal(
        self, pool: str, tenant: str, model: str, key: str, request: str, is_up: Callable[[str], bool], wanted: Arm | None = None
    ) -> AssignedArm | None:
        """The assignment of a request for a pool; None when it takes part in no rollout.

        Args:
            key: the request's conversation, else its end user, else its own id.
            request: the request's own id.
            is_up: whether a pool has a backend that is up.
            wanted: the arm that a tester chose.
        """
        running = self.by_pool.get(pool)
        if running is None or not running.is_about(tenant, model):
            return None
        assignment = assign(running.id, f"{tenant}\0{key}", running.live, wanted)
        counted = assignment.counted and running.counting
        if assignment.arm is Arm.CANARY:
            if is_up(running.canary):
                return AssignedArm(running, Arm.CANARY, counted)
            return AssignedArm(running, Arm.BASELINE, counted=False, away=counted)
        copied = running.mirrored > 0 and wanted is None and mirrored(running.id, request, running.mirrored) and is_up(running.canary)
        return AssignedArm(running, Arm.BASELINE, counted, mirror=copied)

    def deal_prompt(
        self, name: str, tenant: str, model: str, key: str, exists: Callable[[str], bool], wanted: Arm | None = None
    ) -> AssignedArm | None:
        """The assignment of a request with a version of a prompt; None when it takes part in no rollout, or when its tenant does not have
        the canary's version.

        Args:
            name: the version that the request would get, `id@version`.
            exists: whether the tenant has a version, `id@version`.
        """
        running = self.by_prompt.get(name)
        if running is None or not running.is_about(tenant, model) or not exists(running.canary):
            return None
        assignment = assign(running.id, f"{tenant}\0{key}", running.live, wanted)
        return AssignedArm(running, assignment.arm, assignment.counted and running.counting)


NOTHING: Final = ActiveRollouts({})


def in_force(stored: Iterable[StoredRollout]) -> tuple[ActiveRollouts, tuple[str, ...]]:
    """The active rollouts among the stored ones, and a sentence on each stored rollout that cannot be used and is left out."""
    pools: dict[str, Running] = {}
    prompts: dict[str, Running] = {}
    problems = []
    for rollout in stored:
        try:
            document = document_of(rollout.document)
            running = _running(rollout, document)
        except (ValueError, IndexError, RecursionError) as error:  # msgspec's and pydantic's errors are ValueErrors
            problems.append(f"rollout {rollout.name!r} is left alone: {error}")
            continue
        by_baseline = pools if document.of == "pool" else prompts
        if by_baseline.setdefault(running.baseline, running) is not running:
            problems.append(
                f"rollout {rollout.name!r} is left alone: {by_baseline[running.baseline].name!r} is about {running.baseline!r} too"
            )
    return ActiveRollouts(pools, prompts), tuple(problems)


def _running(stored: StoredRollout, document: RolloutDocument) -> Running:
    plan = document.plan(stored.id)
    state = msgspec.json.decode(stored.state, type=RolloutState)
    share = shares(plan, state)
    return Running(
        stored.id,
        stored.name,
        document.baseline,
        document.canary,
        share.live,
        share.mirrored,
        state.status not in OVER,
        plan.terms.interval_s,
        frozenset(document.tenants) if document.tenants else None,
        frozenset(document.models) if document.models else None,
        document.shadow.max_in_flight if document.shadow else 0,
        JUDGED in plan.terms.margins,
        document.of == "prompt",
    )
