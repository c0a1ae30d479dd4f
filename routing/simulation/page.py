"""The report as one self-contained HTML file: tables, plots as inline SVG, and the assumptions."""

import json
from collections.abc import Sequence
from html import escape
from typing import Final

from routing.simulation.comparison import SHOWN, Result, shown

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
