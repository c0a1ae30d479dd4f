"""How many backends each pool should have, over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from backends.signals import Signals
from gateway.placement.backend_state import BackendState
from gateway.telemetry.load_forecasts import LoadForecasts
from gateway.telemetry.scaling_gauges import ROLES, PoolScaling
from routing.forecast import DAY_S, SLOT_S, PredictSettings
from routing.scaling import ScaleSettings
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


class Past:
    """A Prometheus in which every day has jobs from nine to eleven."""

    def __init__(self, slots: int = 10_000) -> None:
        self.slots = slots

    async def get(self, path: str, params: list[tuple[str, str]]) -> tuple[int, bytes]:
        asked = dict(params)
        end = float(asked["end"])
        ends = [end - at * SLOT_S for at in range(min(self.slots, int((end - float(asked["start"])) // SLOT_S)))]
        values = [(at, "3" if 9 <= (at - 1) % DAY_S / 3600 < 11 else "1") for at in reversed(ends)]
        return 200, msgspec.json.encode(
            {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}}
        )

    async def close(self) -> None:
        pass


NOON = 1_800_000_000.0 // DAY_S * DAY_S + DAY_S / 2


async def ahead(admin: Admin, past: Past, now: float) -> None:
    """Let the pool `chat` have forecasts."""
    predict = PredictSettings(lead_s=900.0, days=2)
    forecasts = LoadForecasts({("chat", "both"): predict}, past, lambda: now)
    object.__setattr__(admin.parts, "forecasts", forecasts)
    scale = ScaleSettings(min=2, max=5, predict=predict)
    object.__setattr__(admin.parts, "scaling", PoolScaling({"chat": scale, "bare": None}, lambda: 0.0, {}, forecasts.growth))
    await forecasts.look()


async def test_a_forecast_is_told_with_its_reason(admin: Admin) -> None:
    await ahead(admin, Past(), NOON - 3.1 * 3600)
    answer = await admin.client.get(f"{API}/scaling", headers=bearer("auditor"))
    chat, bare = answer.json()["pools"]
    assert (chat["wanted"], chat["forecast"], chat["needed"]) == (3, 2.5, 2.5)
    assert chat["forecast_why"] == "2.0 more are expected within 900 s, after 2 days before"
    assert (bare["forecast"], bare["forecast_why"]) == (None, "")


async def test_the_hours_of_a_pool_make_a_schedule(admin: Admin) -> None:
    await ahead(admin, Past(), NOON)
    answer = await admin.client.get(f"{API}/scaling/chat/hours", headers=bearer("auditor"))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["hours"][9] == {"hour": 9, "days": 3, "load": 3.0, "most": 3.0, "engines": 4}
    assert (found["zone"], found["min"], found["max"]) == ("UTC", 2, 4)
    assert found["schedule"] == [{"start": "08:45", "end": "11:00", "engines": 4}]


async def test_hours_that_are_not_known_yet_make_no_schedule(admin: Admin) -> None:
    await ahead(admin, Past(slots=11), NOON)
    found = (await admin.client.get(f"{API}/scaling/chat/hours", headers=OWNER)).json()
    assert [one["hour"] for one in found["hours"]] == [10, 11]
    assert (found["min"], found["schedule"]) == (None, [])


@pytest.mark.parametrize("pool", ["bare", "nowhere"])
async def test_hours_are_of_pools_with_forecasts(admin: Admin, pool: str) -> None:
    before = await admin.client.get(f"{API}/scaling/chat/hours", headers=OWNER)
    assert before.status_code == 404, "no pool has a section predict"
    await ahead(admin, Past(), NOON)
    answer = await admin.client.get(f"{API}/scaling/{pool}/hours", headers=OWNER)
    assert answer.status_code == 404
    assert f"No pool '{pool}' with both engines has a section predict" in answer.json()["error"]["message"]


async def test_a_tenants_admin_sees_no_pools_and_without_workers_nothing_is_told(admin: Admin) -> None:
    assert (await admin.client.get(f"{API}/scaling", headers=bearer("tenant-admin"))).status_code == 403
    processes = admin.parts.gateway
    assert isinstance(processes, Processes)
    processes.snapshots = []
    away = await admin.client.get(f"{API}/scaling", headers=OWNER)
    assert (away.status_code, away.json()["error"]["code"]) == (503, "no_worker")
