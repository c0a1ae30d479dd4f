"""The floor: two llhttp protocols on uvloop with one task per request between them and no feature at all. Not a gateway."""

import asyncio
import sys
from collections import deque
from typing import Any

import httptools
import uvloop


class Upstream(asyncio.Protocol):
    def __init__(self, pool: "deque[Upstream]") -> None:
        self.pool = pool
        self.caller: Caller | None = None
        self.parser: Any = httptools.HttpResponseParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        if self.caller is not None:
            self.caller.transport.write(data)
            if self.complete:
                caller, self.caller = self.caller, None
                self.complete = False
                self.pool.append(self)
                caller.done.set_result(None)

    complete = False

    def on_message_complete(self) -> None:
        self.complete = True


class Caller(asyncio.Protocol):
    def __init__(self, engines: list[tuple[str, int]], pools: list["deque[Upstream]"]) -> None:
        self.engines, self.pools = engines, pools
        self.parser: Any = httptools.HttpRequestParser(self)
        self.raw: list[bytes] = []
        self.turn = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.raw.append(data)
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        loop = asyncio.get_running_loop()
        self.done = loop.create_future()
        request, self.raw = b"".join(self.raw), []
        self.task = loop.create_task(self.serve(request))

    async def serve(self, request: bytes) -> None:
        self.turn = (self.turn + 1) % len(self.engines)
        pool = self.pools[self.turn]
        if pool:
            upstream = pool.pop()
        else:
            _, upstream = await asyncio.get_running_loop().create_connection(lambda: Upstream(pool), *self.engines[self.turn])
        upstream.caller = self
        upstream.transport.write(request)
        await self.done


async def main(port: int, urls: list[str]) -> None:
    engines = [(host, int(number)) for host, _, number in (url.removeprefix("http://").partition(":") for url in urls)]
    pools: list[deque[Upstream]] = [deque() for _ in engines]
    await asyncio.get_running_loop().create_server(lambda: Caller(engines, pools), "127.0.0.1", port, backlog=4096)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), sys.argv[2:]))
