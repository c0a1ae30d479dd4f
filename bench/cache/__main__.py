"""`python -m bench.cache --data DIR`: which answers a semantic cache gives, and how many of them are wrong, on streams of questions.

DIR holds `intents-banking77/train.jsonl.gz` and `intents-clinc150/clinc.jsonl.gz`. A given answer is right where the intent is equal;
questions outside all intents have an answer each. Labels come from the same intents: they are what a labeller would say who is right but
for the stated share of labels, which are turned round one by one.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.cache.course import EVERY_S, Setup, run, together
from bench.cache.intents import FILES, HALVES, Stream, streams
from bench.cache.lines import LEAST_HITS, Judged, best_static, hits_goal, judged, learned_lines, static_lines
from bench.cache.rivals import gptcache_lines
from bench.results_file import Row, machine, refresh, write_rows

HEAD = (
    "| line | requests | bypassed | stated repeats | hits | of repeats | wrong per hit (95 %) | wrong answers | enough hits "
    "| engine calls saved | ms per look-up (99 %) |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def row_of(name: str, line: Judged, goals: tuple[str, str]) -> str:
    """One line of a table."""
    came = line.came
    wrong = f"{line.wrong:.2%} ({line.lower:.2%} to {line.upper:.2%})" if came.hits else ""
    cost = f"{came.decide_s / came.decided * 1e3:.3f} ({came.slowest_s * 1e3:.2f})" if came.decided else ""
    saved = (came.hits + came.exact) / came.requests
    cells = [f"{came.requests:,}", f"{came.bypassed:,}", f"{came.repeats:,}", f"{came.hits:,}", f"{line.share:.1%}", wrong, *goals]
    return f"| {name} | " + " | ".join([*cells, f"{saved:.1%}", cost]) + " |"


def figures(name: str, line: Judged, where: str, orders: int) -> list[Row]:
    """The rows of the results file."""
    subject = f"{name}; {where}"
    came = line.came
    values = {"hits": (came.hits, "hits"), "hits_of_repeats": (line.share, "share"), "wrong_per_hit": (line.wrong, "share")}
    values |= {"wrong_per_hit_upper": (line.upper, "share"), "decide_ms": (came.decide_s / max(1, came.decided) * 1e3, "ms")}
    return [
        Row(metric=metric, subject=subject, value=round(float(value), 5), unit=unit, n=orders) for metric, (value, unit) in values.items()
    ]


def measured(lines: dict[str, Setup], asked: Sequence[Stream]) -> dict[str, Judged]:
    """Every line over all orders."""
    found = {}
    for name, setup in lines.items():
        found[name] = judged(together([run(stream, setup) for stream in asked]))
        line = found[name]
        print(f"  {name}: {line.came.hits} hits, {line.share:.3f} of repeats, {line.wrong:.4f} wrong per hit, {line.error}", flush=True)
    return found


def goals_of(name: str, line: Judged, static: Judged | None) -> tuple[str, str]:
    """The words on both goals; only lines that learn are held to the second."""
    if not line.came.hits:
        return "", ""
    return line.error, hits_goal(line, static) if name.startswith("verified") else ""


def main() -> None:
    """Run all lines on both halves of both sets, and refresh the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the two sets")
    parser.add_argument("--orders", type=int, default=5, help="seeded orders of each half")
    parser.add_argument("--halves", nargs="+", choices=HALVES, default=list(HALVES))
    parser.add_argument("--gptcache", type=Path, help="a Python that has GPTCache (requirements-gptcache.in)")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    text, rows = "", list[Row]()
    for name in FILES:
        static_name: str | None = None
        for half in args.halves:
            print(f"{name}, {half}", flush=True)
            asked = streams(args.data, name, half, args.orders)
            found = measured(static_lines() | learned_lines(), asked)
            if args.gptcache is not None:
                found |= {line: judged(came) for line, came in gptcache_lines(args.gptcache, asked).items()}
            if half == HALVES[0]:
                static_name = best_static(found)
            static = found.get(static_name) if static_name is not None else None
            text += f"\n{name}, {half} half, {len(asked[0].asked):,} questions in {args.orders} orders. {sentence(static_name)}\n\n{HEAD}\n"
            text += "\n".join(row_of(line, figure, goals_of(line, figure, static)) for line, figure in found.items()) + "\n"
            rows += [row for line, figure in found.items() for row in figures(line, figure, f"{name}, {half}", args.orders)]
    print(text)
    if not args.print_only:
        write_rows("cache", rows)
        command = f"`python -m bench.cache --data DIR --orders {args.orders}`, {machine()}; one question every {EVERY_S:.0f} s."
        refresh("cache", f"{command}\n{text}")


def sentence(static: str | None) -> str:
    """What the second goal compares with."""
    if static is None:
        return f"No static line has a Wilson upper bound within 1 % + 3 standard errors with {LEAST_HITS} hits on the tuning half."
    return f"The best static line on the tuning half is `{static}`."


if __name__ == "__main__":
    main()
