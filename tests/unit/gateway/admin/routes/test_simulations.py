"""What-if simulations over the API: who may ask, what is refused, and a comparison from its start to its result."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

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
