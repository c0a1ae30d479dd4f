"""What guard rules cost for each event of a streamed answer: `python -m bench.guards.reply [--events N]`.

Events of four characters of plain English pass the reply chain: the judging tap alone, and with the guards' tap behind it under several
sets of rules. Prints the least of many runs in µs per event. With `--instructions`, instructions per event instead, which callgrind counts
and a busy machine does not move (valgrind; a minute for each set).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.instructions.counts import by_thread, read_dump
from domain.ask import Endpoint
from gateway.http.edge.reply_chain import ReplyChain
from gateway.http.edge.taps import PlainTap, StreamTap
from tests.guarded_replies import CONTENT, Guarded, asked, event, guards, role

TEXT = "The gate opens at nine, and the harbour master notes each ship in the book by the door. "
WORDS = {"kind": "words", "words": ["kraken", "leviathan"]}
SETS: dict[str, tuple[dict[str, Any], ...]] = {
    "no tap": (),
    "tap, rules for other texts": ({**WORDS, "mode": "block", "on": ["tool_arguments"]},),
    "two words, flag": ({**WORDS, "mode": "flag"},),
    "two words, block": ({**WORDS, "mode": "block"},),
    "PII, redact": ({"kind": "pii", "mode": "redact"},),
    "secrets, block": ({"kind": "secrets", "mode": "block"},),
}
BATCH = 200
WARM = 100
CHILD = "--counted"


def chain_and_events(name: str, count: int) -> tuple[StreamTap | PlainTap | ReplyChain, list[bytes]]:
    """A chain that has begun an answer, and further events of it."""
    text = TEXT * (4 * (count + WARM) // len(TEXT) + 1)
    events = [event(Endpoint.CHAT, 0, CONTENT, text[at : at + 4]) for at in range(0, 4 * (count + WARM), 4)]
    rules = SETS[name]
    chain = Guarded(asked(max_tokens=10 * (count + WARM)), guards(*rules) if rules else None).chain
    for one in (role(), *events[:WARM]):
        chain.feed(one)
    return chain, events[WARM:]


def least_us(name: str, count: int) -> float:
    """The least time per event of all batches, in µs."""
    chain, events = chain_and_events(name, count)
    best = float("inf")
    for begin in range(0, count - BATCH + 1, BATCH):
        batch = events[begin : begin + BATCH]
        begun = time.perf_counter()
        for one in batch:
            chain.feed(one)
        best = min(best, time.perf_counter() - begun)
    return best / BATCH * 1e6


def counted(name: str, count: int) -> None:
    """Feed the events while callgrind counts: what the child process does."""
    chain, events = chain_and_events(name, count)
    _control("--instr=on")
    for one in events:
        chain.feed(one)
    _control("--dump=fed")
    _control("--instr=off")


def _control(order: str) -> None:
    """Tell callgrind something."""
    said = subprocess.run(["callgrind_control", order, str(os.getpid())], capture_output=True, text=True, check=False)
    if "OK" not in said.stdout:
        raise RuntimeError(f"callgrind_control {order}: {said.stdout} {said.stderr}")


def instructions(name: str, count: int) -> float:
    """Instructions of a child process that feeds this many events."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            f"--callgrind-out-file={out}",
            sys.executable,
        ]
        child = [*command, "-m", "bench.guards.reply", CHILD, name, "--events", str(count)]
        subprocess.run(child, check=True, env={**os.environ, "PYTHONHASHSEED": "0"}, stderr=subprocess.DEVNULL)
        dumps = [read_dump(file.read_text()) for file in Path(folder).glob("out*-*")]
    return float(sum(by_thread(dumps, "fed").values()))


def instructions_each(name: str, count: int) -> float:
    """Instructions per event: the difference of two runs, so that what both do otherwise cancels out."""
    return (instructions(name, 3 * count) - instructions(name, count)) / (2 * count)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=2000, help="events of each run")
    parser.add_argument("--instructions", action="store_true", help="count instructions with callgrind")
    parser.add_argument(CHILD, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.counted:
        counted(given.counted, given.events)
        return
    if given.instructions and shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (apt install valgrind)")
        return
    unit, measure = ("instructions", instructions_each) if given.instructions else ("µs", least_us)
    print(f"| rules | {unit} per event | more than without |\n|---|---|---|")
    without = 0.0
    for name in SETS:
        cost = measure(name, given.events)
        without = without or cost
        print(f"| {name} | {cost:.2f} | {cost - without:.2f} |", flush=True)


if __name__ == "__main__":
    main()
