"""`python -m bench.guards --data DIR`: what guard rules find and what they cost. DIR has the visible sets by their names."""

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import process_time

from bench.guards import generated, sets
from bench.results_file import Row, machine, percentile, refresh, write_rows
from guardrails.ports import Scanner
from guardrails.rules.injection import Injection
from guardrails.rules.links import Links
from guardrails.rules.pii import Pii
from guardrails.rules.secret_formats import KINDS
from guardrails.rules.secrets import Secrets
from guardrails.rules.words import Words
from guardrails.text import Text

HALVES = ("tuning", "kept away")
REGIONS = (
    *(
        "US",
        "CA",
        "GB",
        "IE",
        "DE",
        "AT",
        "CH",
        "FR",
        "BE",
        "NL",
        "ES",
        "IT",
        "AU",
        "IN",
        "BR",
        "PT",
        "SE",
        "NO",
        "DK",
        "FI",
        "PL",
        "CZ",
        "HU",
    ),
    *("RO", "GR", "NZ", "ZA", "JP", "MX", "IS", "SI", "CY", "EE", "HR", "UY", "CL", "TN", "RU"),
)
"""The countries whose identities the PII set is made of: a tenant names the countries of its callers in the same way."""
RULES: dict[str, Scanner] = {
    "secrets": Secrets("secrets"),
    "pii": Pii("pii"),
    "links": Links("links"),
    "injection": Injection("injection"),
    "words": Words("words", [f"project codename {n}" for n in range(100)]),
}
GOALS = {"secrets F1": 0.95, "pii F1": 0.95, "benign share": 0.005, "ms ascii": 1.0, "ms other": 4.0, "NotInject share": 0.1}
SIZE = 8192


def interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    if not total:
        return 0.0, 1.0
    z, share = 1.96, count / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    reach = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def scored(rule: Scanner, texts: Iterable[sets.Spans]) -> dict[str, tuple[int, int, int]]:
    """Found, wrongly found and missed by type; a span is found by a finding of its type that overlaps it."""
    found: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for text, spans in texts:
        findings = rule.scan(Text(text))
        for kind, begin, end in spans:
            hit = any(f.kind == kind and f.begin < end and begin < f.end for f in findings)
            (found if hit else missed)[kind] += 1
        for f in findings:
            wrong[f.kind] += not any(f.kind == kind and f.begin < end and begin < f.end for kind, begin, end in spans)
    return {kind: (found[kind], wrong[kind], missed[kind]) for kind in sorted(found | wrong | missed)}


def quality(counts: Iterable[tuple[int, int, int]]) -> tuple[float, float, float]:
    """Precision, recall and F1 of all counts together."""
    found, wrong, missed = (sum(column) for column in zip(*counts, strict=True))
    precision, recall = found / max(1, found + wrong), found / max(1, found + missed)
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def by_span(data: Path, each: int, rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of secrets and personal data."""
    lines = ["| rule, half | spans | precision | recall | F1 | missed or wrong, by type |", "|---|---|---|---|---|---|"]
    f1: dict[str, float] = {}
    for half in HALVES:
        seed = 1 if half == "tuning" else 20261
        made = [sets.Spans(one.text, [(one.kind, one.begin, one.end)]) for one in generated.secrets(seed, each)]
        made += [sets.Spans(text, []) for text in generated.negatives(seed, 20 * each)]
        identities = [one for one in sets.pii(data) if sets.tuned(one.text) is (half == "tuning")]
        for name, rule, texts in (("secrets", RULES["secrets"], made), ("pii", Pii("pii", regions=REGIONS), identities)):
            counts = scored(rule, texts)
            precision, recall, both = quality(counts.values())
            f1[f"{name} {half}"] = both
            parts = [f"{kind} {m} missed, {w} wrong of {f + m}" for kind, (f, w, m) in counts.items() if w or m]
            spans = sum(f + m for f, _, m in counts.values())
            lines.append(f"| {name}, {half} | {spans} | {precision:.3f} | {recall:.3f} | {both:.3f} | {'; '.join(parts) or 'none'} |")
            rows.append(Row(metric=f"{name}_f1", subject=half, value=round(both, 4), unit="share", n=spans))
            if name == "pii":
                lines += [
                    f"| … {kind} | {f + m} | {f / max(1, f + w):.3f} | {f / max(1, f + m):.3f} | {quality([(f, w, m)])[2]:.3f} | |"
                    for kind, (f, w, m) in counts.items()
                ]
    return "\n".join(lines), f1


def on_honest(data: Path, rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of findings in texts that nobody should be refused for."""
    lines = ["| honest messages, half | messages | secrets | pii | links | injection | what was found |", "|---|---|---|---|---|---|---|"]
    worst: dict[str, float] = {}
    for name in sets.HONEST:
        texts = sets.honest(data, name)
        for half in HALVES:
            chosen = [text for text in texts if sets.tuned(text) is (half == "tuning")]
            if not chosen:
                continue
            kinds: Counter[str] = Counter()
            shares = []
            for family in ("secrets", "pii", "links", "injection"):
                hits = 0
                for text in chosen:
                    findings = RULES[family].scan(Text(text))
                    hits += bool(findings)
                    kinds.update({f"{family} {finding.kind}" for finding in findings})
                low, high = interval(hits, len(chosen))
                share = round(hits / len(chosen), 5)
                shares.append(f"{share:.2%} ({low:.1%}-{high:.1%})" if hits else "0")
                worst["NotInject" if name == "NotInject" and family == "injection" else f"{family} on {name}, {half}"] = share
                rows.append(Row(metric=f"benign_fpr:{family}", subject=f"{name}, {half}", value=share, unit="share", n=len(chosen)))
            what = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(5))
            lines.append(f"| {name}, {half} | {len(chosen)} | {' | '.join(shares)} | {what} |")
    return "\n".join(lines), worst


def attacks(data: Path, rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of attempts that are found."""
    lines = ["| attempts, half | attempts | found (95 %) | honest rows of the set | of these found |", "|---|---|---|---|---|"]
    recalls: dict[str, float] = {}
    for name in sets.ATTACKS:
        for half in HALVES:
            chosen = [one for one in sets.attacks(data, name) if sets.tuned(one.text) is (half == "tuning")]
            found = {attack: [bool(RULES["injection"].scan(Text(t))) for t, a in chosen if a is attack] for attack in (True, False)}
            hits, total = sum(found[True]), len(found[True])
            low, high = interval(hits, total)
            share = recalls[f"{name} {half}"] = round(hits / max(1, total), 4)
            wrong = f"{len(found[False])} | {sum(found[False])}"
            lines.append(f"| {name}, {half} | {total} | {share:.2f} ({low:.2f}-{high:.2f}) | {wrong} |")
            rows.append(Row(metric="injection_recall", subject=f"{name}, {half}", value=share, unit="share", n=total))
    return "\n".join(lines), recalls


def texts_of(data: Path, *, ascii_: bool, count: int, size: int = SIZE) -> list[str]:
    """Texts of 8,192 characters from agent sessions, ASCII or not."""
    whole = "\n".join(text for text in sets.honest(data, "agent sessions") if text.isascii() is ascii_)
    return [whole[at : at + size] for at in range(0, len(whole) - size, size)][:count]


def cost(data: Path, count: int, rows: list[Row]) -> tuple[str, dict[str, float]]:
    """The table of milliseconds of processor time for a text of 8,192 characters."""
    lines = ["| rules | ASCII p50, ms | p99 | other text p50, ms | p99 |", "|---|---|---|---|---|"]
    both: dict[str, float] = {}
    samples = {"ascii": texts_of(data, ascii_=True, count=count), "other": texts_of(data, ascii_=False, count=count)}
    chosen: dict[str, Sequence[Scanner]] = {name: [rule] for name, rule in RULES.items()}
    chosen[f"secrets and pii ({len(KINDS) + 6} kinds)"] = [RULES["secrets"], RULES["pii"]]
    chosen["all"] = list(RULES.values())
    for name, rules in chosen.items():
        cells = []
        for kind, texts in samples.items():
            times = [min(_once(rules, text) for _ in range(5)) * 1000 for text in texts]
            for share in (0.5, 0.99):
                cells.append(f"{percentile(times, share):.2f}")
            both[f"{name} {kind}"] = percentile(times, 0.99)
            rows.append(
                Row(metric="ms_per_8kib", subject=f"{name}, {kind}, p99", value=round(both[f"{name} {kind}"], 4), unit="ms", n=len(times))
            )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    cells = []
    for kind in samples:
        long = texts_of(data, ascii_=kind == "ascii", count=count // 8, size=8 * SIZE)
        times = [min(_once(chosen["all"], text) for _ in range(5)) * 1000 for text in long]
        cells += [f"{percentile(times, share):.2f}" for share in (0.5, 0.99)]
        both[f"64 KiB {kind}"] = percentile(times, 0.99)
        rows.append(
            Row(metric="ms_per_64kib", subject=f"all, {kind}, p99", value=round(both[f"64 KiB {kind}"], 4), unit="ms", n=len(times))
        )
    lines.append(f"| all, of 65,536 characters | {' | '.join(cells)} |")
    return "\n".join(lines), both


def _once(rules: Sequence[Scanner], text: str) -> float:
    """Seconds of one scan, with the making of the text's forms."""
    begun = process_time()
    scanned = Text(text)
    for rule in rules:
        rule.scan(scanned)
    return process_time() - begun


def missed(figures: dict[str, dict[str, float]]) -> str:
    """What did not reach its goal, in one line."""
    f1, worst, recalls, ms = (figures[name] for name in ("f1", "worst", "recalls", "ms"))
    short = [f"F1 of {name} ({value:.3f}, goal {GOALS['secrets F1']})" for name, value in f1.items() if value < GOALS["secrets F1"]]
    short += [
        f"honest messages with a finding, {name} ({value:.2%}, goal {GOALS['benign share']:.1%})"
        for name, value in worst.items()
        if name != "NotInject" and value > GOALS["benign share"]
    ]
    short += [f"NotInject ({worst['NotInject']:.1%}, goal 10 %)"] if worst["NotInject"] > GOALS["NotInject share"] else []
    short += [f"injection recall on {name} ({value:.2f}, goal 0.75)" for name, value in recalls.items() if value < 0.75]
    short += [
        f"{name}: {value:.2f} ms of 8 KiB at p99 (goal {GOALS['ms ' + name.rpartition(' ')[2]]:.0f})"
        for name, value in ms.items()
        if name.startswith(("all ", "secrets and")) and value > GOALS["ms " + name.rpartition(" ")[2]]
    ]
    short += [f"{name}: {value:.2f} ms at p99 (goal 5)" for name, value in ms.items() if name.startswith("64 KiB") and value > 5]
    return "Missed: " + ("; ".join(short) or "nothing") + "."


def main() -> None:
    """Measure all tables, and refresh the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the visible sets")
    parser.add_argument("--each", type=int, default=50, help="made secrets of each kind, for each half")
    parser.add_argument("--texts", type=int, default=100, help="texts whose scan is timed, of each kind")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    rows: list[Row] = []
    spans, f1 = by_span(args.data, args.each, rows)
    honest, worst = on_honest(args.data, rows)
    found, recalls = attacks(args.data, rows)
    times, ms = cost(args.data, args.texts, rows)
    line = missed({"f1": f1, "worst": worst, "recalls": recalls, "ms": ms})
    text = "\n\n".join((spans, honest, found, times, line))
    print(text)
    if not args.print_only:
        write_rows("guards", rows)
        refresh("guards", f"`python -m bench.guards --data DIR --each {args.each} --texts {args.texts}`, {machine()}.\n\n{text}\n")


if __name__ == "__main__":
    main()
