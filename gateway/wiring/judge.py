"""Builds a worker's judge: its caller, its slots, and its connections to the request log and the ratings."""

import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from domain.identity import TOKEN_PREFIX, Caller, KeyId, ProjectId, TenantId
from gateway.batches.slots import LineSlots
from gateway.config.judge import JudgeSettings
from gateway.config.load import Settings
from gateway.deps import Deps
from gateway.judge.fleet_model import FleetModels
from gateway.judge.judge import Judge, JudgeParts, JudgeTerms
from gateway.judge.measuring import AgreementCourse
from gateway.judge.pair_samples import LostPair
from gateway.judge.samples import JudgeSamples
from gateway.process.background import kept_up
from gateway.telemetry.metrics import Metrics
from gateway.wiring.request_log import request_sealer, request_store_for
from policies.rollout.in_force import Running
from tenancy.keys import Pepper
from tenancy.periods import DAY_S
from tenancy.stores.sql import SqlFeedback, open_engine

MARK_BYTES: Final = 8
"""Of the marks around texts that are judged: nobody guesses 64 bits in one request."""


@dataclass(frozen=True, slots=True)
class JudgeEnds:
    """Where the judge's findings go, and whether the worker is about to end."""

    metrics: Metrics
    observe_pair: Callable[[Running, LostPair], None]
    draining: Callable[[], bool]


def judge_caller(judge: JudgeSettings) -> Caller:
    """The caller of the judge's requests: one without a key, so that it has the rights of its project."""
    return Caller(TenantId(judge.tenant), ProjectId(judge.project), KeyId(f"{TOKEN_PREFIX}judge"))


class WorkerJudge:
    """A worker's part of the judge.

    Raises:
        StoreError: a database cannot be used.
        SecretError: the pepper of before is configured and missing.
    """

    def __init__(self, settings: Settings, judge: JudgeSettings, pepper: Pepper) -> None:
        self._settings = settings
        self._judge = judge
        self._engine = open_engine(settings.sql_url, judge.max_in_flight + 1)
        self._store, self._prepare, self._close_store = request_store_for(settings)
        self._sealer = request_sealer(settings, pepper)

    def loop(self, deps: Deps, ends: JudgeEnds) -> Coroutine[Any, Any, None]:
        """The background loop. It never ends by itself: what breaks it is logged, and it begins anew."""
        return kept_up(partial(self._run, deps, ends), "judge")

    async def _run(self, deps: Deps, ends: JudgeEnds) -> None:
        await self._prepare()
        written, caller, ratings = self._judge, judge_caller(self._judge), SqlFeedback(self._engine)
        feedback, metrics = self._settings.feedback, ends.metrics
        terms = JudgeTerms(
            model=written.model,
            tokens_per_day=written.tokens_per_day,
            max_in_flight=written.max_in_flight,
            max_output_tokens=written.max_output_tokens,
            max_answer_tokens=written.max_answer_tokens,
            look_every_s=written.look_every_s,
            structured=written.structured,
            keep_s=feedback.retention_days * DAY_S,
            most_ratings=feedback.max_per_tenant,
        )
        parts = JudgeParts(
            owner=f"worker-{secrets.token_hex(16)}",
            samples=JudgeSamples(self._store, self._sealer, deps.wall, (caller.tenant, caller.project)),
            models=FleetModels(deps, caller, LineSlots(written.max_in_flight, self._settings.batches.max_share, deps)),
            turn=ratings,
            ratings=ratings,
            agreement=None
            if written.agreement_every_days is None
            else AgreementCourse(ratings, written.model, written.agreement_every_days * DAY_S, written.max_in_flight, deps.wall),
            policies=lambda: deps.live.policies,
            rollouts=lambda: deps.live.rollouts,
            observe_pair=ends.observe_pair,
            count=metrics.count_judge_sample,
            count_score=metrics.count_judge_score,
            count_pair=metrics.count_judge_pair,
            count_tokens=metrics.count_judge_tokens,
            wall=deps.wall,
            new_mark=lambda: secrets.token_hex(MARK_BYTES),
            draining=ends.draining,
        )
        await Judge(terms, parts).run()

    async def close(self) -> None:
        """Close the connections."""
        await self._close_store()
        await self._engine.dispose()


def judge_for(settings: Settings, pepper: Pepper) -> WorkerJudge | None:
    """The judge of a worker; None where the settings have none. Raises as `WorkerJudge`."""
    return None if settings.judge is None else WorkerJudge(settings, settings.judge, pepper)
