"""The evaluation: a source is judged by a model without it, either rule finds what one of both finds, and missed goals are named."""

import numpy as np

from bench.guards.classifier_data import Example
from bench.guards.injection import BOUND_BY_GOAL, SHOWN, Judged, missed, recall_table
from bench.results_file import Row


def _judged(lexical: list[bool], normal: list[bool], high: list[bool]) -> Judged:
    attempts = [Example(f"attempt {number}", True, "s", True, 0) for number in range(len(lexical))]
    return Judged(attempts, np.array(lexical), {"low": np.array(normal), "normal": np.array(normal), "high": np.array(high)}, {})


def test_either_is_the_union_and_the_mean_weighs_sources_alike() -> None:
    first = _judged([True, False, False, False], [False, True, False, False], [True, True, True, False])
    second = _judged([False], [False], [True])
    rows: list[Row] = []
    table, figures = recall_table({"one": first, "two": second}, rows)
    assert figures["either normal: one"] == 0.5
    assert figures["either normal: all of these together"] == 0.4
    assert figures["either normal: mean of these sources"] == 0.25
    assert figures["either high: mean of these sources"] == 0.875
    assert figures["lexical: one"] == 0.25
    assert "| one | 4 | 0.25 (0.05-0.70) |" in table
    assert {row["subject"] for row in rows} >= {"one", "two", "all of these together"}


def test_what_was_missed_is_named() -> None:
    recalls = {f"either {s}: {name}": 0.8 for s in SHOWN for name in ("all of these together", "mean of these sources", "deepset")}
    wrong = {f"either {s}: {name}": 0.005 for s in SHOWN for name in (*BOUND_BY_GOAL, "NotInject")}
    wrong["left out high: NotInject"] = 0.1
    assert missed(recalls, wrong, {8192: 5.0}) == "Missed: nothing."
    recalls["either high: deepset"] = 0.5
    wrong["either high: CLINC150"] = 0.02
    told = missed(recalls, wrong, {8192: 6.0})
    assert told.startswith("Missed: CLINC150, either, high (2.0%, goal 1%); the single source deepset, either, high (0.50); ")
    assert told.endswith("time of 8,192 characters at p99 (6.00 ms, goal 5).")
