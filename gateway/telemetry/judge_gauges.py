"""Gauges of the judge's agreement with the labelled cases, as it was measured last, by any gateway on the database.

`AgreementWatch` reads it in the admin process. The gauges have no rows before a measurement, and while the database is away, so that nobody
takes old figures for new. The label is the one model that judges.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import structlog

from tenancy.feedback import AgreementBook, FeedbackAway, MeasuredAgreement

EVERY_S: Final = 30.0
"""Seconds between two readings: the figures change once in days, and a new one is to be seen within a minute."""

JUDGE_GAUGES: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "tidegate_judge_agreement_ratio": ("Share of the labelled cases on which the judge agrees.", ("model", "kind")),
    "tidegate_judge_agreement_kappa": ("Cohen's kappa of its scores; 0 is chance.", ("model",)),
    "tidegate_judge_agreement_swayed": ("Labelled pairs whose verdict followed the order.", ("model",)),
    "tidegate_judge_agreement_unreadable": ("Labelled cases whose verdict could not be read.", ("model",)),
    "tidegate_judge_agreement_timestamp_seconds": ("When the agreement was measured.", ("model",)),
}

log = structlog.get_logger("tidegate.judge")

Rows = list[tuple[tuple[str, ...], float]]


class AgreementWatch:
    """Reads the last measurement again and again."""

    def __init__(self, book: AgreementBook) -> None:
        self._book = book
        self.measured: MeasuredAgreement | None = None
        """None before a measurement, and while the database is away."""

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """Read once."""
        try:
            self.measured = await self._book.agreement()
        except FeedbackAway as error:
            if self.measured is not None:
                log.warning("the judge's agreement could not be read", reason=str(error))
            self.measured = None

    def rows(self) -> list[tuple[str, Rows]]:
        """Samples by gauge."""
        return list(agreement_rows(self.measured))


def agreement_rows(measured: MeasuredAgreement | None) -> Iterator[tuple[str, Rows]]:
    """Samples by gauge; none without a measurement. A figure that is not defined has no row."""
    if measured is None:
        return
    model = measured.model
    shares = (("scores", measured.score_agreement), ("pairs", measured.pair_agreement))
    yield "tidegate_judge_agreement_ratio", [((model, kind), share) for kind, share in shares if share is not None]
    yield "tidegate_judge_agreement_kappa", [] if measured.kappa is None else [((model,), measured.kappa)]
    yield "tidegate_judge_agreement_swayed", [((model,), float(measured.swayed))]
    yield "tidegate_judge_agreement_unreadable", [((model,), float(measured.unreadable))]
    yield "tidegate_judge_agreement_timestamp_seconds", [((model,), measured.at_unix)]
