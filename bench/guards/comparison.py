"""`python -m bench.guards.comparison --data DIR --presidio PYTHON --detect-secrets PYTHON`: the rules of other projects beside ours, on the
same texts: what they find, how often wrongly, and what a text costs. Each PYTHON is the interpreter of an environment of its own, with
`presidio-analyzer` and a small English model of spaCy, and with `detect-secrets`; without a flag that project is left out.
"""

import argparse
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import NamedTuple

from bench.guards import generated, sets
from bench.guards.__main__ import REGIONS, RULES
from bench.results_file import Row, machine, refresh, write_rows
from guardrails.ports import Scanner
from guardrails.rules.pii import Pii
from guardrails.text import Text

SCRIPT = Path(__file__).with_name("others.py")
HONEST_OF_SET = 100
"""Honest messages of each set that others scan too, the first ones of the kept-away half up to `HONEST_CHARS` long: Presidio takes a
twentieth of a second for a kilobyte."""
HONEST_CHARS = 4000
SECRETS_OF_KIND = 20

Found = list[tuple[str, int, int]]


class Answer(NamedTuple):
    """What rules said of a text, and the seconds of processor time it took."""

    found: Found
    seconds: float


def asked(python: str, project: str, texts: Sequence[str]) -> list[Answer]:
    """What the rules of another project say, in its own environment. Raises RuntimeError with its last words where it fails."""
    lines = "".join([json.dumps({"text": text}) + "\n" for text in texts])
    ended = subprocess.run([python, str(SCRIPT), project], input=lines, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{project} failed: {ended.stderr[-1000:]}")
    rows = [json.loads(line) for line in ended.stdout.splitlines()]
    return [Answer([(kind, begin, end) for kind, begin, end in row["found"]], row["seconds"]) for row in rows]


def ours(rule: Scanner, texts: Sequence[str], kind: str | None) -> list[Answer]:
    """Asks one of our rules in the same way; with `kind` all findings are called that."""
    answers = []
    for text in texts:
        begun = process_time()
        findings = rule.scan(Text(text))
        seconds = process_time() - begun
        answers.append(Answer([(kind or finding.kind, finding.begin, finding.end) for finding in findings], seconds))
    return answers


def honest(data: Path) -> list[str]:
    """The messages in which others look for findings that should not be there."""
    texts: list[str] = []
    for name in sets.HONEST:
        kept = [text for text in sets.honest(data, name) if not sets.tuned(text) and len(text) <= HONEST_CHARS]
        texts += kept[:HONEST_OF_SET]
    return texts


def line(name: str, spans: Sequence[sets.Spans], answers: Sequence[Answer], benign: Sequence[Answer]) -> tuple[str, float, float]:
    """A row of the table, F1 and the share of honest messages with a finding."""
    found = wrong = missed = 0
    for one, answer in zip(spans, answers, strict=True):
        for kind, begin, end in one.spans:
            hit = any(k == kind and b < end and begin < e for k, b, e in answer.found)
            found, missed = found + hit, missed + (not hit)
        wrong += sum(not any(k == kind and b < end and begin < e for kind, begin, end in one.spans) for k, b, e in answer.found)
    precision, recall = found / max(1, found + wrong), found / max(1, found + missed)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    share = sum(bool(answer.found) for answer in benign) / len(benign)
    milliseconds = sum(answer.seconds for answer in benign) / len(benign) * 1000
    return f"| {name} | {found + missed} | {precision:.3f} | {recall:.3f} | {f1:.3f} | {share:.2%} | {milliseconds:.2f} |", f1, share


def compared(data: Path, rules: dict[str, Scanner], pythons: dict[str, str], rows: list[Row]) -> str:
    """The table of other projects.

    Args:
        rules: ours, by `pii` and `secrets`.
        pythons: the interpreter of each project's environment, by `presidio` and `detect-secrets`.
    """
    made = [sets.Spans(one.text, [("secret", one.begin, one.end)]) for one in generated.secrets(20261, SECRETS_OF_KIND)]
    made += [sets.Spans(text, []) for text in generated.negatives(20261, 20 * SECRETS_OF_KIND)]
    chosen = {"presidio": ("pii", None, sets.pii(data)), "detect-secrets": ("secrets", "secret", made)}
    benign = honest(data)
    lines = [
        "| rules, texts | spans | precision | recall | F1 | honest messages with a finding | ms of an honest message, mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for project, python in pythons.items():
        family, kind, spans = chosen[project]
        texts = [one.text for one in spans]
        theirs = asked(python, project, [*texts, *benign])
        for name, answers, quiet in (
            (f"ours, {family}", ours(rules[family], texts, kind), ours(rules[family], benign, kind)),
            (f"{project}, {family}", theirs[: len(texts)], theirs[len(texts) :]),
        ):
            row, f1, share = line(name, spans, answers, quiet)
            lines.append(row)
            subject = "tidegate" if name.startswith("ours") else project
            rows.append(Row(metric=f"{family}_f1:comparison", subject=subject, value=round(f1, 4), unit="share", n=len(texts)))
            rows.append(Row(metric=f"benign_fpr:{family}, comparison", subject=subject, value=round(share, 5), unit="share", n=len(benign)))
    return "\n".join(lines)


def main() -> None:
    """Ask the projects that are there, and refresh the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the visible sets")
    parser.add_argument("--presidio", metavar="PYTHON")
    parser.add_argument("--detect-secrets", metavar="PYTHON")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    pythons = {name: python for name, python in (("presidio", args.presidio), ("detect-secrets", args.detect_secrets)) if python}
    rows: list[Row] = []
    text = compared(args.data, {"pii": Pii("pii", regions=REGIONS), "secrets": RULES["secrets"]}, pythons, rows)
    print(text)
    if not args.print_only:
        write_rows("guards-compared", rows)
        refresh(
            "guards-compared",
            f"`python -m bench.guards.comparison --data DIR --presidio PYTHON --detect-secrets PYTHON`, {machine()}.\n\n{text}\n",
        )


if __name__ == "__main__":
    main()
