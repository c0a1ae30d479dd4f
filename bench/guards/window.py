"""What a guard window costs for each piece of a stream: `python -m bench.guards.window [--pieces N]`.

Pieces of four characters of plain English go through windows with 20 small rules, each an expression without a match, and through windows
with the built-in rules: for secrets, and for secrets, personal data and links over three kinds of text. Prints the median of seven runs in
µs of processor time per piece, and the characters that are held. `stride` is the number of characters that a window gathers before it scans
them.
"""

import argparse
import re
import statistics
import time
from collections.abc import Sequence

from guardrails.chain import Chain, ChainRule
from guardrails.ports import Finding, Scanned
from guardrails.rules.links import Links
from guardrails.rules.pii import Pii
from guardrails.rules.secrets import Secrets
from guardrails.text import Text
from guardrails.window import GuardWindow

TEXT = "The gate opens at nine, and the harbour master notes each ship in the book by the door. "
NUMBERS = TEXT + "In 2024 about 1,200 ships came, 37 of them from the north; see https://example.org/list?year=2024 for all. "
CODE = (
    "def total(values):\n    result = 0\n    for index, value in enumerate(values):\n        result += value * index\n    return result\n\n"
)
RUNS = 7


class SmallRule:
    """An expression that is looked for in the folded text."""

    def __init__(self, number: int, longest: int) -> None:
        self.id = f"small-{number}"
        self.longest = longest
        self._find = re.compile(f"qz{number}[0-9]{{1,20}}").finditer

    def scan(self, text: Scanned) -> Sequence[Finding]:
        return [Finding(self.id, "small", *text.span(*match.span())) for match in self._find(text.folded)]


def cost_us(rules: Chain, stride: int, pieces: int, repeated: str = TEXT) -> tuple[float, int]:
    """The cost of a piece in µs, and the characters held after the last one."""
    text = repeated * (4 * pieces // len(repeated) + 1)
    cut = [text[at : at + 4] for at in range(0, 4 * pieces, 4)]
    times = []
    held = 0
    for _ in range(RUNS):
        window = GuardWindow(rules, stride=stride)
        begun = time.process_time()
        for piece in cut:
            window.feed(piece)
        times.append((time.process_time() - begun) / pieces * 1e6)
        held = window.held
    return statistics.median(times), held


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pieces", type=int, default=2000, help="pieces of each run")
    pieces = parser.parse_args().pieces
    chains = {
        "no rules": Chain([], Text),
        "20 flags": Chain([ChainRule(SmallRule(number, 64), "flag") for number in range(20)], Text),
        "20 small rules of 64": Chain([ChainRule(SmallRule(number, 64), "redact") for number in range(20)], Text),
        "20 small rules of 128": Chain([ChainRule(SmallRule(number, 128), "redact") for number in range(20)], Text),
        "GitHub and AWS keys": Chain([ChainRule(Secrets("keys", ["github_token", "aws_key"]), "block")], Text),
        "all secrets": Chain([ChainRule(Secrets("keys"), "block")], Text),
    }
    print("| rules | stride | µs per piece | held |\n|---|---|---|---|")
    for name, rules in chains.items():
        for stride in (1, 16):
            cost, held = cost_us(rules, stride, pieces)
            print(f"| {name} | {stride} | {cost:.2f} | {held} |")
    built_in = Chain([ChainRule(rule, "redact") for rule in (Secrets("keys"), Pii("people"), Links("links"))], Text)
    for name, text in (("prose", TEXT), ("prose with numbers and a link", NUMBERS), ("code", CODE)):
        cost, held = cost_us(built_in, 1, pieces, text)
        print(f"| secrets, pii and links, {name} | 1 | {cost:.2f} | {held} |")


if __name__ == "__main__":
    main()
