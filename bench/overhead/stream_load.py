"""Many streams at once, as cheap as a Python client can be: counts events and measures how late each one is.

Prints one JSON object: events seen in the window, streams that ended early, time to the first event, and the delay between
the engine's stamp (its monotonic clock, same host) and the arrival here.
"""

import asyncio
import json
import re
import sys
import time
from typing import Any

import uvloop

from bench.results_file import percentile

STAMP = re.compile(rb'"content":"(\d{12,})"')


class Stream(asyncio.Protocol):
    def __init__(self, load: "Load") -> None:
        self.load = load
        self.sent_at = 0.0
        self.first = True

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent_at, self.first = time.monotonic(), True
        self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        load = self.load
        if self.first and b"data: {" in data:
            self.first = False
            load.first_s.append(time.monotonic() - self.sent_at)
        if load.counting:
            load.events += data.count(b"data: {")
            found = STAMP.search(data)
            if found is not None:
                load.delays_ms.append((time.monotonic_ns() - int(found[1])) / 1e6)
        if data.endswith(b"0\r\n\r\n"):
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        load = self.load
        if self.first:  # a server may close a connection between replies, as llama.cpp's does after a hundred
            load.again = asyncio.ensure_future(load.open())
        else:
            load.lost += 1


class Load:
    def __init__(self, request: bytes, port: int) -> None:
        self.request = request
        self.port = port
        self.again: asyncio.Future[None] | None = None
        self.counting = False
        self.events = self.lost = 0
        self.first_s: list[float] = []
        self.delays_ms: list[float] = []

    async def open(self) -> None:
        """One more caller, or the same one again."""
        await asyncio.sleep(0.005)  # no more than a pause where a server accepts and closes
        try:
            await asyncio.get_running_loop().create_connection(lambda: Stream(self), "127.0.0.1", self.port)
        except OSError:
            self.lost += 1


async def main(port: int, key: str, model: str, streams: int, ramp_s: float, window_s: float) -> None:
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": "go"}], "stream": True, "max_tokens": 128}, separators=(",", ":")
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    load = Load(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode(), port)
    for _ in range(streams):
        await load.open()
        await asyncio.sleep(ramp_s / streams)
    await asyncio.sleep(1.0)
    load.counting = True
    print("counting", flush=True)
    await asyncio.sleep(window_s)
    load.counting = False
    result = {
        "events": load.events,
        "lost": load.lost,
        "first_ms": percentile(load.first_s, 0.5) * 1000 if load.first_s else None,
        "delay_p50_ms": percentile(load.delays_ms, 0.5) if load.delays_ms else None,
        "delay_p99_ms": percentile(load.delays_ms, 0.99) if load.delays_ms else None,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    port, key, model, streams, ramp, window = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(port), key, model, int(streams), float(ramp), float(window)))
