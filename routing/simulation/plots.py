"""The report's plots as self-contained SVG text, drawn by Matplotlib (the extra `report`)."""

import io
import re
from collections.abc import Sequence
from typing import Any, Final

from routing.simulation.comparison import PolicyResult

WIDTH: Final = 7.2
HEIGHT: Final = 3.6


class PlotsMissing(ImportError):
    """Matplotlib is not installed."""


def drawn(results: Sequence[PolicyResult], slo_ttft_s: float) -> list[tuple[str, str]]:
    """Title and SVG of every plot. Raises PlotsMissing."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotsMissing("plots need the extra: pip install 'tidegate[report]'") from None
    # the same bytes for the same numbers: no date, no random ids, text as text
    with matplotlib.rc_context({"svg.hashsalt": "tidegate", "svg.fonttype": "none", "font.size": 9}):
        return [
            ("Time to first token: share of all requests that had it within so many seconds", _ttft(Figure, results, slo_ttft_s)),
            ("Goodput and hit rate", _shares(Figure, results)),
            ("Prefilled tokens by engine, share of all", _balance(Figure, results)),
        ]


def _ttft(figure: Any, results: Sequence[PolicyResult], slo_ttft_s: float) -> str:
    fig = figure(figsize=(WIDTH, HEIGHT))
    ax = fig.subplots()
    for result in results:
        points = result.ttft_curve_s
        ax.step([max(1e-3, value) for value in points], [at / 200 for at in range(len(points))], label=result.policy, where="post")
    ax.axvline(slo_ttft_s, color="grey", linestyle=":", linewidth=1)
    ax.set_xscale("log")
    ax.set_xlabel("seconds (dotted: the objective)")
    ax.set_ylim(0, 1)
    ax.legend(fontsize=7)
    return _svg(fig)


def _shares(figure: Any, results: Sequence[PolicyResult]) -> str:
    fig = figure(figsize=(WIDTH, 0.9 + 0.35 * len(results)))
    ax = fig.subplots()
    places = range(len(results))
    ax.barh([at - 0.2 for at in places], [result.mean["goodput"] for result in results], 0.38, label="goodput")
    ax.barh([at + 0.2 for at in places], [result.mean["hit_rate"] for result in results], 0.38, label="hit rate")
    ax.set_yticks(list(places), [result.policy for result in results])
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.legend(fontsize=7)
    return _svg(fig)


def _balance(figure: Any, results: Sequence[PolicyResult]) -> str:
    fig = figure(figsize=(WIDTH, 0.9 + 0.35 * len(results)))
    ax = fig.subplots()
    for at in range(max((len(result.balance) for result in results), default=0)):
        ax.barh(
            range(len(results)),
            [result.balance[at] for result in results],
            left=[sum(result.balance[:at]) for result in results],
            edgecolor="white",
        )
    ax.set_yticks(range(len(results)), [result.policy for result in results])
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    return _svg(fig)


def _svg(fig: Any) -> str:
    fig.tight_layout()
    target = io.StringIO()
    fig.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
