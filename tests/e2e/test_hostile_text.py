"""Secrets and hostile text through a running gateway: what must never be seen again is not, and every request is one honest line."""

import asyncio
import json
import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from backends.simengine import FaultRule, SimEngine, SimSettings
from gateway.cli.admin_client import API
from tests.e2e.test_serve import Served, ask, serving
from tests.scale import scaled
from tests.scripted_server import Peer, scripted
from tests.timing import HANG_S

CHAT = "/v1/chat/completions"
LETTERS = string.ascii_letters + string.digits
CANARIES = 200
ATTACKS = [
    "a\r\nat=1", "a\n{\"at\":1}", "\x1b[2J\x1b[31mroot", "\u202eevil", "\u2066x\u2069", "\x00", "\x08\x08", "\u2028{}", "\x9b31m", "\ufeff",
    "${jndi:ldap://x}", "%0d%0aat=1", "\\r\\n", '","outcome":"ok', "\ud83d\ude00" * 50, "\u0085", "<script>", "'; DROP TABLE api_key; --",
]  # fmt: skip


async def sent(served: Served, head: bytes, body: bytes = b"") -> tuple[int, bytes]:
    """One request of exactly these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(head + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
    reply = await asyncio.wait_for(reader.read(), HANG_S)
    writer.close()
    return int(reply.split()[1]), reply


async def log_lines(served: Served, count: int) -> list[dict[str, Any]]:
    """Every line of the access log, once there are `count`; each must be one JSON object."""
    path = served.home / "out.log"
    async with asyncio.timeout(HANG_S):
        while path.read_bytes().count(b"\n") < count:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.4)  # longer than the log gathers lines: what came too many would be there
    raw = path.read_bytes()
    assert len(raw.decode().splitlines()) == raw.count(b"\n")
    return [json.loads(line) for line in raw.splitlines()]


@asynccontextmanager
async def engine_saying(text: str) -> AsyncIterator[str]:
    """An engine that polls well and refuses every request with a text, in body and headers."""

    async def serve(peer: Peer) -> None:
        while request := await peer.request():
            kind, body = b"200 OK", b'{"object":"list","data":[{"id":"sim"}]}'
            if request.startswith(b"POST"):
                kind, body = b"500 Oops", json.dumps({"error": {"message": text, "type": text}}).encode()
            lines = b"content-type: application/json\r\nx-debug: %b\r\nset-cookie: a=%b\r\n" % (text.encode(), text.encode())
            await peer.send(b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (kind, lines, len(body), body))

    async with scripted(serve) as server:
        yield f"http://127.0.0.1:{server.port}"


def planted(rng: random.Random, key: str) -> list[tuple[str, bytes, bytes]]:
    """(canary, head, body) of requests with a secret each, in every place that a caller can put one."""
    found = []
    for at in range(CANARIES):
        secret = "".join(rng.choices(LETTERS, k=43))
        auth, headers, path, body = f"Bearer {key}", "", CHAT, ask()
        match at % 20:
            case 0:
                auth = f"Bearer gw_live_abcdefghij_{secret}123456"
            case 1:
                auth = f"Bearer sk-{secret}"
            case 2:
                auth = f"Bearer eyJhbGciOiJSUzI1NiJ9.{secret}.{secret}"
            case 3:
                auth = f"Basic {secret}"
            case 4:
                auth, headers = "", f"x-api-key: {secret}\r\n"
            case 5:
                headers = f"cookie: session={secret}\r\n"
            case 6:
                headers = f"x-request-id: {secret} {secret}\r\n"
            case 7:
                headers = f"x-secret: {secret}\r\nproxy-authorization: Basic {secret}\r\n"
            case 8:
                body = ask(messages=[{"role": "user", "content": secret}])
            case 9:
                body = ask(messages=[{"role": "user", "content": secret}], stream=True)
            case 10:
                body = ask(messages=[{"role": "system", "content": secret}, {"role": "user", "content": 7}])
            case 11:
                body = ask(messages=[{"role": "user", "name": secret, "content": [{"type": "text", "text": secret}, 7]}])
            case 12:
                body = ask(user=secret, metadata={"k": secret})
            case 13:
                body = ask(temperature=secret)
            case 14:
                body = ask(tools=[{"type": "function", "function": {"name": "f", "description": secret, "parameters": secret}}])
            case 15:
                path = f"{CHAT}?api_key={secret}"
            case 16:
                body = ask(stop=[secret] * 100)
            case 17:
                body = ask(response_format={"type": secret})
            case 18:
                headers = f"host: {secret}@x\r\n"
            case 19:
                headers = f"content-encoding: {secret}\r\n"
        host = "" if headers.startswith("host") else "host: x\r\n"
        authorization = f"authorization: {auth}\r\n" if auth else ""
        head = f"POST {path} HTTP/1.1\r\n{host}{authorization}{headers}content-type: application/json\r\n"
        raw = json.dumps(body).encode()
        found.append((secret, head.encode(), raw[:-1] if at % 40 == 28 else raw))  # some of them no JSON
    return found


@pytest.mark.slow
@pytest.mark.req("R37")
async def test_no_planted_secret_is_seen_again(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    engine_secret = "".join(random.Random(1).choices(LETTERS, k=43))
    async with engine_saying(engine_secret) as bad, SimEngine(SimSettings(models=("sim",), speed=1000)) as good:
        for engine, home, every in ((good.url, tmp_path / "good", 1), (bad, tmp_path / "bad", 4)):
            home.mkdir()
            async with serving(home, engine) as served:
                requests = planted(random.Random(37), served.headers["authorization"].removeprefix("Bearer "))[::every]
                answers = [await sent(served, head, body) for _, head, body in requests]
                async with httpx.AsyncClient(trust_env=False, timeout=HANG_S) as client:
                    pages = "".join([(await client.get(f"{served.admin}{path}")).text for path in ("/metrics", "/backends", "/readyz")])
                await log_lines(served, len(requests))
                logs = (home / "out.log").read_text() + (home / "err.log").read_text()
                errors = b"".join(reply for status, reply in answers if status >= 400).decode("utf-8", "replace")
                streamed = b"".join(reply for status, reply in answers if b'"error"' in reply).decode("utf-8", "replace")
                secrets = [secret for secret, _, _ in requests] + [engine_secret]
                seen = {where: [s for s in secrets if s in text or s[:12] in text] for where, text in
                        {"logs": logs, "pages": pages, "errors": errors + streamed}.items()}  # fmt: skip
                assert seen == {"logs": [], "pages": [], "errors": []}
                assert sum(status >= 400 for status, _ in answers) >= len(answers) // 2
    record_property("figure", f"{CANARIES} canaries, 0 seen")  # type: ignore[operator]  # pytest's fixture is a function


ADMIN_TOKEN = "an-admin-token-of-32-characters!"
GUARDED = """\
tenant: "*"
models:
  - {name: sim, pool: chat}
guards:
  rules:
    - {id: people, kind: pii, mode: redact, types: [email], on: [input, output, tool_arguments, tool_results]}
    - {id: doors, kind: words, words: ["open sesame"], mode: block}
    - {id: trial, kind: words, words: ["trial"], mode: shadow}
"""


@asynccontextmanager
async def engine_answering(text: str) -> AsyncIterator[str]:
    """An engine that polls well and answers every chat with a text."""

    async def serve(peer: Peer) -> None:
        while request := await peer.request():
            body: dict[str, Any] = {"object": "list", "data": [{"id": "sim"}]}
            if request.startswith(b"POST"):
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
                usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
                body = {"id": "x", "object": "chat.completion", "created": 1, "model": "sim", "choices": [choice], "usage": usage}
            raw = json.dumps(body).encode()
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(raw), raw))

    async with scripted(serve) as server:
        yield f"http://127.0.0.1:{server.port}"


def guarded_bodies(canary: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests that guard rules change, refuse, only note, or cannot read, each with the canary in what they look at."""
    mail, call = (
        f"{canary}@example.com",
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": f'{{"to": "{canary}@b.io"}}'}},
    )
    turns = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": mail}]
    parts = [{"type": canary, canary: mail}, {"type": "text", "text": canary}]
    return [
        (CHAT, ask(messages=[{"role": "user", "content": f"write to {mail}"}])),
        (CHAT, ask(messages=[{"role": "user", "content": f"open sesame {canary}"}])),
        (CHAT, ask(messages=[{"role": "user", "content": f"a trial of {canary}"}])),
        (CHAT, ask(messages=[{"role": "user", "content": "go"}, *turns])),
        (CHAT, ask(messages=[{"role": "user", "content": parts}])),
        (CHAT, ask(guardrails=[canary])),
        ("/v1/guard", {"input": [mail, f"open sesame {canary}"]}),
        ("/v1/guard", {"input": canary, "guardrails": [canary]}),
        ("/v1/guard", {"input": canary, canary: canary, "direction": canary}),
        ("/v1/moderations", {"input": [{"type": "text", "text": mail}], "model": canary}),
        ("/v1/moderations", {"input": mail}),
    ]


@pytest.mark.req("R37")
async def test_what_guard_rules_look_at_is_written_down_nowhere(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    """Logs, metrics, explanations, the ledger, the audit and every other file: rules, kinds and numbers, and no text."""
    (tmp_path / "guarded").mkdir()
    (tmp_path / "guarded" / "default.yaml").write_text(GUARDED)
    (tmp_path / "token").write_text(ADMIN_TOKEN)
    more = "policies: guarded\nsecrets: {admin_token: {file: token}}\n"
    canary, said = ("".join(random.Random(seed).choices(LETTERS, k=32)).lower() for seed in (2, 3))
    async with engine_answering(f"ask {said}@example.com") as engine, serving(tmp_path, engine, more=more) as served:
        requests, operator = guarded_bodies(canary), {"authorization": f"Bearer {ADMIN_TOKEN}"}
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S, headers=served.headers) as client:
            replies = [await client.post(f"{served.url}{path}", json=body) for path, body in requests]
            ids = [reply.headers["x-tidegate-request-id"] for reply in replies]
            lines = await log_lines(served, len(requests))
            pages = (await client.get(f"{served.admin}/metrics")).text
            rows: list[dict[str, Any]] = []
            async with asyncio.timeout(HANG_S):
                while not rows:  # the block is booked behind its request
                    await asyncio.sleep(0.1)
                    rows = (await client.get(f"{served.admin}{API}/audit?action=guard", headers=operator)).json()["items"]
            paths = ("usage?by=tenant&by=key&by=model", *(f"requests/{one}/explanation" for one in ids[:4]))
            answers = [await client.get(f"{served.admin}{API}/{path}", headers=operator) for path in paths]
            explained = "".join([answer.raise_for_status().text for answer in answers])
    assert [reply.status_code for reply in replies[:3]] == [200, 400, 200]
    assert [row["target"] for row in rows] == ["tenant/acme/guard/doors"]
    assert rows[0]["after"]["request_id"] == ids[1]
    found = {line["request_id"]: line.get("guard_found", "") for line in lines}
    assert found[ids[0]].startswith("people:email:redact:input=1")
    assert found[ids[1]] == "doors:word:block:input=1"
    assert 'tidegate_guard_verdicts_total{tenant="acme",verdict="block"} 1.0' in pages
    assert '"guards":"block by doors in input; found doors:word:block:input=1"' in explained
    files = b"".join(file.read_bytes() for file in sorted(tmp_path.rglob("*")) if file.is_file())
    everything = {"pages": pages, "explanations and usage": explained, "audit": json.dumps(rows), "files": files.decode("latin-1")}
    for secret in (canary, said):
        assert [where for where, text in everything.items() if secret in text.lower()] == []
    record_property("figure", f"{len(requests)} requests, 0 canaries seen")  # type: ignore[operator]  # pytest's fixture is a function


@pytest.mark.req("R39")
async def test_each_request_is_one_line_whatever_it_says(tmp_path: Path) -> None:
    async with SimEngine(SimSettings(models=("sim",), speed=1000)) as engine, serving(tmp_path, engine.url) as served:
        count = 0
        for attack in ATTACKS:
            raw = attack.encode("utf-8", "surrogatepass")
            line = raw.replace(b"\r", b"").replace(b"\n", b"").replace(b"\0", b"")  # what can stand in a header at all
            auth = served.headers["authorization"].encode()
            for head, body in (
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\n" % (CHAT.encode(), line), ask()),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\nx-request-id: %b\r\n" % (CHAT.encode(), auth, line), ask()),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\nuser-agent: %b\r\n" % (CHAT.encode(), auth, line), ask()),
                (b"POST %b HTTP/1.1\r\nhost: %b\r\nauthorization: %b\r\n" % (CHAT.encode(), line, auth), ask()),
                (b"POST /v1/%b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (line, auth), ask()),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (CHAT.encode(), auth), ask(model=attack)),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (CHAT.encode(), auth), ask(user=attack)),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (CHAT.encode(), auth), ask(messages=attack)),
                (b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: %b\r\n" % (CHAT.encode(), auth), ask(**{attack: 1})),
            ):
                await sent(served, head + b"content-type: application/json\r\n", json.dumps(body).encode())
                count += 1
        lines = await log_lines(served, count)
        assert len(lines) == count
        assert all(set(line) >= {"at", "request_id", "outcome", "status"} for line in lines)
        raw = (tmp_path / "out.log").read_text() + (tmp_path / "err.log").read_text()
        assert [c for c in "\x1b\x9b\x85\x00\x08\x7f\u202e\u2066\u2069\u2028\u2029\ufeff" if c in raw] == []


def worker_rss_mb(served: Served) -> float:
    """Resident memory of its only worker."""
    (pid,) = [s["pid"] for s in json.loads((served.home / "run" / "supervisor.json").read_text())["slots"] if s["name"] == "worker-0"]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@pytest.mark.slow
@pytest.mark.req("R38")
async def test_random_names_make_no_series(tmp_path: Path, record_property: pytest.FixtureRequest) -> None:
    many, rng = scaled(1_500, 100_000), random.Random(38)
    faults = (FaultRule("status_500", p=0.05),)
    async with SimEngine(SimSettings(models=("sim",), speed=5000, faults=faults)) as engine, serving(tmp_path, engine.url) as served:
        async with httpx.AsyncClient(trust_env=False, timeout=HANG_S, limits=httpx.Limits(max_connections=16)) as client:

            async def series() -> int:
                text = (await client.get(f"{served.admin}/metrics")).text
                return sum(not line.startswith("#") for line in text.splitlines())

            def word() -> str:
                return "".join(rng.choices(LETTERS + "-./", k=rng.randrange(1, 60)))

            async def one(at: int) -> None:
                headers = {"x-request-id": word(), "user-agent": word(), f"x-{rng.randrange(10**9)}": word()}
                headers |= served.headers if at % 5 else {"authorization": f"Bearer {word()}"}
                body = ask(model="sim" if at % 3 == 0 else word(), user=word(), metadata={word(): word()})
                path = CHAT if at % 7 else f"/v1/{word()}"
                await client.post(f"{served.url}{path}", json=body, headers=headers)

            for _ in range(2):
                for at in range(40):  # each kind of answer once, so that its own series are there
                    await one(at)
            before, rss_before = await series(), worker_rss_mb(served)
            for start in range(0, many, 16):
                await asyncio.gather(*(one(at) for at in range(start, start + 16)))
            after, grown_mb = await series(), worker_rss_mb(served) - rss_before
    # a kind of failure that was not among the first requests may add its own few
    assert after - before <= 60, (before, after)
    assert grown_mb <= 20
    record_property("figure", f"{many} requests of random names: {before} series before, {after} after, {grown_mb:+.1f} MB")  # type: ignore[operator]  # as above
