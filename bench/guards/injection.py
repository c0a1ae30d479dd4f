"""`python -m bench.guards.injection --data DIR`: what the classifier finds of sources that it has not seen, and what it finds wrongly.

For each source of attempts a classifier is trained without it and without the made phrases that were written after its rows
(`bench.guards.made_attacks`); its thresholds come from honest tuning texts alone. The texts of the source are then scored. Honest texts of
the kept-away parts are scored by these classifiers too, and by the one that is shipped, which was trained on all sources.
"""

import argparse
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from bench.guards import classifier_data as texts_of
from bench.guards import sets
from bench.guards.__main__ import interval
from bench.guards.__main__ import texts_of as timed_texts
from bench.guards.classifier_data import Example
from bench.guards.train import GROUPS, Prepared, Trained, fires, thresholds, trained
from bench.results_file import Row, machine, percentile, refresh, write_rows
from guardrails.classifier.model import WEIGHTS, packaged
from guardrails.rules.classifier import Classifier
from guardrails.rules.injection import Injection
from guardrails.text import Text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]

GOALS_MS: Final = {1024: 1.0, 8192: 5.0}
"""The most processor time of a scan, by the characters of the text."""
GOALS: Final = {"recall": 0.75, "honest": 0.01, "NotInject": 0.1}
BOUND_BY_GOAL: Final = ("agent sessions", "BANKING77", "CLINC150")
SHOWN: Final = ("normal", "high")
BIPIA: Final = "bipia"


class Judged(NamedTuple):
    """The texts of one source that was left out, and what found them."""

    attempts: list[Example]
    lexical: "Flags"
    classifier: dict[str, "Flags"]
    wrong: dict[str, dict[str, float]]
    """For each sensitivity the share of honest kept-away texts of each set that the same model finds."""


def left_out(base: Prepared, source: str, extra: Sequence[Example], lexical: Callable[[str], bool]) -> Judged:
    """Trains without a source and judges it.

    Args:
        extra: texts that are judged beside those of `base` (the e-mails of BIPIA).
    """
    examples = [*base.examples, *extra]
    prepared = Prepared([*examples, *texts_of.made(base.examples, source)], base)
    model = trained(prepared, source)
    return judged(prepared, model, source, lexical)


def judged(prepared: Prepared, model: Trained, source: str, lexical: Callable[[str], bool]) -> Judged:
    """What a model finds of a source, and of honest kept-away texts."""
    of_source = (prepared.source == source) & prepared.attack
    attempts = [prepared.examples[at] for at in np.flatnonzero(of_source)]
    found, wrong = {}, {}
    for sensitivity in GROUPS:
        fired = fires(model.scores, model.per_text, thresholds(prepared, model, sensitivity))
        found[sensitivity] = fired[of_source]
        away = ~prepared.attack & ~prepared.tuning
        names = (*texts_of.HONEST, *texts_of.JUDGED)
        wrong[sensitivity] = {name: float(fired[away & (prepared.source == name)].mean()) for name in names}
        own = ~prepared.attack & (prepared.source == source)
        if own.any():
            wrong[sensitivity]["honest rows of the source"] = float(fired[own].mean())
    return Judged(attempts, np.array([lexical(one.text) for one in attempts]), found, wrong)


def share(found: "Flags") -> str:
    """A share with its interval; nothing where there is nothing to be found."""
    if not len(found):
        return ""
    low, high = interval(int(found.sum()), len(found))
    return f"{found.mean():.2f} ({low:.2f}-{high:.2f})"


def _mean_of(parts: Sequence["Flags"]) -> str:
    shares = [part.mean() for part in parts if len(part)]
    return f"{np.mean(shares):.2f}" if shares else ""


def recall_table(results: Mapping[str, Judged], rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of what is found of sources left out."""
    head = ["source left out", "attempts", "lexical rule"]
    for sensitivity in SHOWN:
        head += [f"classifier, {sensitivity}", f"either, {sensitivity}"]
    head.append("either, high, in the half that the lexical rule was not tuned on")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    alone = [name for name in results if name != BIPIA]
    figures: dict[str, float] = {}
    for name in (*alone, "all of these together", "mean of these sources", *([BIPIA] if BIPIA in results else [])):
        chosen = [results[name]] if name in results else [results[one] for one in alone]
        columns: dict[str, list[Flags]] = {"lexical": [one.lexical for one in chosen]}
        for sensitivity in SHOWN:
            columns[f"classifier {sensitivity}"] = [one.classifier[sensitivity] for one in chosen]
            columns[f"either {sensitivity}"] = [one.classifier[sensitivity] | one.lexical for one in chosen]
        fresh = [np.array([not sets.tuned(case.text) for case in one.attempts]) for one in chosen]
        columns["fresh"] = [found[new] for found, new in zip(columns["either high"], fresh, strict=True)]
        count = sum(len(one.attempts) for one in chosen)
        mean = name.startswith("mean")
        cells = [_mean_of(parts) if mean else share(np.concatenate(parts)) for parts in columns.values()]
        shown = "bipia, hidden in e-mails" if name == BIPIA else name
        lines.append(f"| {shown} | {'' if mean else count} | {' | '.join(cells)} |")
        for column, parts in columns.items():
            shares = [part.mean() for part in parts if len(part)]
            if not shares:
                continue
            value = float(np.mean(shares) if mean else np.concatenate(parts).mean())
            figures[f"{column}: {name}"] = value
            rows.append(Row(metric=f"injection_left_out:{column}", subject=name, value=round(value, 4), unit="share", n=count))
    return "\n".join(lines), figures


def wrong_table(data: Path, results: Mapping[str, Judged], lexical: Callable[[str], bool], rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of honest texts that are found, by the classifier that is shipped."""
    head = ["honest texts", "texts", "lexical rule", *(f"classifier, {name}" for name in GROUPS), "either, normal", "either, high"]
    head.append("classifiers with a source left out, high: highest")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    rules = {name: Classifier("c", sensitivity=name) for name in GROUPS}  # type: ignore[arg-type]
    figures: dict[str, float] = {}
    cases = [one for one in texts_of.honest(data) if not one.tuning]
    cases += [one for one in texts_of.in_documents(data) if not one.attack]
    for name in dict.fromkeys(one.source for one in cases):
        texts = [one.text for one in cases if one.source == name]
        flags = {"lexical": np.array([lexical(text) for text in texts])}
        for sensitivity, rule in rules.items():
            flags[f"classifier {sensitivity}"] = np.array([bool(rule.scan(Text(text))) for text in texts])
        for sensitivity in SHOWN:
            flags[f"either {sensitivity}"] = flags[f"classifier {sensitivity}"] | flags["lexical"]
        cells = []
        for column, found in flags.items():
            low, high = interval(int(found.sum()), len(found))
            cells.append(f"{found.mean():.2%} ({low:.1%}-{high:.1%})" if found.any() else f"0 (0-{high:.1%})")
            figures[f"{column}: {name}"] = float(found.mean())
            rows.append(Row(metric=f"benign_fpr:{column}", subject=name, value=round(float(found.mean()), 5), unit="share", n=len(texts)))
        others = max((one.wrong["high"].get(name, 0.0) for one in results.values()), default=0.0)
        figures[f"left out high: {name}"] = others
        half = "" if name in (*texts_of.JUDGED, BIPIA) else ", kept away"
        shown = "BIPIA's e-mails as they are" if name == BIPIA else f"{name}{half}"
        lines.append(f"| {shown} | {len(texts)} | {' | '.join(cells)} | {'' if name == BIPIA else f'{others:.2%}'} |")
    return "\n".join(lines), figures


def cost_table(data: Path, rows: list[Row]) -> tuple[str, dict[int, float]]:
    """The table of processor time of one scan, with the making of the folded form."""
    rule = Classifier("c")
    lines = ["| text of agent sessions | texts | p50, ms | p99, ms |", "|---|---|---|---|"]
    slowest = {}
    for size in GOALS_MS:
        texts = [text[:size] for text in timed_texts(data, ascii_=True, count=100)]
        times = sorted(min(_once(rule, text) for _ in range(5)) * 1000 for text in texts)
        slowest[size] = percentile(times, 0.99)
        rows.append(Row(metric=f"classifier_ms_{size}", subject="p99", value=round(percentile(times, 0.99), 4), unit="ms", n=len(texts)))
        lines.append(f"| {size:,} characters, ASCII | {len(texts)} | {percentile(times, 0.5):.2f} | {percentile(times, 0.99):.2f} |")
    return "\n".join(lines), slowest


def _once(rule: Classifier, text: str) -> float:
    begun = process_time()
    rule.scan(Text(text))
    return process_time() - begun


def missed(recalls: Mapping[str, float], wrong: Mapping[str, float], slowest: Mapping[int, float]) -> str:
    """What did not reach its goal, in one sentence."""
    short = []
    for sensitivity in SHOWN:
        for name in ("all of these together", "mean of these sources"):
            value = recalls[f"either {sensitivity}: {name}"]
            if value < GOALS["recall"]:
                short.append(f"recall of either rule, {sensitivity}, {name} ({value:.2f}, goal {GOALS['recall']})")
        bounds = {name: GOALS["honest"] for name in BOUND_BY_GOAL} | {"NotInject": GOALS["NotInject"]}
        for name, most in bounds.items():
            if wrong[f"either {sensitivity}: {name}"] > most:
                short.append(f"{name}, either, {sensitivity} ({wrong[f'either {sensitivity}: {name}']:.1%}, goal {most:.0%})")
    worst = wrong["left out high: NotInject"]
    if worst > GOALS["NotInject"]:
        short.append(f"NotInject by a classifier with a source left out, high, at worst ({worst:.1%}, goal 10%)")
    low = [(value, key.partition(": ")[2]) for key, value in recalls.items() if key.startswith("either high: ") and value < GOALS["recall"]]
    short += [f"the single source {name}, either, high ({value:.2f})" for value, name in low if " these" not in name]
    short += [
        f"time of {size:,} characters at p99 ({ms:.2f} ms, goal {GOALS_MS[size]:.0f})"
        for size, ms in slowest.items()
        if ms > GOALS_MS[size]
    ]
    return "Missed: " + ("; ".join(short) or "nothing") + "."


_base: Prepared | None = None
_SIGNS: Final = Injection("lexical")


def _lexical(text: str) -> bool:
    return bool(_SIGNS.scan(Text(text)))


def _left_out(task: tuple[Path, str]) -> Judged:
    """One training, in a process of its own."""
    data, source = task
    assert _base is not None
    extra = [one for one in texts_of.in_documents(data) if one.attack] if source == BIPIA else []
    return left_out(_base, source, extra, _lexical)


def main() -> None:
    """Train once for each source, measure, and refresh the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder of the visible sets")
    parser.add_argument("--processes", type=int, default=2, help="trainings at a time")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    sources = (*texts_of.SOURCES, BIPIA)
    global _base  # handed to the processes by fork: the texts are cut once
    _base = Prepared([*texts_of.attempts(args.data), *texts_of.honest(args.data)])
    results = {}
    with multiprocessing.get_context("fork").Pool(args.processes) as pool:
        for source, result in zip(sources, pool.imap(_left_out, [(args.data, source) for source in sources]), strict=True):
            results[source] = result
            print(source, {name: round(float(found.mean()), 3) for name, found in result.classifier.items()}, flush=True)
    rows: list[Row] = []
    recall, recalls = recall_table(results, rows)
    wrong, shares = wrong_table(args.data, results, _lexical, rows)
    header = packaged().header
    about = f"Shipped weights: {WEIGHTS.stat().st_size:,} bytes, {header.features:,} features."
    cost, slowest = cost_table(args.data, rows)
    text = "\n\n".join((recall, wrong, cost, about, missed(recalls, shares, slowest)))
    print(text)
    if not args.print_only:
        write_rows("injection", rows)
        refresh("injection", f"`python -m bench.guards.injection --data DIR`, {machine()}.\n\n{text}\n")


if __name__ == "__main__":
    main()
