"""The routes of the request log: filters, pages, what each role sees, and the live stream with its bounds and its end."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.routes.requests import CHECKED_EVERY, HEARTBEAT_EVERY, LIVE_ITEMS, MOST_STREAMS, _events
from gateway.record import Record
from gateway.request_log.collector import logged_request
from gateway.request_log.reader import RequestContent, RequestLog, sealed_content
from gateway.request_log.ring import RingLine
from gateway.telemetry.access_log import line_of
from tenancy.request_log import LoggedRequest, RequestFilter
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

AT = 1_800_000_000.0
SOFT = ("80 % of 100 tokens per minute of tenant acme",)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as admin:
        yield admin


def request(number: int, **fields: Any) -> LoggedRequest:
    made: dict[str, Any] = {
        "tenant": "acme",
        "model": "sim",
        "duration_s": number / 10,
        "overhead_s": 0.001,
        "outcome": "ok",
        "status": 200,
    }
    made |= fields
    outcome, status = made.pop("outcome"), made.pop("status")
    record = Record(f"req-{int(AT):08x}-{number}", AT + number, outcome, status, **made)
    return logged_request(RingLine(line_of(record)), 72)


def log_of(port: Admin) -> RequestLog:
    assert port.parts.requests is not None
    return port.parts.requests


async def keep(port: Admin, *requests: LoggedRequest, content: RequestContent | None = None) -> None:
    log = log_of(port)
    contents = [] if content is None else [sealed_content(log.sealer, one, content) for one in requests]
    await log.collector.store.add(requests, contents)


async def got(port: Admin, path: str, headers: dict[str, str] = OWNER) -> Any:
    reply = await port.client.get(f"{API}{path}", headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_requests_are_listed_in_pages_and_by_condition(port: Admin) -> None:
    await keep(port, request(1), request(2, tenant="bolt"), request(3, outcome="overloaded", status=503), request(4, duration_s=0.05))
    page = await got(port, "/requests?limit=3")
    assert ([row["at_unix"] - AT for row in page["items"]], page["store"], page["dropped"]) == ([4, 3, 2], "memory", 0)
    rest = await got(port, f"/requests?limit=3&cursor={page['next_cursor']}")
    assert ([row["at_unix"] - AT for row in rest["items"]], rest["next_cursor"]) == ([1], None)
    slowest = await got(port, "/requests?order=slowest&limit=2")
    assert [row["duration_ms"] for row in slowest["items"]] == [300, 200]
    following = await got(port, f"/requests?order=slowest&limit=2&cursor={slowest['next_cursor']}")
    assert [row["duration_ms"] for row in following["items"]] == [100, 50]
    for query, numbers in (
        ("failed=true", [3]),
        ("outcome=overloaded", [3]),
        ("tenant=bolt", [2]),
        ("min_duration_ms=200", [3, 2]),
        (f"since_unix={AT + 2}&until_unix={AT + 4}", [3, 2]),
        ("model=none", []),
    ):
        assert [row["at_unix"] - AT for row in (await got(port, f"/requests?{query}"))["items"]] == numbers, query
    (row,) = (await got(port, "/requests?tenant=bolt&records=true"))["items"]
    assert row["record"]["request_id"] == row["request_id"]
    for wrong in ("order=fastest", "cursor=x", "limit=0", "min_duration_ms=nan", "since_unix=-1", "unknown=1"):
        assert (await port.client.get(f"{API}/requests?{wrong}", headers=OWNER)).status_code == 400, wrong


async def test_one_request_has_its_timeline_and_what_it_met(port: Admin) -> None:
    slow = request(
        9,
        duration_s=1.9,
        queue_s=1.2,
        ttft_s=1.4,
        decode_s=0.4,
        attempts=2,
        stream=True,
        pool="chat",
        backend="e2",
        failed=("e1",),
        soft_limits=SOFT,
        promises=(("ttft", False), ("tpot", True)),
        trace_id="0123",
    )
    await keep(port, slow)
    shown = await got(port, f"/requests/{slow.id}")
    assert [step["step"] for step in shown["timeline"]] == ["gateway", "queue", "first_token", "decode", "delivery"]
    assert (shown["slowest_step"], shown["slowest_step_ms"]) == ("queue", 1200)
    assert (shown["failed"], shown["limits"], shown["slo_missed"], shown["trace_id"]) == (["e1"], list(SOFT), ["ttft"], "0123")
    assert shown["explanation"] == f"{API}/requests/{slow.id}/explanation"
    assert shown["record"]["queue_us"] == 1_200_000
    refused = request(8, outcome="key_invalid", status=401, tenant="")
    await keep(port, refused)
    assert (await got(port, f"/requests/{refused.id}"))["explanation"] is None


async def test_a_tenant_admin_sees_its_own_tenant_alone(port: Admin) -> None:
    await keep(port, request(1), request(2, tenant="bolt"))
    own = bearer("tenant-admin", "bolt")
    assert [row["tenant"] for row in (await got(port, "/requests", own))["items"]] == ["bolt"]
    foreign = await port.client.get(f"{API}/requests/{request(1).id}", headers=own)
    unknown = await port.client.get(f"{API}/requests/req-00000000-1", headers=own)
    assert (foreign.status_code, foreign.json()) == (unknown.status_code, unknown.json())
    assert foreign.status_code == 404
    assert (await port.client.get(f"{API}/requests?tenant=acme", headers=own)).status_code == 404
    assert (await port.client.get(f"{API}/requests/live?tenant=acme", headers=own)).status_code == 404
    assert (await port.client.get(f"{API}/requests", headers=bearer("none"))).status_code == 401


@pytest.mark.req("R37")
@pytest.mark.parametrize(
    ("role", "tenant", "sees"),
    [("owner", "acme", True), ("tenant-admin", "acme", True), ("admin", "acme", False), ("auditor", "acme", False)],
)
async def test_texts_are_for_those_who_may_read_them(port: Admin, role: str, tenant: str, sees: bool) -> None:
    content = RequestContent("user: <script>", "no", answer_cut=True, redacted=("email",))
    await keep(port, request(1), content=content)
    shown = await got(port, f"/requests/{request(1).id}", bearer(role, tenant))
    assert shown["has_content"]
    wanted = {"prompt": "user: <script>", "answer": "no", "prompt_cut": False, "answer_cut": True, "redacted": ["email"]}
    assert shown["content"] == (wanted if sees else None)
    assert b"script" not in log_of(port).collector.store._contents[request(1).id].sealed  # type: ignore[attr-defined]


async def test_requests_with_texts_are_found_for_whoever_judges_them(port: Admin) -> None:
    await keep(port, request(1), request(2), content=RequestContent("p", "a"))
    await keep(port, request(3))
    found = await log_of(port).sampled(AT, 1, "acme")
    assert [(one.id, content.answer) for one, content in found] == [(request(2).id, "a")]


async def test_the_live_stream_sends_what_finishes(port: Admin) -> None:
    log = log_of(port)
    turns: list[Any] = []

    async def sleep(_seconds: float) -> None:
        watcher = next(iter(log.collector._watchers))
        turn = len(turns)
        turns.append(None)
        if turn == 1:
            watcher.give([request(1), request(2, tenant="bolt")])
        if turn == 2:
            watcher.give([request(number) for number in range(3, 3 + LIVE_ITEMS + 5)])

    log.sleep = sleep
    call = await _call(port, "owner")
    stream = _events(log, call, RequestFilter(tenant="acme"), "Bearer owner@acme", "")
    events = [await anext(stream) for _ in range(4)]
    assert events[0] == b": live\n\n"
    first, second = (json.loads(event.partition(b"data: ")[2]) for event in events[1:3])
    assert ([row["request_id"] for row in first["items"]], first["dropped"]) == ([request(1).id], 0)
    assert (len(second["items"]), second["dropped"]) == (LIVE_ITEMS, 5)
    assert events[3] == b": heartbeat\n\n"
    assert len(turns) == 3 + HEARTBEAT_EVERY
    assert log.streams == 1
    await stream.aclose()
    assert (log.streams, log.collector._watchers) == (0, set())


async def test_the_live_stream_ends_when_the_key_does(port: Admin) -> None:
    log = log_of(port)
    call = await _call(port, "owner")
    stream = _events(log, call, RequestFilter(), "Bearer gone", "")
    events = [event async for event in stream]
    assert events == [b": live\n\n", b'event: end\ndata: {"reason":"revoked"}\n\n']
    # and when the key has lost a role, or belongs to another tenant now
    for authorization in ("Bearer auditor@acme", "Bearer owner@bolt"):
        events = [event async for event in _events(log, call, RequestFilter(), authorization, "")]
        assert b"revoked" in events[-1]
    assert CHECKED_EVERY <= 5, "a revoked key is refused within 5 s"


async def test_there_are_so_many_streams_and_no_more(port: Admin) -> None:
    log_of(port).streams = MOST_STREAMS
    refused = await port.client.get(f"{API}/requests/live", headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


async def _call(port: Admin, role: str) -> Any:
    """A call as the guard builds it."""
    from gateway.admin.call import AdminCall

    principal = await port.parts.authenticator.authenticate(f"Bearer {role}@acme", "GET", "/", "")
    return AdminCall(port.parts, principal, principal.roles, "", b"", None, None)
