"""A whole gateway with two workers: a canary that fails goes back by itself, is told, and nobody is on it afterwards."""

import asyncio
import hmac
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from tests.contract.test_ledger_crashes import database
from tests.e2e.test_serve import Served, ask, serving
from tests.scripted_server import Peer, scripted
from tests.timing import HANG_S, timely, until

pytestmark = pytest.mark.slow

CALM = 50
"""Requests in a row that tell whether some go to the canary."""
TOKEN, HOOK_SECRET = "a-token-of-more-than-24-characters", "another-secret-of-24-characters"
ROLLOUT = {
    "name": "broken",
    "baseline": "chat",
    "canary": "chat-v2",
    "steps": [{"share": 0.5, "min_s": 600.0, "max_s": 3600.0}, {"share": 1.0}],
    "warm_up_s": 0.0,
    "warm_up_requests": 0,
    "settle_s": 0.0,
    "interval_s": 1.0,
    "min_samples": 10,
}
MORE = """
  - name: chat-v2
    model: sim
    backends: [{{id: c0, url: "{canary}"}}]
secrets: {{admin_token: {{file: token}}}}
rollouts: {{webhook: {{url: "{hook}/told", secret: {{file: hook}}}}}}
"""


async def taken(peer: Peer) -> None:
    while await peer.request():
        await peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")


class Callers:
    """One request after another on new connections, so that both workers get some."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.answered: list[int] = []

    async def run(self) -> None:
        headers = {**self.served.headers, "connection": "close"}
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
            while True:
                reply = await client.post(f"{self.served.url}/v1/chat/completions", json=ask(), headers=headers)
                self.answered.append(reply.status_code)
                await asyncio.sleep(0.02)

    def failed(self) -> int:
        return sum(status != 200 for status in self.answered)


async def test_a_canary_that_fails_goes_back_by_itself(tmp_path: Path, record_property: Any) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "hook").write_text(HOOK_SECRET)
    good, bad = SimSettings(models=("sim",), speed=1000), SimSettings(models=("sim",), speed=1000, faults=(FaultRule("status_500"),))

    async with SimEngine(good) as engine, SimEngine(bad) as canary, scripted(taken) as hook:
        more = MORE.format(canary=canary.url, hook=hook.url)
        async with (
            serving(tmp_path, engine.url, workers=2, more=more) as served,
            httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
        ):
            api, owner = f"{served.admin}/admin/v1", {"authorization": f"Bearer {TOKEN}"}
            started = await client.post(f"{api}/rollouts", json=ROLLOUT, headers=owner)
            assert (started.status_code, started.json()["share"]) == (201, 0.5)
            callers = Callers(served)
            calling = [asyncio.create_task(callers.run()) for _ in range(4)]
            await until(lambda: callers.failed() >= 3)
            begun = time.monotonic()
            await until(lambda: len(hook.peers) > 1 and bool(hook.peers[-1].received))
            told_at = time.monotonic()
            # workers look once a second; of so many in a row, half would fail while the canary still gets some
            await until(lambda: callers.answered[-CALM:] == [200] * CALM)
            for task in calling:
                task.cancel()
            await asyncio.gather(*calling, return_exceptions=True)
            over = (await client.get(f"{api}/rollouts/broken", headers=owner)).json()
            rows = (await client.get(f"{api}/audit", headers=owner)).json()["items"]
            text = (await client.get(f"{served.admin}/metrics")).text
    head, _, body = hook.peers[-1].received.partition(b"\r\n\r\n")
    message = json.loads(body)
    assert (message["event"], message["rollout"], message["share"]) == ("rollout.rollback", "broken", 0.0)
    assert message["findings"][0]["metric"] == "errors"
    stamp, _, digest = head.decode().lower().partition("x-tidegate-signature: t=")[2].partition("\r\n")[0].partition(",v1=")
    assert digest == hmac.new(HOOK_SECRET.encode(), stamp.encode() + b"." + body, "sha256").hexdigest()
    assert (over["status"], over["open"], over["share"]) == ("rolled back", False, 0.0)
    assert 'tidegate_rollout_changes_total{change="rollout.rollback"} 1.0' in text
    assert [(row["actor"], row["action"]) for row in rows[:2]] == [("rollout", "rollout.rollback"), ("bootstrap", "rollout.start")]
    assert "worse" in rows[0]["after"]["reason"]
    record_property("figure", f"{told_at - begun:.1f} s from the third failure to the roll back")


@pytest.mark.fault("database away")
async def test_an_operators_abort_works_while_the_database_is_away(tmp_path: Path, record_property: Any) -> None:
    """In force on this gateway at once, and written down when the database is there again."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "pepper").write_text("a-pepper-of-more-than-32-characters!")
    sim = SimSettings(models=("sim",), speed=1000)

    async def canary_share(engine: SimEngine, callers: Callers) -> float:
        """The canary's share of the next requests."""
        before, asked = engine.count, len(callers.answered)
        await until(lambda: len(callers.answered) >= asked + CALM)
        return (engine.count - before) / (len(callers.answered) - asked)

    async with database("postgres", tmp_path) as db, SimEngine(sim) as engine, SimEngine(sim) as canary:
        more = MORE.format(canary=canary.url, hook="").split("secrets:")[0]
        more += f'secrets: {{admin_token: {{file: token}}, pepper: {{file: pepper}}}}\nstores: {{sql: "{db.url}"}}\n'
        async with (
            serving(tmp_path, engine.url, workers=2, more=more) as served,
            httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client,
        ):
            api, owner = f"{served.admin}/admin/v1", {"authorization": f"Bearer {TOKEN}"}
            assert (await client.post(f"{api}/rollouts", json=ROLLOUT, headers=owner)).status_code == 201
            callers = Callers(served)
            calling = [asyncio.create_task(callers.run()) for _ in range(4)]
            async with asyncio.timeout(HANG_S):
                while await canary_share(canary, callers) < 0.2:
                    pass
            await asyncio.to_thread(db.stop)
            await asyncio.sleep(2.0)
            assert await canary_share(canary, callers) > 0.2, "the outage alone sends nobody back"
            asked = time.monotonic()
            done = await client.post(f"{api}/rollouts/broken/abort", json={"reason": "wrong weights"}, headers=owner)
            assert (done.status_code, done.json().get("pending")) == (202, True), done.text
            answered_s = time.monotonic() - asked
            while await canary_share(canary, callers) > 0.0:  # requests that were under way, and workers that hear of it
                timely(time.monotonic() - asked, 5.0)
            await asyncio.to_thread(db.start)
            async with asyncio.timeout(HANG_S):
                while (over := await client.get(f"{api}/rollouts/broken", headers=owner)).json().get("status") != "rolled back":
                    await asyncio.sleep(0.1)
            assert await canary_share(canary, callers) == 0.0
            for task in calling:
                task.cancel()
            await asyncio.gather(*calling, return_exceptions=True)
            rows = (await client.get(f"{api}/audit", headers=owner)).json()["items"]
    assert over.json()["reason"] == "aborted: wrong weights (ordered while the database was away)"
    assert [(row["actor"], row["action"]) for row in rows[:2]] == [("bootstrap", "rollout.abort"), ("bootstrap", "rollout.start")]
    assert callers.failed() == 0
    record_property("figure", f"abort without the database answered after {answered_s:.2f} s, nobody on the canary after it")
