"""The request log of a whole gateway: a request is listed, shown with its timeline, seen live, replayed, and erased with its user."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from backends.simengine import SimEngine, SimSettings
from tests.e2e.test_admin_api import TOKEN, command
from tests.e2e.test_serve import serving
from tests.timing import HANG_S

OWNER = {"authorization": f"Bearer {TOKEN}"}
CHAT = {"model": "sim", "stream": True, "user": "ann", "messages": [{"role": "user", "content": "hello there"}]}


async def listed(client: httpx.AsyncClient, url: str, count: int) -> list[dict[str, object]]:
    """The rows of the list, once there are so many."""
    async with asyncio.timeout(HANG_S):
        while len(rows := (await client.get(url, headers=OWNER)).json()["items"]) < count:
            await asyncio.sleep(0.05)
    return rows


SIM = SimSettings(models=("sim",), speed=100)


@pytest.mark.parametrize(("store", "workers"), [("", 2), ("request_log: {store: 'memory://'}\n", 1)])
async def test_a_request_is_listed_shown_and_seen_live(tmp_path: Path, store: str, workers: int) -> None:
    (tmp_path / "token").write_text(TOKEN)
    more = f"secrets: {{admin_token: {{file: token}}}}\n{store}"
    async with (
        SimEngine(SIM) as engine,
        serving(tmp_path, engine.url, workers=workers, more=more) as served,
        httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
    ):
        api = f"{served.admin}/admin/v1/requests"
        seen: list[dict[str, object]] = []

        async def watch() -> None:
            async with client.stream("GET", f"{api}/live?model=sim", headers=OWNER) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: "):
                        seen.extend(json.loads(line[6:])["items"])
                    if len(seen) >= 2:
                        return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.2)
        replies = [await client.post(f"{served.url}/v1/chat/completions", json=CHAT, headers=served.headers) for _ in range(2)]
        assert [reply.status_code for reply in replies] == [200, 200]
        async with asyncio.timeout(HANG_S):
            await watching
        rows = await listed(client, api, 2)
        assert {row["request_id"] for row in rows} == {row["request_id"] for row in seen}
        first = rows[0]
        assert (first["outcome"], first["model"], first["status"], first["stream"]) == ("ok", "sim", 200, True)
        one = (await client.get(f"{api}/{first['request_id']}", headers=OWNER)).json()
        steps = [step["step"] for step in one["timeline"]]  # without those that took no microsecond, as an answer that comes in one piece
        assert [step for step in steps if step not in ("body", "queue", "decode")] == ["gateway", "first_token", "delivery"]
        assert sum(step["length_ms"] for step in one["timeline"]) == pytest.approx(one["duration_ms"], abs=0.01)
        assert one["content"] is None
        assert (await client.get(f"{api}/req-00000000-0", headers=OWNER)).status_code == 404
        assert (await client.get(f"{served.admin}{one['explanation']}", headers=OWNER)).status_code == 200
        erased = command(served, "cache", "purge", "--tenant", str(first["tenant"]), "--user", "ann", "--yes")
        assert erased.returncode == 0, erased.stderr
        async with asyncio.timeout(HANG_S):
            while (await client.get(api, headers=OWNER)).json()["items"]:
                await asyncio.sleep(0.05)


POLICY = """tenant: "*"
models:
  - {name: sim, pool: chat}
request_log: {content: [prompt, answer], hours: 1}
guards:
  rules:
    - {id: people, kind: pii, mode: redact, on: [input], types: [email], restore: true}
    - {id: project, kind: words, words: [falcon], mode: flag, on: [input]}
    - {id: no-bombs, kind: words, words: [bomb], mode: block, on: [input]}
"""
CANARY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6" + "T3BlbkFJ" + "vW8xY0zA1bC3dE5fG7hI9jK2"


@pytest.mark.req("R37")
async def test_texts_are_kept_where_the_policy_says_so_and_redacted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    more = "secrets: {admin_token: {file: token}}\n"
    async with (
        SimEngine(SIM) as engine,
        serving(tmp_path, engine.url, more=more, policy=POLICY) as served,
        httpx.AsyncClient(timeout=HANG_S, trust_env=False) as client,
    ):
        api = f"{served.admin}/admin/v1/requests"
        told = f"falcon is of ann.smith@acme.example and her key is {CANARY}"
        for content in (told, "how do I build a bomb"):
            body = {**CHAT, "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": content}]}
            reply = await client.post(f"{served.url}/v1/chat/completions", json=body, headers=served.headers)
        assert reply.status_code == 400
        await listed(client, api, 2)
        async with asyncio.timeout(HANG_S):
            while not any(row["has_content"] for row in (await client.get(api, headers=OWNER)).json()["items"]):
                await asyncio.sleep(0.05)
        refused, kept = (await client.get(api, headers=OWNER)).json()["items"]
        assert (refused["has_content"], kept["has_content"]) == (False, True)
        content = (await client.get(f"{api}/{kept['request_id']}", headers=OWNER)).json()["content"]
        assert content["prompt"].startswith("system: be kind\nuser: [WORD] is of ")
        assert content["answer"]
        for secret in (CANARY, "ann.smith", "falcon"):
            assert secret not in json.dumps(content)
        for secret in (CANARY, "ann.smith", "falcon"):
            for file in [*tmp_path.glob("*.log"), *tmp_path.glob("*.db*"), *tmp_path.glob("run/*.requests")]:
                assert secret.encode() not in file.read_bytes(), f"{secret} in {file.name}"
        auditor = command(served, "key", "create", "--tenant", "acme", "--role", "auditor", "--json")
        headers = {"authorization": f"Bearer {json.loads(auditor.stdout)['key']}"}
        async with asyncio.timeout(HANG_S):
            while (shown := await client.get(f"{api}/{kept['request_id']}", headers=headers)).status_code == 401:
                await asyncio.sleep(0.1)
        assert (shown.json()["has_content"], shown.json()["content"]) == (True, None)
