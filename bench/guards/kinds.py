"""`python -m bench.guards.kinds --data DIR`: what the rules of the other kinds find in honest texts, and what they cost.

The five families of `python -m bench.guards` are left out. A rule for languages allows English, in which these sets are written but for
NotInject's multilingual part and a few rows; one for canaries has ten made tokens; one for leaks knows a system prompt of 8,192 characters
that is made of texts of another set. Leaks are passages of 15 words of that prompt between sentences. No visible set has rows that repeat,
so nothing is said of what `repetition` misses.
"""

import argparse
import random
import string
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import process_time
from typing import Final

from bench.guards import sets
from bench.guards.__main__ import interval, texts_of
from bench.results_file import Row, machine, percentile, refresh, write_rows
from guardrails.ports import Scanner
from guardrails.rules.canary import Canary
from guardrails.rules.inside import Inside
from guardrails.rules.json_schema import JsonSchema
from guardrails.rules.language import Language
from guardrails.rules.prompt_leak import PromptLeak
from guardrails.rules.repetition import Repetition
from guardrails.rules.secrets import Secrets
from guardrails.text import Text

PROMPT_CHARS: Final = 8192
PASSAGE_WORDS: Final = 15
MOST_TEXTS: Final = 2000
"""Texts of a set that are judged; those with the smallest digests come first, so that it does not matter how the set is sorted."""
SCHEMA: Final = {"type": "object", "properties": {"answer": {"type": "string"}, "sources": {"type": "array"}}, "required": ["answer"]}
RNG: Final = random.Random(18)
TOKENS: Final = ["".join(RNG.choices(string.ascii_letters + string.digits, k=16)) for _ in range(10)]


def rules() -> dict[str, Scanner]:
    """A rule of each kind, without one for leaks."""
    return {
        "language": Language("language", ["en"]),
        "canary": Canary("canary", TOKENS),
        "repetition": Repetition("repetition"),
        "json_schema": JsonSchema("json_schema", SCHEMA),
        "secrets, decode: 1": Inside(Secrets("secrets"), 1),
        "secrets, decode: 3": Inside(Secrets("secrets"), 3),
    }


def leak_rule(prompt: str) -> Scanner:
    """A rule for leaks of one system prompt."""
    return PromptLeak("prompt_leak").bound([prompt])


def prompt_of(data: Path, name: str) -> str:
    """A system prompt that is made of the texts of a set."""
    return "\n".join(sets.honest(data, name))[:PROMPT_CHARS]


def honest(data: Path) -> Iterator[tuple[str, list[str]]]:
    """The sets and their texts; NotInject's in other languages apart."""
    foreign = {row["text"] for row in sets.rows(data, sets.HONEST["NotInject"]) if row["category"] == "Multilingual"}
    for name in sets.HONEST:
        texts = sorted(sets.honest(data, name), key=sets.digest)
        yield name, [text for text in texts if text not in foreign][:MOST_TEXTS]
        if name == "NotInject":
            yield "NotInject, other languages", [text for text in texts if text in foreign]


def passages(prompt: str, count: int) -> list[str]:
    """Texts with a passage of the prompt in each."""
    words = prompt.split()
    starts = [RNG.randrange(max(1, len(words) - PASSAGE_WORDS)) for _ in range(count)]
    return [f"I was told this: {' '.join(words[at : at + PASSAGE_WORDS])}. That is all." for at in starts]


def on_honest(data: Path, rows: list[Row]) -> str:
    """The table of findings in texts that nobody should be refused for, and of leaks that are found."""
    kinds = ("language", "canary", "repetition", "prompt_leak", "secrets, decode: 3")
    lines = [f"| honest messages | messages | {' | '.join(kinds)} | leaked passages | found |", "|---" * (len(kinds) + 4) + "|"]
    made = rules()
    for name, texts in honest(data):
        prompt = prompt_of(data, "prompts-bench" if name == "agent sessions" else "agent sessions")
        made["prompt_leak"] = leak_rule(prompt)
        cells = []
        for kind in kinds:
            hits = sum(bool(made[kind].scan(Text(text))) for text in texts)
            low, high = interval(hits, len(texts))
            cells.append(f"{hits / len(texts):.2%} ({low:.1%}-{high:.1%})" if hits else "0")
            share = round(hits / len(texts), 5)
            rows.append(Row(metric=f"benign_fpr:{kind}", subject=name, value=share, unit="share", n=len(texts)))
        leaked = passages(prompt, 200)
        found = sum(bool(made["prompt_leak"].scan(Text(text))) for text in leaked)
        rows.append(Row(metric="leaks_found", subject=name, value=found / len(leaked), unit="share", n=len(leaked)))
        lines.append(f"| {name} | {len(texts)} | {' | '.join(cells)} | {len(leaked)} | {found} |")
    return "\n".join(lines)


def cost(data: Path, count: int, rows: list[Row]) -> str:
    """The table of milliseconds of processor time for a text of 8,192 characters."""
    lines = ["| rule | ASCII p50, ms | p99 | other text p50, ms | p99 |", "|---|---|---|---|---|"]
    samples = {"ascii": texts_of(data, ascii_=True, count=count), "other": texts_of(data, ascii_=False, count=count)}
    timed: dict[str, Callable[[], Scanner]] = {kind: partial(lambda rule: rule, rule) for kind, rule in rules().items()}
    prompt = prompt_of(data, "prompts-bench")
    leaks = leak_rule(prompt)
    timed["prompt_leak"] = lambda: leaks
    timed["prompt_leak, made ready for a system prompt of 8,192 characters that is new"] = lambda: leak_rule(prompt)
    for name, rule_of in timed.items():
        cells = []
        for kind, texts in samples.items():
            times = [min(_once(rule_of, text) for _ in range(5)) * 1000 for text in texts]
            cells += [f"{percentile(times, share):.2f}" for share in (0.5, 0.99)]
            p99 = round(percentile(times, 0.99), 4)
            rows.append(Row(metric="ms_per_8kib", subject=f"{name}, {kind}, p99", value=p99, unit="ms", n=len(times)))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _once(rule_of: Callable[[], Scanner], text: str) -> float:
    begun = process_time()
    rule_of().scan(Text(text))
    return process_time() - begun


def main() -> None:
    """Measure both tables, and refresh the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the visible sets")
    parser.add_argument("--texts", type=int, default=50, help="texts whose scan is timed, of each kind")
    parser.add_argument("--print-only", action="store_true", help="leave docs and results as they are")
    args = parser.parse_args()
    rows: list[Row] = []
    text = "\n\n".join((on_honest(args.data, rows), cost(args.data, args.texts, rows)))
    print(text)
    if not args.print_only:
        write_rows("guards-kinds", rows)
        refresh("guards-kinds", f"`python -m bench.guards.kinds --data DIR --texts {args.texts}`, {machine()}.\n\n{text}\n")


if __name__ == "__main__":
    main()
