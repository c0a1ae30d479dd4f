"""The open-loop generator, a process of its own: each request when it is due, whatever became of the others.

`python -m bench.overload.load URL PLAN OUT`: PLAN has the keys and the requests, OUT gets one sample a line. Times count from when a
request was due, so that a generator or gateway that is late does not hide it. One connection per request under way, kept for the next one.
"""

import asyncio
import gc
import random
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
import uvloop

from bench.overload.plan import PATIENCE_S, Planned, body

DRAIN_S = 30.0
"""How long what was sent last is waited for."""
MOST_RETRY_AFTER_S = 60.0
"""What official clients wait at most when they are told to; beyond it they use their own delays."""


class Plan(msgspec.Struct):
    """What is to be sent."""

    keys: list[str]
    """By tenant."""
    requests: list[Planned]
    patience_s: float = PATIENCE_S
    """How long a caller waits for the first token before it leaves."""
    retries: int = 0
    """How often a caller tries again, as the official clients do it."""


class Sample(msgspec.Struct):
    """What became of one request, over all its attempts."""

    at_s: float
    tenant: int
    tier: str
    late_s: float = 0.0
    """How much later than due it was sent first."""
    attempts: int = 0
    ttft_s: float | None = None
    """From when it was due to the first text, of the attempt that was answered."""
    end_s: float = 0.0
    """When it was over, from the beginning of the run."""
    how: str = "open"
    """`ok`, `refused` (429 or 503), `left` (no token in time), or what went wrong."""
    status: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    refusals_s: list[float] = []
    """How long each refusal took, from the sending to the end of the answer."""


class Line(asyncio.Protocol):
    """One connection with at most one request on it."""

    def __init__(self, load: "Load") -> None:
        self.load = load
        self.transport: asyncio.Transport
        self.waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def ask(self, request: bytes) -> "asyncio.Future[None]":
        """Send; the future is done when the answer is over or will not come."""
        self.parser = httptools.HttpResponseParser(self)
        self.status, self.headers, self.first_at, self.tail = 0, {}, 0.0, b""
        self.whole = False
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.waiter

    def data_received(self, data: bytes) -> None:
        if self.waiter is None:
            self.transport.abort()
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self.first_at and self.status == 200 and b'"content":"' in data.replace(b'"content":""', b""):
            self.first_at = time.monotonic()
        self.tail = (self.tail + data)[-2048:]

    def on_message_complete(self) -> None:
        self.whole = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def release(self) -> None:
        """What came has been looked at: keep the connection for the next request, if it may be."""
        if self.whole and self.parser.should_keep_alive() and not self.transport.is_closing():
            self.load.idle.append(self)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.load.idle:
            self.load.idle.remove(self)
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class Load:
    """All requests of a plan."""

    def __init__(self, url: str, plan: Plan) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._plan = parts.hostname or "", parts.port or 80, plan
        self.idle: list[Line] = []
        self.samples: list[Sample] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._dice = random.Random(1)

    async def run(self) -> None:
        """Send everything, and wait for the last ones."""
        self._began = time.monotonic() + 0.5
        for one in self._plan.requests:
            await asyncio.sleep(max(0.0, self._began + one.at_s - time.monotonic()))
            task = asyncio.create_task(self._one(one))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_S)
        for task in self._tasks:
            task.cancel()

    async def _one(self, one: Planned) -> None:
        due = self._began + one.at_s
        sample = Sample(one.at_s, one.tenant, one.tier, time.monotonic() - due)
        self.samples.append(sample)
        content = body(one)
        while True:
            sample.attempts += 1
            try:
                retry_s = await self._attempt(one, sample, content, due)
            except OSError as error:
                sample.how, retry_s = type(error).__name__, self._own_delay(sample)
            sample.end_s = time.monotonic() - self._began
            if sample.how == "ok" or retry_s is None or sample.attempts > self._plan.retries:
                return
            await asyncio.sleep(retry_s)

    async def _attempt(self, one: Planned, sample: Sample, content: bytes, due: float) -> float | None:
        """One try; returns after how long to try again, None for not."""
        line = await self._line()
        sent = time.monotonic()
        waiter = line.ask(self._request(one, content, sample.attempts - 1))
        await asyncio.wait((waiter,), timeout=self._plan.patience_s)
        if not waiter.done() and not line.first_at:
            line.waiter = None
            line.transport.abort()
            sample.how, sample.status = "left", 0
            return self._own_delay(sample)
        await waiter
        line.release()
        return self._judged(line, sample, sent, due)

    def _judged(self, line: Line, sample: Sample, sent: float, due: float) -> float | None:
        sample.status = line.status
        if line.status == 200 and line.whole and b"data: [DONE]" in line.tail:
            sample.how, sample.ttft_s = "ok", line.first_at - due
            self._usage(line.tail, sample)
            return None
        if line.status in (429, 503) and line.whole:
            sample.how = "refused"
            sample.refusals_s.append(time.monotonic() - sent)
            return None if line.headers.get(b"x-should-retry") == b"false" else self._told_delay(line.headers, sample)
        sample.how = f"status {line.status}" if line.status != 200 else "cut"
        return self._own_delay(sample)

    async def _line(self) -> Line:
        while self.idle:
            line = self.idle.pop()
            if not line.transport.is_closing():
                return line
        _, made = await asyncio.get_running_loop().create_connection(lambda: Line(self), self._host, self._port)
        return made

    def _request(self, one: Planned, content: bytes, retry: int) -> bytes:
        return (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"authorization: Bearer {self._plan.keys[one.tenant]}\r\ncontent-type: application/json\r\nx-tidegate-class: {one.tier}\r\n"
            f"x-stainless-retry-count: {retry}\r\n"
            f"content-length: {len(content)}\r\n\r\n"
        ).encode() + content

    def _told_delay(self, headers: dict[bytes, bytes], sample: Sample) -> float:
        try:
            told = float(headers[b"retry-after-ms"]) / 1000 if b"retry-after-ms" in headers else float(headers[b"retry-after"])
        except (KeyError, ValueError):
            told = 0.0
        return told if 0 < told <= MOST_RETRY_AFTER_S else self._own_delay(sample)

    def _own_delay(self, sample: Sample) -> float:
        return min(8.0, 0.5 * 2.0 ** (sample.attempts - 1)) * (1 - 0.25 * self._dice.random())

    def _usage(self, tail: bytes, sample: Sample) -> None:
        for line in reversed(tail.split(b"\n")):
            if line.startswith(b"data: {") and b'"prompt_tokens"' in line:
                try:
                    usage = msgspec.json.decode(line[6:])["usage"]
                except msgspec.DecodeError:
                    return
                sample.prompt_tokens, sample.output_tokens = usage["prompt_tokens"], usage["completion_tokens"]
                sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                return


async def main(url: str, plan: Path, out: Path) -> None:
    load = Load(url, msgspec.json.decode(plan.read_bytes(), type=Plan))
    gc.freeze()
    gc.disable()
    await load.run()
    out.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in load.samples))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])))
