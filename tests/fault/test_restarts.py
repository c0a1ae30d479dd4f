"""Restarts under load, with files that are good and files that are broken: no connection is refused, no request is lost, no stream cut."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_reconcile import worker_pid
from tests.e2e.test_serve import POLICY, Served, ask, serving
from tests.replicas import Reply, post
from tests.scale import LONG, scaled

pytestmark = pytest.mark.slow

ROUNDS = scaled(1, 20)
ACCEPT_S = 0.5
"""Callers that keep their connection send more often than that, so that each hears of the end in an answer."""
WITHIN_S = 120.0
REPLACED, STAYS, FAILS = "every process has been replaced", "the old process stays", "the new start fails"


class Callers:
    """Short requests on a connection each, others on a connection that is kept, and streams of about a second."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.key = served.headers["authorization"].removeprefix("Bearer ")
        self.short: list[Reply] = []
        self.streams: list[Reply] = []
        self.kept: list[int] = []
        self.stopped = False

    async def run_short(self) -> None:
        while not self.stopped:
            self.short.append(await post(self.served.port, "/v1/chat/completions", self.key, ask(max_tokens=1)))
            await asyncio.sleep(0.01)

    async def run_streams(self) -> None:
        while not self.stopped:
            body = ask(max_tokens=150, stream=True, ignore_eos=True)
            self.streams.append(await post(self.served.port, "/v1/chat/completions", self.key, body))

    async def run_kept(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            while not self.stopped:
                url = f"{self.served.url}/v1/chat/completions"
                try:
                    self.kept.append((await client.post(url, json=ask(max_tokens=1), headers=self.served.headers)).status_code)
                except httpx.TransportError:
                    self.kept.append(0)
                await asyncio.sleep(0.05)

    def lost(self) -> list[object]:
        """Whatever was not answered whole."""
        broken: list[object] = [reply for reply in self.short if reply.status != 200]
        broken += [reply for reply in self.streams if reply.status != 200 or reply.body.count(b"data: [DONE]") != 1]
        return broken + [status for status in self.kept if status != 200]


@asynccontextmanager
async def called(served: Served) -> AsyncIterator[Callers]:
    callers = Callers(served)
    work = [*(callers.run_short() for _ in range(6)), *(callers.run_streams() for _ in range(6)), *(callers.run_kept() for _ in range(4))]
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield callers
    finally:
        callers.stopped = True
        await asyncio.gather(*tasks)


def said(home: Path, what: str) -> int:
    return (home / "err.log").read_text().count(what)


async def signalled(served: Served, number: signal.Signals, answer: str) -> float:
    """Seconds until the log says so once more."""
    before, begun = said(served.home, answer), time.monotonic()
    os.kill(served.process.pid, number)
    while said(served.home, answer) == before:
        assert time.monotonic() - begun < WITHIN_S, (served.home / "err.log").read_text()[-3000:]
        await asyncio.sleep(0.05)
    return time.monotonic() - begun


async def asked_for(port: int, key: str, model: str) -> Reply:
    return await post(port, "/v1/chat/completions", key, ask(model=model, max_tokens=1))


@pytest.mark.fault("restart under load")
@pytest.mark.req("R21")
async def test_no_restart_loses_anything(tmp_path: Path, record_property: Any) -> None:
    policy, settings = tmp_path / "policies" / "default.yaml", tmp_path / "tidegate.yaml"
    took: dict[str, list[float]] = {"rolling": [], "whole": []}
    async with SimEngine(SimSettings(models=("sim",))) as engine:
        async with serving(tmp_path, engine.url, workers=2, accept_s=ACCEPT_S) as served:
            good = settings.read_text()
            async with called(served) as callers:
                await asyncio.sleep(0.5)
                for turn in range(ROUNDS):
                    before = [worker_pid(tmp_path, index) for index in (0, 1)]
                    policy.write_text(f"{POLICY}  - {{name: sim-{turn}, pool: chat}}\n")
                    took["rolling"].append(await signalled(served, signal.SIGHUP, REPLACED))
                    # an old worker answers by the old policy until it has stopped to accept
                    while (status := (await asked_for(served.port, callers.key, f"sim-{turn}")).status) != 200:
                        assert status == 404, "until the new policy is in force"
                        await asyncio.sleep(0.05)

                    policy.write_text(POLICY + "bogus: 1\n")
                    await signalled(served, signal.SIGHUP, STAYS)
                    policy.write_text(POLICY)
                    if LONG:
                        settings.write_text(good + "bogus: 1\n")
                        await signalled(served, signal.SIGUSR2, FAILS)
                        settings.write_text(good)

                    took["whole"].append(await signalled(served, signal.SIGUSR2, REPLACED))
                    assert not {worker_pid(tmp_path, index) for index in (0, 1)} & set(before)
                await asyncio.sleep(ACCEPT_S)
            served.process.terminate()
            assert await asyncio.to_thread(served.process.wait, 30) == 0
    lost = callers.lost()
    record_property(
        "figure",
        f"{ROUNDS} rolling and {ROUNDS} whole restarts and as many with broken files: {len(lost)} of {len(callers.short)} connections "
        f"refused or requests lost, of {len(callers.kept)} on kept connections and {len(callers.streams)} streams too; "
        f"a rolling one took up to {max(took['rolling']):.1f} s, a whole one {max(took['whole']):.1f} s",
    )
    log = (tmp_path / "err.log").read_text()
    assert lost == [], log[-6000:]
    assert "Traceback" not in log
