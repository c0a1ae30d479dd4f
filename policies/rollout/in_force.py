"""The rollouts in force, made for look-ups on the request path: whose requests each deals out, and how. Pure."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from domain.rollouts import StoredRollout
from policies.rollout.assignment import Arm, assign, mirrored
from policies.rollout.document import RolloutDocument, document_of
from policies.rollout.progress import OVER, State, shares


class Running(msgspec.Struct, frozen=True):
    """One of them."""

    id: str
    name: str
    baseline: str
    """Pool."""
    canary: str
    """Pool."""
    live: float
    """Share of the conversations that the canary answers."""
    mirrored: float
    """Share of the requests that it is sent a copy of."""
    counting: bool
    """Whether anything still follows from what its requests come to."""
    interval_s: float
    tenants: frozenset[str] | None = None
    """None for everybody."""
    models: frozenset[str] | None = None
    """Public names; None for all."""
    max_shadows: int = 0
    """Copies that a worker has under way at a time."""

    def is_about(self, tenant: str, model: str) -> bool:
        """Whether it deals out this tenant's requests for this model."""
        return (self.tenants is None or tenant in self.tenants) and (self.models is None or model in self.models)


class Dealt(msgspec.Struct, frozen=True):
    """What became of one request that a rollout is about."""

    running: Running
    arm: Arm
    """Which answers it."""
    counted: bool
    """Whether its outcome is part of the comparison."""
    away: bool = False
    """The canary was to answer it, and has nobody who could: that is counted as its failure, and the baseline answers."""
    mirror: bool = False
    """Whether the canary is sent a copy."""

    @property
    def words(self) -> str:
        """Its rollout and arm."""
        return f"{self.running.name}: {self.arm.value}"

    @property
    def target(self) -> str:
        """The pool that it goes to, or the version of the prompt that it gets."""
        return self.running.canary if self.arm is Arm.CANARY else self.running.baseline


def in_words(*dealt: Dealt | None) -> str:
    """All that dealt a request out."""
    return ", ".join([assigned.words for assigned in dealt if assigned is not None])


class InForce(msgspec.Struct, frozen=True):
    """All of them."""

    by_pool: Mapping[str, Running]
    """By their baselines: no pool is part of two."""
    by_prompt: Mapping[str, Running] = MappingProxyType({})
    """The same of versions of prompts, `id@version`."""

    def all(self) -> list[Running]:
        """Every one of them."""
        return [*self.by_pool.values(), *self.by_prompt.values()]

    def deal(
        self, pool: str, tenant: str, model: str, key: str, request: str, is_up: Callable[[str], bool], wanted: Arm | None = None
    ) -> Dealt | None:
        """What becomes of a request for a pool; None where no rollout is about it.

        Args:
            key: its conversation, else its end user, else its own id.
            request: its own id.
            is_up: whether a pool has a backend that is up.
            wanted: what a tester asked for.
        """
        running = self.by_pool.get(pool)
        if running is None or not running.is_about(tenant, model):
            return None
        assignment = assign(running.id, f"{tenant}\0{key}", running.live, wanted)
        counted = assignment.counted and running.counting
        if assignment.arm is Arm.CANARY:
            if is_up(running.canary):
                return Dealt(running, Arm.CANARY, counted)
            return Dealt(running, Arm.BASELINE, counted=False, away=counted)
        copied = running.mirrored > 0 and wanted is None and mirrored(running.id, request, running.mirrored) and is_up(running.canary)
        return Dealt(running, Arm.BASELINE, counted, mirror=copied)

    def deal_prompt(
        self, name: str, tenant: str, model: str, key: str, exists: Callable[[str], bool], wanted: Arm | None = None
    ) -> Dealt | None:
        """What becomes of a request with a version of a prompt, `id@version`; None where no rollout is about it, or its tenant has not
        got the version that is new.

        Args:
            exists: whether the tenant has a version, `id@version`.
        """
        running = self.by_prompt.get(name)
        if running is None or not running.is_about(tenant, model) or not exists(running.canary):
            return None
        assignment = assign(running.id, f"{tenant}\0{key}", running.live, wanted)
        return Dealt(running, assignment.arm, assignment.counted and running.counting)


NOTHING: Final = InForce({})


def in_force(stored: Iterable[StoredRollout]) -> tuple[InForce, tuple[str, ...]]:
    """What is kept, as it is followed, and a sentence on each that cannot be: it deals nothing out."""
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
    return InForce(pools, prompts), tuple(problems)


def _running(one: StoredRollout, document: RolloutDocument) -> Running:
    plan, state = document.plan(one.id), msgspec.json.decode(one.state, type=State)
    share = shares(plan, state)
    return Running(
        one.id,
        one.name,
        document.baseline,
        document.canary,
        share.live,
        share.mirrored,
        state.status not in OVER,
        plan.terms.interval_s,
        frozenset(document.tenants) if document.tenants else None,
        frozenset(document.models) if document.models else None,
        document.shadow.max_in_flight if document.shadow else 0,
    )
