"""Gauges of the judge's agreement: those that are defined, and none while nobody knows."""

from gateway.telemetry.judge_gauges import JUDGE_GAUGES, AgreementWatch, agreement_rows
from tenancy.feedback import FeedbackAway, MeasuredAgreement

MEASURED = MeasuredAgreement("big", "v1", 7.0, 40, 1, 24, 0.75, 0.5, 2, 4, 16, 0.875, 1)


class Kept:
    """A book whose database may be away."""

    def __init__(self) -> None:
        self.measured: MeasuredAgreement | None = None
        self.away = False

    async def agreement(self) -> MeasuredAgreement | None:
        if self.away:
            raise FeedbackAway("gone")
        return self.measured

    async def keep_agreement(self, measured: MeasuredAgreement) -> None:
        self.measured = measured


def test_each_figure_has_its_row_and_one_that_is_not_defined_has_none() -> None:
    rows = dict(agreement_rows(MEASURED))
    assert rows.keys() == JUDGE_GAUGES.keys()
    assert rows["tidegate_judge_agreement_ratio"] == [(("big", "scores"), 0.75), (("big", "pairs"), 0.875)]
    assert rows["tidegate_judge_agreement_kappa"] == [(("big",), 0.5)]
    assert rows["tidegate_judge_agreement_timestamp_seconds"] == [(("big",), 7.0)]
    undefined = dict(agreement_rows(MeasuredAgreement("big", "v1", 7.0, 1, 0, 1, 1.0, None, 0, 0, 0, None, 0)))
    assert undefined["tidegate_judge_agreement_ratio"] == [(("big", "scores"), 1.0)]
    assert undefined["tidegate_judge_agreement_kappa"] == []
    assert list(agreement_rows(None)) == []


async def test_an_outage_shows_nothing_rather_than_old_figures() -> None:
    kept = Kept()
    watch = AgreementWatch(kept)
    await watch.look()
    assert watch.rows() == []
    await kept.keep_agreement(MEASURED)
    await watch.look()
    assert watch.rows() == list(agreement_rows(MEASURED))
    kept.away = True
    await watch.look()
    assert watch.rows() == []
