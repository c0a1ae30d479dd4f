"""How many backends each pool should have, over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from backends.signals import Signals
from gateway.placement.backend_state import BackendState
from gateway.telemetry.scaling_gauges import ROLES
from tests.admin_harness import API, OWNER, Admin, Processes, admin_port, bearer


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_each_pool_is_told_with_its_reasons(admin: Admin) -> None:
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    told = Signals(read_at=0.0, running=10, waiting=10, kv_usage=0.8, waiting_uncached_tokens=5_000)
    full = BackendState("chat", "e0", True, signals=told, state="up", running_now=10, waiting_now=10)
    processes.snapshots = [msgspec.structs.replace(processes.snapshots[0], fleet=(full,))]
    answer = await admin.client.get(f"{API}/scaling", headers=bearer("auditor"))
    assert answer.status_code == 200, answer.text
    chat, bare, *_ = answer.json()["pools"]
    assert (chat["pool"], chat["present"], chat["wanted"], chat["min"], chat["max"]) == ("chat", 1, 3, 2, 100)
    assert (chat["needed"], chat["busy"], chat["headroom"]) == (2.5, 2.0, 0.2)
    assert "160% of the KV cache" in chat["why"]
    assert chat["figures"]["queue_tokens_per_backend"] == 5_000 and chat["figures"]["goodput_deficit"] is None
    assert (bare["wanted"], bare["why"]) == (None, "the pool has no section scale")
    assert (chat["role"], bare["role"]) == ("both", "both")


async def test_engines_of_each_role_have_a_row_of_their_own(admin: Admin) -> None:
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    told = Signals(read_at=0.0, running=10, waiting=10, kv_usage=0.8, waiting_uncached_tokens=5_000)
    fleet = tuple(BackendState("pairs", role, True, signals=told, state="up", running_now=10, waiting_now=10, role=role) for role in ROLES)
    processes.snapshots = [msgspec.structs.replace(processes.snapshots[0], fleet=fleet)]
    answer = await admin.client.get(f"{API}/scaling", headers=bearer("auditor"))
    both, prefill, decode = (one for one in answer.json()["pools"] if one["pool"] == "pairs")
    assert [one["role"] for one in (both, prefill, decode)] == list(ROLES)
    assert (prefill["wanted"], prefill["max"]) == (3, 3)
    assert (decode["wanted"], decode["why"]) == (None, "the pool's scale_roles has no section decode")


async def test_a_tenants_admin_sees_no_pools_and_without_workers_nothing_is_told(admin: Admin) -> None:
    assert (await admin.client.get(f"{API}/scaling", headers=bearer("tenant-admin"))).status_code == 403
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    processes.snapshots = []
    away = await admin.client.get(f"{API}/scaling", headers=OWNER)
    assert (away.status_code, away.json()["error"]["code"]) == (503, "no_worker")
