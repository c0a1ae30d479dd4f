"""What a batch does to the first tokens of other callers, in real time: `python -m bench.batch_beside`.

A gateway of one worker and two simulated engines (Llama-3.1-8B on an H100) run in processes of their own. Windows with callers alone and
with a batch beside them come in pairs, in an order that changes; both windows of a pair get requests of the same lengths at the same
moments, and no text twice, which an engine would have cached. The interval is that of the ratio of the two p99 of all windows, with pairs
drawn anew (bootstrap, 95 %).

`bench.batch_slack` measures the same in virtual time, without what the gateway's and the engines' processes take from each other here.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench.overhead.processes import LOAD_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL, Subject, tidegate
from bench.results_file import Row, machine, percentile, refresh, write_rows

ENGINES: Final = 2
CAPACITY_PER_S: Final = 2 * 26.0
"""Requests a second of callers that the two engines answer with first tokens below a second (`bench.batch_slack`)."""
LINES: Final = 2_000
"""The batch of a window has so many: more than are done in it."""
SETTLED_S: Final = 2.0
"""After the last request of a window, and after a batch has begun."""
DRAWN: Final = 2_000
SETTINGS: Final = "files: {{folder: {folder}}}\nbatches: {{look_every_s: 0.2}}\n"


class Window(msgspec.Struct):
    """What callers saw in one window."""

    first_tokens: list[float] = []
    failed: int = 0
    lines: int = 0
    """Lines of the batch that were done in it."""


def body(rng: random.Random, words: random.Random, *, stream: bool) -> dict[str, Any]:
    """A chat whose lengths are those of `bench.batch_slack`; its text is drawn from `words`."""
    prompt, output = int(min(8000, rng.lognormvariate(6.5, 0.7))) + 1, int(min(1000, rng.lognormvariate(4.8, 0.6))) + 1
    text = " ".join(f"{words.randrange(10**6)}" for _ in range(max(1, prompt // 2)))
    message = {"role": "user", "content": text}
    return {"model": MODEL, "messages": [message], "max_tokens": output, "min_tokens": output, "ignore_eos": True, "stream": stream}


class Callers:
    """A client of the gateway."""

    def __init__(self, subject: Subject, session: aiohttp.ClientSession) -> None:
        self._url = subject.url + "/v1"
        self._headers = {"authorization": f"Bearer {subject.key}"}
        self._session = session
        self._words = random.Random(0)

    async def window(self, seed: int, per_s: float, seconds: float) -> Window:
        """Send requests at random moments, whatever becomes of them, and wait for all."""
        rng, found = random.Random(seed), Window()
        began, at = time.monotonic() + 0.2, 0.0
        tasks = []
        while (at := at + rng.expovariate(per_s)) < seconds:
            tasks.append(asyncio.create_task(self._chat(json.dumps(body(rng, self._words, stream=True)).encode(), began + at, found)))
        await asyncio.gather(*tasks)
        return found

    async def _chat(self, data: bytes, due: float, found: Window) -> None:
        await asyncio.sleep(due - time.monotonic())
        headers = {**self._headers, "content-type": "application/json"}
        first = None
        async with self._session.post(self._url + "/chat/completions", data=data, headers=headers) as reply:
            last = b""
            async for chunk in reply.content.iter_any():
                if first is None and b'"content":"' in chunk.replace(b'"content":""', b""):
                    first = time.monotonic() - due
                last = (last + chunk)[-64:]
        if first is None or b"[DONE]" not in last:
            found.failed += 1
        else:
            found.first_tokens.append(first)

    async def begin_batch(self, seed: int) -> str:
        """Upload a batch and wait until it runs; its id."""
        rng = random.Random(seed)
        ask = {"method": "POST", "url": "/v1/chat/completions"}
        lines = (json.dumps({"custom_id": f"l{at}", **ask, "body": body(rng, self._words, stream=False)}) for at in range(LINES))
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field("file", "\n".join(lines).encode(), filename="lines.jsonl")
        async with self._session.post(self._url + "/files", data=form, headers=self._headers) as reply:
            file = (await reply.json())["id"]
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        async with self._session.post(self._url + "/batches", json=asked, headers=self._headers) as reply:
            batch = str((await reply.json())["id"])
        while (await self.batch(batch))["request_counts"]["completed"] < 1:
            await asyncio.sleep(0.1)
        return batch

    async def batch(self, name: str) -> dict[str, Any]:
        """A batch as it is."""
        async with self._session.get(f"{self._url}/batches/{name}", headers=self._headers) as reply:
            shown: dict[str, Any] = await reply.json()
            return shown

    async def end_batch(self, name: str) -> None:
        """Cancel a batch and wait until nothing of it runs."""
        async with self._session.post(f"{self._url}/batches/{name}/cancel", headers=self._headers) as reply:
            await reply.read()
        while (await self.batch(name))["status"] != "cancelled":
            await asyncio.sleep(0.1)


async def pairs(subject: Subject, given: argparse.Namespace) -> list[tuple[Window, Window]]:
    """Measure pairs of windows: callers alone, callers beside a batch."""
    found = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
        callers = Callers(subject, session)
        per_s = given.load * CAPACITY_PER_S
        await callers.window(10**6, per_s, given.seconds / 2)  # warm
        for pair in range(given.pairs):
            windows: dict[bool, Window] = {}
            for beside in (False, True) if pair % 2 else (True, False):
                batch = await callers.begin_batch(pair) if beside else ""
                await asyncio.sleep(SETTLED_S)
                before = (await callers.batch(batch))["request_counts"]["completed"] if beside else 0
                windows[beside] = await callers.window(pair, per_s, given.seconds)
                if beside:
                    windows[beside].lines = (await callers.batch(batch))["request_counts"]["completed"] - before
                    await callers.end_batch(batch)
                await asyncio.sleep(SETTLED_S)
            found.append((windows[False], windows[True]))
            print(*(f"{1000 * percentile(windows[b].first_tokens, 0.99):.0f} ms" for b in (False, True)), windows[True].lines, flush=True)
    return found


def moves(found: list[tuple[Window, Window]], share: float) -> float:
    """How much a percentile of the first tokens moves, as a share of that of callers alone."""
    alone, beside = (percentile([s for pair in found for s in pair[at].first_tokens], share) for at in (0, 1))
    return beside / alone - 1


def interval(found: list[tuple[Window, Window]], share: float) -> tuple[float, float]:
    """Where 95 % of what `moves` says of pairs drawn anew lie."""
    rng = random.Random(0)
    drawn = sorted(moves(rng.choices(found, k=len(found)), share) for _ in range(DRAWN))
    return drawn[int(0.025 * DRAWN)], drawn[int(0.975 * DRAWN)]


@contextlib.contextmanager
def serving(home: Path, port: int) -> Iterator[Subject]:
    """Two engines and the gateway in front of them."""
    with contextlib.ExitStack() as stack:
        urls = []
        for at in range(ENGINES):
            command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--preset", "h100-8b", "--port", str(port + at)]
            stack.enter_context(running(start(command, LOAD_CPU, home / f"engine-{at}.log")))
            urls.append(f"http://127.0.0.1:{port + at}")
            wait_for(urls[-1] + "/health")
        more = SETTINGS.format(folder=home / "files")
        yield stack.enter_context(tidegate(home, urls, port + ENGINES, more=more))


def main() -> int:
    """Measure, write the rows, refresh the text of docs/numbers.md; 1 where a request failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch_beside")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each window")
    parser.add_argument("--load", type=float, default=0.3, help="of callers, as a share of what the engines bear")
    parser.add_argument("--port", type=int, default=22_300, help="first of four loopback ports")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder, serving(Path(folder), given.port) as subject:
        found = asyncio.run(pairs(subject, given))
    failed = sum(window.failed for pair in found for window in pair)
    rows: list[Row] = []
    lines = ["| subject | requests | p50 ms | p99 ms | lines/s |", "|---|---|---|---|---|"]
    for at, name in enumerate(("callers alone", "beside a batch")):
        seen = [s for pair in found for s in pair[at].first_tokens]
        done = f"{sum(pair[at].lines for pair in found) / given.seconds / len(found):.1f}" if at else ""
        p50, p99 = (1000 * percentile(seen, share) for share in (0.5, 0.99))
        lines.append(f"| {name} | {len(seen):,} | {p50:.1f} | {p99:.0f} | {done} |")
        for metric, value in (("ttft_p50_ms", p50), ("ttft_p99_ms", p99)):
            rows.append(Row(metric=metric, subject=name, value=round(value, 1), unit="ms", n=len(seen)))
    lines.append("")
    for share in (0.5, 0.99):
        low, high = interval(found, share)
        moved = f"p{100 * share:g} moves by {100 * moves(found, share):+.1f} % (95 %: {100 * low:+.1f} to {100 * high:+.1f})"
        lines.append(f"The {moved}.")
        print(moved)
    write_rows("batch_beside", rows)
    command = " ".join(["python -m bench.batch_beside", *sys.argv[1:]])
    what = f"{given.pairs} pairs of windows of {given.seconds:g} s at {100 * given.load:g} % of what the engines bear; {failed} failed"
    refresh("batch_beside", f"`{command}`, {date.today()}, {machine()}; {what}.\n\n" + "\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
