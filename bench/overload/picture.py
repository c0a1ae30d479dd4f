"""The picture of docs/numbers.md: goodput over offered load, and over the time of a trigger that ends. Drawn by Matplotlib."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

PATH = Path(__file__).parents[2] / "docs" / "explanation" / "overload.svg"


def draw(
    curves: Mapping[str, Sequence[tuple[float, float]]], timelines: Mapping[str, Sequence[float]], trigger: tuple[float, float]
) -> None:
    """Write the SVG: the same bytes for the same numbers.

    Args:
        curves: by subject, (offered load, goodput), both as multiples of capacity.
        timelines: by subject, goodput of each second as a multiple of capacity.
        trigger: seconds from and to which the load was far too high.
    """
    with matplotlib.rc_context({"svg.hashsalt": "tidegate", "svg.fonttype": "none", "font.size": 9}):
        fig = Figure(figsize=(7.2, 5.6))
        top, bottom = fig.subplots(2, 1)
        for name, points in curves.items():
            top.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
        top.set_xscale("log")
        top.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        top.set_xlabel("offered load, as a multiple of what the engines can answer")
        top.set_ylabel("answered in time")
        top.set_ylim(0, 1.1)
        top.legend(fontsize=7)
        for name, values in timelines.items():
            smooth = [sum(values[max(0, at - 4) : at + 1]) / len(values[max(0, at - 4) : at + 1]) for at in range(len(values))]
            bottom.plot(smooth, label=name, linewidth=1)
        bottom.axvspan(*trigger, color="grey", alpha=0.15, linewidth=0)
        bottom.set_xlabel("seconds; grey: five times the capacity, and callers try again twice")
        bottom.set_ylabel("answered in time")
        bottom.set_ylim(0, 1.1)
        fig.tight_layout()
        target = io.StringIO()
        fig.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    PATH.write_text(re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL))
