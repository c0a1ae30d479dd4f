"""The route of live values: its events, and its end with the caller's key."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from gateway.admin.call import AdminCall
from gateway.admin.live import LiveFeed
from gateway.admin.routes.live import CHECK_EVERY, live
from gateway.telemetry.live import WorkerLive
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as admin:
        moments = iter(range(1000, 10_000))

        async def ask() -> list[WorkerLive]:
            return []

        object.__setattr__(admin.parts, "live", LiveFeed(ask, lambda: float(next(moments)), lambda _seconds: asyncio.sleep(0)))
        yield admin


async def listened(port: Admin, authorization: str) -> AsyncIterator[Any]:
    """The events of an auditor's stream, on a connection that carries `authorization` from now on."""
    principal = await port.parts.authenticator.authenticate("Bearer auditor@acme", "GET", "/live", "")
    call = AdminCall(port.parts, principal, principal.roles, "", b"", None, None)
    request = Request({"type": "http", "headers": [(b"authorization", authorization.encode())]})
    reply = await live(call, request)
    assert isinstance(reply, StreamingResponse)
    assert reply.media_type == "text/event-stream"
    async for event in reply.body_iterator:
        assert isinstance(event, bytes)
        assert event.endswith(b"\n\n")
        kind, _, data = event.partition(b"\ndata: ")
        yield kind.removeprefix(b"event: ").decode(), json.loads(data)


async def test_the_samples_that_were_kept_come_first_and_then_each_new_one(port: Admin) -> None:
    stream = listened(port, "Bearer auditor@acme")
    events = [await anext(stream) for _ in range(2 * CHECK_EVERY)]
    assert events[0] == ("history", [])
    assert {kind for kind, _ in events[1:]} == {"sample"}
    assert events[1][1]["backends"] == []
    moments = [data["at_unix"] for _, data in events[1:]]
    assert moments == sorted(set(moments))
    await stream.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("now", ["Bearer gone", "Bearer billing@acme", "Bearer auditor@bolt"])
@pytest.mark.req("R34")
async def test_a_stream_ends_when_the_key_loses_what_it_began_with(port: Admin, now: str) -> None:
    events = [kind async for kind, _ in listened(port, now)]
    assert events == ["history", *["sample"] * (CHECK_EVERY - 1), "end"]
    assert CHECK_EVERY <= 5, "a revoked key is refused within 5 s"


async def test_an_admin_port_of_no_gateway_says_so(port: Admin) -> None:
    object.__setattr__(port.parts, "live", None)
    refused = await port.client.get(f"{API}/live", headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_supervisor")
    assert (await port.client.get(f"{API}/live", headers=bearer("tenant-admin"))).status_code == 403
