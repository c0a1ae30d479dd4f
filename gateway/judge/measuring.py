"""Measures the judge's agreement with the labelled cases again and again, a few cases at each look, and keeps the last figures.

The figures of a judge are those of its model as it is now: engines, quantisations and templates change behind one name. They are kept in
the database, so that a restart neither forgets them nor measures anew.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import structlog

from domain.clock import WallClock
from gateway.judge.agreement import CASES, CaseVerdict, LabelledCase, figures_of, labelled_cases, questions_on, verdict_of
from gateway.judge.questions import Message
from tenancy.feedback import AgreementBook, MeasuredAgreement

AsksJudge = Callable[[list[Message], dict[str, object]], Awaitable[tuple[str, str]]]
"""Gets messages and the form of a verdict, and returns the reply, or why there is none."""
DIGEST_CHARS: Final = 16
"""How much is kept of the digest that names a set of cases: enough to tell sets of one project apart."""

log = structlog.get_logger("tidegate.judge")


class AgreementCourse:
    """The measurement under way, and when the next one is due.

    Args:
        every_s: from one measurement to the next one.
        most: cases at a time.
    """

    def __init__(self, book: AgreementBook, model: str, every_s: float, most: int, wall: WallClock) -> None:
        self._book = book
        self._model = model
        self._every_s = every_s
        self._most = most
        self._wall = wall
        self._version = hashlib.sha256(CASES.read_bytes()).hexdigest()[:DIGEST_CHARS]
        self._last: MeasuredAgreement | None = None
        self._is_read = False
        self._waiting: list[LabelledCase] = []
        self._verdicts: list[CaseVerdict] = []

    def begin(self) -> None:
        """Forget what another worker may have done meanwhile."""
        self._is_read = False
        self._waiting.clear()
        self._verdicts.clear()

    async def step(self, ask: AsksJudge, new_mark: Callable[[], str]) -> None:
        """Judge the next cases, where a measurement is due or under way. A case without a reply waits for the next look. Raises
        FeedbackAway."""
        if not self._is_read:
            self._last, self._is_read = await self._book.agreement(), True
        if not self._waiting:
            if not self._is_due():
                return
            self._waiting, self._verdicts = list(labelled_cases()), []
        cases, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        found = await asyncio.gather(*(_verdict(case, ask, new_mark()) for case in cases))
        self._waiting += [case for case, verdict in zip(cases, found, strict=True) if verdict is None]
        self._verdicts += [verdict for verdict in found if verdict is not None]
        if not self._waiting:
            await self._keep(self._verdicts)

    def _is_due(self) -> bool:
        last = self._last
        same = last is not None and (last.model, last.cases_version) == (self._model, self._version)
        return last is None or not same or self._wall() - last.at_unix >= self._every_s

    async def _keep(self, verdicts: Sequence[CaseVerdict]) -> None:
        figures = figures_of(verdicts)
        measured = MeasuredAgreement(self._model, self._version, self._wall(), **msgspec.structs.asdict(figures))
        await self._book.keep_agreement(measured)
        self._last = measured
        log.info("the judge's agreement is measured", model=self._model, scores=figures.score_agreement, pairs=figures.pair_agreement)


async def _verdict(case: LabelledCase, ask: AsksJudge, mark: str) -> CaseVerdict | None:
    """The judge's verdict on a case; None where a question got no reply."""
    replies = []
    for messages, form in questions_on(case, mark):
        reply, why = await ask(messages, form)
        if why:
            return None
        replies.append(reply)
    return verdict_of(case, replies)
