"""What-if simulations over the API: who may ask, what is refused, and a comparison from its start to its result."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenancy.request_log import Cursor, LoggedRequest, RequestFilter
from tests.admin_harness import API, Admin, admin_port, bearer
from tests.timing import until

SIMULATIONS = f"{API}/simulations"
ASKED: dict[str, Any] = {
    "workload": "chat",
    "fleet": {"engines": [{"machine": "h100-8b", "count": 2}]},
    "policies": ["predicted_latency", "least_load"],
    "limit": 400,
}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


def is_over(admin: Admin) -> bool:
    desk = admin.parts.simulations
    return desk is not None and desk.last is not None and desk.last.state != "running"


async def test_a_comparison_runs_in_a_process_of_its_own_and_its_result_is_shown(admin: Admin) -> None:
    operator = bearer("operator")
    known = (await admin.client.get(SIMULATIONS, headers=operator)).json()
    assert known["last"] is None
    assert {"chat", "agents"} <= set(known["workloads"])
    assert {"h100-8b", "least_load"} <= {*known["machines"], *known["policies"]}
    started = await admin.client.post(SIMULATIONS, json=ASKED, headers=operator)
    assert (started.status_code, started.json()["state"], started.json()["by"]) == (202, "running", "key oper@acme")
    second = await admin.client.post(SIMULATIONS, json=ASKED, headers=operator)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "simulation_runs")
    await until(lambda: is_over(admin))
    last = (await admin.client.get(SIMULATIONS, headers=operator)).json()["last"]
    assert (last["state"], last["error"], last["of"]) == ("done", "", 800)
    assert [policy["policy"] for policy in last["result"]["policies"]] == ASKED["policies"]
    assert set(known["figures"]) <= set(last["result"]["policies"][0]["mean"])


async def test_a_running_one_can_be_cancelled(admin: Admin) -> None:
    await admin.client.post(SIMULATIONS, json={**ASKED, "limit": 20_000}, headers=bearer("operator"))
    ended = await admin.client.post(f"{SIMULATIONS}/cancel", headers=bearer("admin"))
    assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")
    again = await admin.client.post(f"{SIMULATIONS}/cancel", headers=bearer("admin"))
    assert (again.status_code, again.json()["error"]["code"]) == (409, "no_simulation")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"fleet": {"engines": [{"machine": "h100"}]}}, "fleet.engines.0.machine"),
        ({"policies": ["least_lod"]}, "policies.0"),
        ({"seeds": 99}, "seeds"),
        ({"workload": "none"}, "workload"),
    ],
)
async def test_a_mistake_names_its_field(admin: Admin, change: dict[str, Any], param: str) -> None:
    reply = await admin.client.post(SIMULATIONS, json={**ASKED, **change}, headers=bearer("operator"))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


async def test_only_those_who_run_the_gateway_may_simulate(admin: Admin) -> None:
    for role, status in (("auditor", 403), ("billing", 403), ("tenant-admin", 403), ("none", 401)):
        assert (await admin.client.get(SIMULATIONS, headers=bearer(role))).status_code == status
        assert (await admin.client.post(SIMULATIONS, json=ASKED, headers=bearer(role))).status_code == status


async def test_the_last_requests_of_the_log_are_replayed_oldest_first_and_without_a_log_it_is_said(admin: Admin) -> None:
    recent = {**ASKED, "workload": None, "recent": True}
    object.__setattr__(admin.parts, "requests", None)
    refused = await admin.client.post(SIMULATIONS, json=recent, headers=bearer("operator"))
    assert (refused.status_code, refused.json()["error"]["code"], refused.json()["error"]["param"]) == (409, "no_request_log", "recent")
    log = Log(1600)
    object.__setattr__(admin.parts, "requests", log)
    started = await admin.client.post(SIMULATIONS, json={**recent, "limit": 1500}, headers=bearer("operator"))
    assert started.status_code == 202
    assert log.asked == [1000, 500]
    await until(lambda: is_over(admin))
    last = (await admin.client.get(SIMULATIONS, headers=bearer("operator"))).json()["last"]
    assert (last["state"], last["error"], last["result"]["requests"]) == ("done", "", 1500)
    object.__setattr__(admin.parts, "requests", Log(0))
    empty = await admin.client.post(SIMULATIONS, json=recent, headers=bearer("operator"))
    assert (empty.status_code, empty.json()["error"]["code"]) == (409, "no_requests")


class Log:
    """A request log with so many requests, one a second."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []

    async def page(self, _wanted: RequestFilter, _order: str, after: Cursor | None, limit: int) -> list[LoggedRequest]:
        self.asked.append(limit)
        begin = self.count - 1 if after is None else after[0] - 1
        return [self.request(number) for number in range(begin, max(-1, begin - limit), -1)]

    def request(self, number: int) -> LoggedRequest:
        at = datetime.fromtimestamp(1_800_000_000 + number, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        line = {"at": at, "request_id": f"r{number}", "outcome": "ok", "tenant": "acme", "model": "sim", "prompt_tokens": 80}
        told = {**line, "completion_tokens": 9, "duration_us": 900_000}
        return LoggedRequest(at_us=number, id=f"r{number}", duration_us=900_000, line=msgspec.json.encode(told))
