"""The notice of a spot engine, with several workers: it drains, its prefixes stay together elsewhere, no stream is cut within the notice.

There is no list of heirs (decision 0046): the first request of a prefix decides for those behind it, in whichever worker they arrive."""

import asyncio
import contextlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.process.worker_link import collect
from tests.e2e.test_backend_commands import TOKEN
from tests.e2e.test_continued_streams import SEAM
from tests.e2e.test_serve import Served, serving
from tests.e2e.test_siblings import POLICY, SETTINGS
from tests.timing import HANG_S, until

ENGINES, WORKERS, PREFIXES = 4, 3, 8
STREAM_TOKENS = 1200
"""A stream of so many tokens takes some seconds: it is under way when the notice comes, and ends within it."""
AT_MOST = 1.5
"""Engines that a prefix is computed on after the notice, on the mean: the streams under way let some look less busy than its own."""
TOLD_S = 0.2
"""Longer than workers take to tell each other."""


class Asker:
    """Asks over a new connection each time, so that the kernel spreads the requests over the workers."""

    def __init__(self, served: Served, client: httpx.AsyncClient) -> None:
        self._served = served
        self._client = client
        self.turn = 0

    async def ask(self, prefix: int, max_tokens: int = 2) -> tuple[str, bytes]:
        """One more turn of a prefix; returns the backend and the body."""
        self.turn += 1
        text = " ".join(f"word{prefix}-{at}" for at in range(1500))
        messages = [{"role": "system", "content": text}, {"role": "user", "content": f"turn {self.turn}"}]
        body: dict[str, Any] = {"model": "sim", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
        body["stream_options"] = {"include_usage": True}
        headers = {**self._served.headers, "connection": "close"}
        reply = await self._client.post(f"{self._served.url}/v1/chat/completions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-tidegate-backend"], reply.content

    async def round(self, prefixes: list[int]) -> dict[int, tuple[str, int]]:
        """One turn of each prefix, one after the other; returns the backend, and the cached tokens of the prompt."""
        found = {}
        for prefix in prefixes:
            name, body = await self.ask(prefix)
            found[prefix] = name, usage_of(body)["prompt_tokens_details"]["cached_tokens"]
        await asyncio.sleep(TOLD_S)
        return found


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream that has come to its end."""
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    assert SEAM not in body, "no other engine has gone on with it"
    return [msgspec.json.decode(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]


def usage_of(body: bytes) -> dict[str, Any]:
    """What the engine says it has counted."""
    (usage,) = [event["usage"] for event in events_of(body) if event.get("usage")]
    return dict(usage)


async def drained(run_dir: Path, leaving: str) -> bool:
    """Whether every worker has heard that this backend drains."""
    workers = await collect(run_dir, 5.0, with_metrics=False)
    states = [one.state for worker in workers for one in worker.fleet if one.backend == leaving]
    return states == ["draining"] * WORKERS


@pytest.mark.slow
@pytest.mark.req("R11")
async def test_within_the_notice_streams_end_whole_and_prefixes_stay_together_elsewhere(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(SimEngine(SimSettings(models=("sim",)))) for _ in range(ENGINES)]
        listed = "\n".join(f'      - {{{{id: e{at}, url: "{engine.url}"}}}}' for at, engine in enumerate(engines))
        settings = (
            SETTINGS.format(share="true", backends=listed) + "    continue_streams: true\nsecrets: {{admin_token: {{file: token}}}}\n"
        )
        home = tmp_path / "home"
        home.mkdir()
        (home / "token").write_text(TOKEN)
        served = await stack.enter_async_context(serving(home, "", workers=WORKERS, settings=settings, policy=POLICY))
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=HANG_S))
        asker = Asker(served, client)
        before = await asker.round(list(range(PREFIXES)))
        leaving, count = Counter(name for name, _ in before.values()).most_common(1)[0]
        orphans = [prefix for prefix, (name, _) in before.items() if name == leaving]
        assert 2 <= count < PREFIXES
        begun = sum(engine.count for engine in engines)
        streams = [asyncio.create_task(asker.ask(prefix, STREAM_TOKENS)) for prefix in range(PREFIXES) for _ in range(2)]
        await until(lambda: sum(engine.count for engine in engines) == begun + len(streams))
        spot = engines[int(leaving[1:])]
        assert spot.in_flight >= len(orphans), "streams run on the engine that is to leave"
        drain = f"{served.admin}/admin/v1/backends/{leaving}/drain?grace_s=60"
        assert (await client.post(drain, headers={"authorization": f"Bearer {TOKEN}"})).status_code == 202
        async with asyncio.timeout(HANG_S):
            while not await drained(home / "run", leaving):
                await asyncio.sleep(0.05)
        assert spot.in_flight, "the notice came before they had ended"
        last = spot.count
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for _ in range(4):
            for prefix, seen in (await asker.round(orphans)).items():
                found[prefix].append(seen)
        assert leaving not in {name for turns in found.values() for name, _ in turns}
        spread = [len({name for name, _ in turns}) for turns in found.values()]
        assert sum(spread) <= AT_MOST * len(orphans), f"each prefix stays together: by chance it would be on 2.4 engines; {found}"
        whole = max(cached for turns in found.values() for _, cached in turns)
        anew = [sum(cached < whole / 2 for _, cached in turns) for turns in found.values()]
        assert sum(anew) <= AT_MOST * len(orphans), f"what was cached is computed once anew; {found}"
        for task in streams:
            _, body = await task
            assert usage_of(body)["completion_tokens"] == STREAM_TOKENS
        assert spot.count == last, "nothing new was sent to it"
