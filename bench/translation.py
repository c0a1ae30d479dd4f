"""What the translation of a streamed answer costs: `python -m bench.translation [--events N]`.

Events of a chat, as vLLM writes them, pass from the callback of the engine's socket to that of the caller's: the relay, the judging tap and
the exchange, with a connection that discards what is written. Once nothing is translated, and once for each other API of callers. Prints
instructions of user space per event, which callgrind counts and a busy machine does not move (valgrind; half a minute in all). System
calls are not in it: the write to the socket is the same for all.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.instructions.counts import by_thread, read_dump
from domain.ask import Endpoint
from gateway.http.anthropic import MESSAGES, MessagesTranslation
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.head import RequestHead
from gateway.http.edge.relay import ReplyRelay, ReplySource
from gateway.http.edge.timeouts import Timeouts
from gateway.http.edge.translation import Translation
from gateway.http.responses import PATH as RESPONSES
from gateway.http.responses import ResponsesTranslation
from tests.guarded_replies import Guarded, asked

CHAT = Endpoint.CHAT.path
WORDS = ("The", " gate", " opens", " at", " nine", ",", " and", " the", " harbour", " master", " notes", " each", " ship", ".")
WARM = 200
GOAL = 2.0
CHILD = "--counted"


class Discarding:
    """A connection that discards everything."""

    speaks_1_0 = False

    class connections:
        date_line = b""

    def closes_after(self, _exchange: Exchange) -> bool:
        return False

    def write(self, _data: bytes) -> None:
        pass


def translation(path: str) -> Translation | None:
    """A translation that has read its request; None for chats."""
    made: Translation | None = None
    body: dict[str, Any] = {"model": "m", "stream": True}
    if path == MESSAGES:
        made = MessagesTranslation(ThinkingSigner(b"bench"), lambda: 0.0)
        body |= {"max_tokens": 100_000, "messages": [{"role": "user", "content": "x"}]}
    elif path == RESPONSES:
        made = ResponsesTranslation(lambda: 0, map("{:032x}".format, itertools.count()).__next__)
        body |= {"input": "x"}
    if made is not None:
        made.request(msgspec.json.encode(body))
    return made


def events(count: int) -> list[bytes]:
    """Events of a chat in the form of vLLM."""
    made = []
    for text in itertools.islice(itertools.cycle(WORDS), count):
        delta = b'{"index":0,"delta":{"content":%b},"logprobs":null,"finish_reason":null,"token_ids":null}' % msgspec.json.encode(text)
        frame = b'data: {"id":"chatcmpl-req-6b0a17b9-a555dea2f393bc4ba9d263e5","object":"chat.completion.chunk","created":1790000000,'
        made.append(b'%b"model":"m","choices":[%b]}\n\n' % (frame, delta))
    return made


async def feeding(path: str) -> Callable[[bytes], None]:
    """The relay's entry for an engine's bytes, of a stream that has begun."""
    connection: Any = Discarding()
    exchange = Exchange(connection, RequestHead("POST", path, {}, None, False, True))
    exchange.translation = translation(path)
    answer = Guarded(asked(max_tokens=1_000_000), clock=time.monotonic)
    answer.story.asked.stream = True
    timeouts = Timeouts(60, 1000, 600, 60, 600, 0, 60)
    relay = ReplyRelay(exchange, answer.story, answer.chain, ReplySource(), headers=lambda: b"", timeouts=timeouts, clock=time.monotonic)
    relay.on_head(200, {b"content-type": b"text/event-stream"})
    for event in events(WARM):
        relay.on_data(event)
    return relay.on_data


async def counted(path: str, count: int) -> None:
    """Feed the events while callgrind counts: what the child process does."""
    feed, data = await feeding(path), events(count)
    _control("--instr=on")
    for event in data:
        feed(event)
    _control("--dump=fed")
    _control("--instr=off")


def _control(order: str) -> None:
    said = subprocess.run(["callgrind_control", order, str(os.getpid())], capture_output=True, text=True, check=False)
    if "OK" not in said.stdout:
        raise RuntimeError(f"callgrind_control {order}: {said.stdout} {said.stderr}")


def instructions(path: str, count: int) -> float:
    """Instructions of a child process that feeds this many events."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes", f"--callgrind-out-file={folder}/out")
        child = ("valgrind", *options, sys.executable, "-m", "bench.translation", CHILD, path, "--events", str(count))
        subprocess.run(child, check=True, env={**os.environ, "PYTHONHASHSEED": "0"}, stderr=subprocess.DEVNULL)
        dumps = [read_dump(file.read_text()) for file in Path(folder).glob("out*-*")]
    return float(sum(by_thread(dumps, "fed").values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=2000, help="events of each run")
    parser.add_argument(CHILD, default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.counted:
        asyncio.run(counted(given.counted, given.events))
        return
    if shutil.which("valgrind") is None:
        print("skipped: valgrind is not installed (apt install valgrind)")
        return
    print("| route | instructions per streamed event | over a passed one |\n|---|---|---|")
    passed = 0.0
    for path in (CHAT, MESSAGES, RESPONSES):
        # the difference of two runs, so that what both do otherwise cancels out
        each = (instructions(path, 3 * given.events) - instructions(path, given.events)) / (2 * given.events)
        passed = passed or each
        print(f"| `{path}` | {each:,.0f} | {each / passed:.2f} |", flush=True)
    print(f"goal: at most {GOAL:g} times a passed event")


if __name__ == "__main__":
    main()
