"""Gauges of files and batches: every state has a sample, and nothing is shown that is not known."""

from domain.files import FileFigures, StoresAway
from gateway.telemetry.exposition import Scrape, render
from gateway.telemetry.file_gauges import BATCH_STATES, FILE_GAUGES, FILE_STATES, FigureWatch, file_rows
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.snapshot import MetricsSnapshot

FIGURES = FileFigures({"ready": 3, "uploading": 1}, {"ready": 300, "uploading": 64}, {"in_progress": 2, "completed": 5}, oldest_unix=40.0)


class Database:
    """A database that answers with figures, or is away."""

    def __init__(self) -> None:
        self.away = False

    async def figures(self) -> FileFigures:
        if self.away:
            raise StoresAway("no answer")
        return FIGURES


def test_every_state_has_a_sample() -> None:
    rows = dict(file_rows(FIGURES, 100.0))
    assert set(rows) == set(FILE_GAUGES)
    assert dict(rows["tidegate_files"]) == {("uploading",): 1.0, ("ready",): 3.0, ("deleted",): 0.0}
    assert dict(rows["tidegate_file_bytes"])[("uploading",)] == 64.0
    assert {labels[0] for labels, _ in rows["tidegate_batches"]} == set(BATCH_STATES) and len(FILE_STATES) == 3
    assert sum(value for _, value in rows["tidegate_batches"]) == 7.0
    assert rows["tidegate_batch_oldest_line_seconds"] == [((), 60.0)]


def test_nothing_waits_where_no_batch_is_open() -> None:
    rows = dict(file_rows(FileFigures({}, {}, {}, None), 100.0))
    assert rows["tidegate_batch_oldest_line_seconds"] == [((), 0.0)]


async def test_nothing_is_shown_while_the_database_is_away() -> None:
    database = Database()
    watch = FigureWatch(database, lambda: 100.0)
    assert watch.rows() == []
    await watch.look()
    assert dict(watch.rows()) == dict(file_rows(FIGURES, 100.0))
    database.away = True
    await watch.look()
    assert watch.rows() == []
    database.away = False
    await watch.look()
    assert watch.rows()


def test_they_are_on_the_page() -> None:
    text, _ = render(Scrape(MetricsSnapshot(), [], None, 1, "1", files=list(file_rows(FIGURES, 100.0))))
    assert b'tidegate_batches{status="in_progress"} 2.0' in text
    assert b'tidegate_file_bytes{status="ready"} 300.0' in text


def test_lines_are_counted_by_what_came_of_them() -> None:
    metrics = Metrics()
    metrics.count_batch_lines("succeeded")
    metrics.count_batch_lines("succeeded")
    metrics.count_batch_lines("expired", 7)
    text, _ = render(Scrape(metrics.snapshot(), [], None, 1, "1"))
    assert b'tidegate_batch_lines_total{outcome="succeeded"} 2.0' in text
    assert b'tidegate_batch_lines_total{outcome="expired"} 7.0' in text
    assert b'tidegate_batch_lines_total{outcome="again"} 0.0' in text


def test_ratings_and_what_the_judge_said_are_counted() -> None:
    metrics = Metrics()
    metrics.count_feedback("acme", "down")
    metrics.count_judge_sample("over_budget")
    metrics.count_judge_score("acme", "big", 4)
    metrics.count_judge_pair("big", "swayed")
    metrics.count_judge_tokens(70)
    text, _ = render(Scrape(metrics.snapshot(), [], None, 1, "1"))
    for line in (
        b'tidegate_feedback_total{rating="down",tenant="acme"} 1.0',
        b'tidegate_judge_samples_total{outcome="over_budget"} 1.0',
        b'tidegate_judge_scores_total{model="big",score="4",tenant="acme"} 1.0',
        b'tidegate_judge_pairs_total{better="swayed",model="big"} 1.0',
        b"tidegate_judge_tokens_total 70.0",
    ):
        assert line in text
