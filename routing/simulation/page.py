"""The report as one self-contained HTML file: tables, plots as inline SVG, and the assumptions.

`page` writes the file. `drawn` makes the plots as self-contained SVG text with Matplotlib (the extra `report`).
"""

import io
import json
import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from routing.simulation.comparison import SHOWN, PolicyResult, Result, shown

PLOT_WIDTH_IN: Final = 7.2
PLOT_HEIGHT_IN: Final = 3.6


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
    fig = figure(figsize=(PLOT_WIDTH_IN, PLOT_HEIGHT_IN))
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
    fig = figure(figsize=(PLOT_WIDTH_IN, 0.9 + 0.35 * len(results)))
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
    fig = figure(figsize=(PLOT_WIDTH_IN, 0.9 + 0.35 * len(results)))
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


STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #d8dee4; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto }
pre { background: #f6f8fa; padding: .8rem; overflow-x: auto }
.note { color: #57606a }
"""


def page(result: Result, plots: Sequence[tuple[str, str]], note: str = "") -> str:
    """The whole HTML file. `plots` are titles and SVG texts; `note` is shown below them, for example why there are none."""
    head = "".join(f"<th>{escape(title)}</th>" for title in SHOWN.values())
    rows = "".join(
        f"<tr><td>{escape(entry.policy)}</td>{''.join(f'<td>{escape(shown(name, entry))}</td>' for name in SHOWN)}</tr>"
        for entry in result.policies
    )
    drawings = "".join(f"<h2>{escape(title)}</h2><figure>{svg}</figure>" for title, svg in plots)
    notes = "".join(f"<li>{escape(text)}</li>" for text in result.notes)
    lost = "".join(
        f"<li>{escape(entry.policy)}: {entry.mean['refused']:g} refused, {entry.mean['failed']:g} failed, {entry.mean['retries']:g} "
        f"retried, {entry.mean['preemptions']:g} preempted</li>"
        for entry in result.policies
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidegate: {escape(result.workload)}, simulated</title><style>{STYLE}</style></head><body>
<h1>{escape(result.workload)}, simulated</h1>
<p>{result.requests:,} requests, {result.prompt_tokens:,} prompt tokens, {result.output_tokens:,} output tokens;
{result.seeds} seed{"s" * (result.seeds != 1)}{", with 95 % intervals by bootstrap over them" if result.seeds > 1 else ""}.
All figures come from an engine model in virtual time, none from an engine.</p>
<table><thead><tr><th>policy</th>{head}</tr></thead><tbody>{rows}</tbody></table>
<p class="note">Hit rate if all caches were one: {result.pooled_hit_rate:.1%}. Goodput counts refused and failed requests as misses.</p>
{drawings}<p class="note">{escape(note)}</p>
<h2>Lost and repeated</h2><ul>{lost}</ul>
<h2>Assumed</h2><ul>{notes or "<li>nothing beyond the trace</li>"}</ul>
<h2>Fleet</h2><pre>{escape(json.dumps(result.fleet, indent=1))}</pre>
<p class="note">{escape(result.made)}</p>
</body></html>
"""
