"""Replays a workload at one gateway: each request when it is due, whatever became of the others; a conversation's next turn its think
time after the answer. One process, streams read as they come."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from routing.simulation.turns import Workload


class Sample(msgspec.Struct):
    """What became of one request; times from when it was due."""

    due_s: float
    late_s: float
    """How much later it was sent."""
    ttft_s: float | None = None
    e2e_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


class Replay:
    def __init__(self, url: str, key: str, workload: Workload, bodies: list[bytes]) -> None:
        self._url, self._key = url + "/v1/chat/completions", key
        self._workload, self._bodies = workload, bodies
        self._followers: dict[int, list[int]] = {}
        for number, turn in enumerate(workload.turns):
            if turn.after >= 0:
                self._followers.setdefault(turn.after, []).append(number)
        self.samples: list[Sample] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, warm_s: float, at_warm: Callable[[], Any], drain_s: float = 40.0) -> Any:
        """Everything, and what `at_warm` said when the warm-up was over."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as self._session:
            self._began = time.monotonic() + 0.2
            firsts = sorted((turn.at_s, n) for n, turn in enumerate(self._workload.turns) if turn.after < 0)
            warmed = asyncio.create_task(self._at(warm_s, at_warm))
            for at, number in firsts:
                await asyncio.sleep(max(0.0, self._began + at - time.monotonic()))
                self._spawn(number, at)
            deadline = time.monotonic() + drain_s
            while self._tasks and time.monotonic() < deadline:
                await asyncio.wait(set(self._tasks), timeout=deadline - time.monotonic(), return_when=asyncio.FIRST_COMPLETED)
            for task in self._tasks:
                task.cancel()
            return await warmed

    async def _at(self, after_s: float, say: Callable[[], Any]) -> Any:
        await asyncio.sleep(max(0.0, self._began + after_s - time.monotonic()))
        return await asyncio.to_thread(say)

    def _spawn(self, number: int, due_s: float) -> None:
        task = asyncio.create_task(self._one(number, due_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, number: int, due_s: float) -> None:
        due = self._began + due_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        sample = Sample(due_s, time.monotonic() - due, error="not over in time")
        self.samples.append(sample)
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        try:
            async with self._session.post(self._url, data=self._bodies[number], headers=headers) as reply:
                if reply.status != 200:
                    sample.error = f"{reply.status}: {(await reply.text())[:200]}"
                else:
                    await self._read(reply, sample, due)
        except (aiohttp.ClientError, TimeoutError) as error:
            sample.error = f"{type(error).__name__}: {error}"
        over = time.monotonic()
        for follower in self._followers.get(number, ()):
            self._spawn(follower, over - self._began + self._workload.turns[follower].think_s)

    async def _read(self, reply: aiohttp.ClientResponse, sample: Sample, due: float) -> None:
        last = b""
        async for chunk in reply.content.iter_any():
            if sample.ttft_s is None and b'"content":"' in chunk.replace(b'"content":""', b"").replace(b'": "', b'":"'):
                sample.ttft_s = time.monotonic() - due
            last = (last + chunk)[-4096:]
        if b"data: [DONE]" not in last or sample.ttft_s is None:
            sample.error = "ended early"
            return
        sample.e2e_s, sample.error = time.monotonic() - due, ""
        for line in reversed(last.split(b"\n")):
            if line.startswith(b"data: {") and b'"prompt_tokens"' in line:
                with contextlib.suppress(msgspec.DecodeError, KeyError, TypeError):
                    usage = msgspec.json.decode(line[6:])["usage"]
                    sample.prompt_tokens = usage["prompt_tokens"]
                    sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                return
