"""Where figures go: rows in `bench/results/NAME.json`, tables in docs/numbers.md between markers."""

import json
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypedDict

ROOT = Path(__file__).parents[1]
NUMBERS = ROOT / "docs" / "numbers.md"


class Row(TypedDict):
    """One figure: the median of `n` measurements of `metric` for `subject`."""

    metric: str
    subject: str
    value: float
    unit: str
    n: int


def rows_of(measured: dict[tuple[str, str, str], list[float]]) -> list[Row]:
    """Medians of what was measured by (metric, subject, unit)."""
    return [
        Row(metric=metric, subject=subject, value=round(median(values), 4), unit=unit, n=len(values))
        for (metric, subject, unit), values in measured.items()
        if values
    ]


def write_rows(name: str, rows: Sequence[Row]) -> Path:
    """Write the rows of one benchmark."""
    path = ROOT / "bench" / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(list(rows), indent=1) + "\n")
    return path


def read_rows(name: str) -> list[Row]:
    """Those that were written last; none where there are none."""
    path = ROOT / "bench" / "results" / f"{name}.json"
    rows: list[Row] = json.loads(path.read_text()) if path.exists() else []
    return rows


def table(rows: Sequence[Row], metrics: Sequence[str], reference: str) -> str:
    """Subjects down, metrics across; each figure with its ratio to the reference's, or, where it is a difference itself
    (`added_…`), with the difference to it."""
    values = {(row["metric"], row["subject"]): row["value"] for row in rows}
    shown = [m for m in metrics if any(row["metric"] == m for row in rows)]
    lines = ["| subject | " + " | ".join(f"`{m}`" for m in shown) + " |", "|---|" + "---|" * len(shown)]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        cells = []
        for metric in shown:
            value, base = values.get((metric, subject)), values.get((metric, reference))
            if value is None:
                cells.append("")
            elif base is None or not base or subject in (reference, "direct"):
                cells.append(f"{value:.4g}")
            else:
                cells.append(f"{value:.4g} ({value - base:+.3g})" if metric.startswith("added_") else f"{value:.4g} ({value / base:.2f}x)")
        lines.append(f"| {subject} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def refresh(name: str, text: str) -> None:
    """Replace the part of docs/numbers.md between this benchmark's markers."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    page = NUMBERS.read_text()
    if begin not in page:
        page += f"\n{begin}\n{end}\n"
    NUMBERS.write_text(re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL))


def machine() -> str:
    """What the figures were made on."""
    cpus = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return f"{len(cpus)} x {cpus[0] if cpus else 'unknown CPU'}, kernel {platform.release()}, Python {platform.python_version()}"


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
