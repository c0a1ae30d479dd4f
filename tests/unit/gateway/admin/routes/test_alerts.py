"""Budget alerts over the API: those of limits whose ids begin so, and a beginning that no limit has is named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tenancy.alerts import BudgetAlert
from tests.admin_harness import API, OWNER, Admin, admin_port

MONTH = "tenant:acme:cost_usd:month"
GONE = "tenant:gone:cost_usd:month"


def alert(limit: str, percent: int) -> BudgetAlert:
    return BudgetAlert(f"{limit}{percent}", limit, "ever", percent, 100, 90, 1_800_000_000.0, b'{"at":"2027-01-15T08:00:00Z"}', "sent")


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        for name in ("acme", "quiet"):
            assert (await made.client.post(f"{API}/tenants", json={"name": name}, headers=OWNER)).status_code == 201
            written = {"amount": "50"}
            assert (await made.client.put(f"{API}/limits/tenant:{name}:cost_usd:month", json=written, headers=OWNER)).status_code == 201
        await made.parts.alerts.add([alert(MONTH, 50), alert(MONTH, 80), alert(GONE, 50)])
        yield made


async def asked(admin: Admin, of: str) -> httpx.Response:
    return await admin.client.get(f"{API}/limits/alerts", params={"of": of}, headers=OWNER)


@pytest.mark.parametrize(
    ("of", "count"), [("", 3), ("tenant:", 3), ("tenant:acme:", 2), (MONTH, 2), ("tenant:quiet:", 0), (GONE, 1), ("tenant:q", 0)]
)
async def test_alerts_are_those_of_ids_that_begin_so(admin: Admin, of: str, count: int) -> None:
    """A limit that was removed keeps its alerts, and one without alerts has an empty list."""
    reply = await asked(admin, of)
    items: list[Any] = reply.json()["items"]
    assert (reply.status_code, len(items)) == (200, count)
    assert all(item["limit"].startswith(of) for item in items)


@pytest.mark.parametrize("of", ["UNKNOWN", "acme", "tenant:acme:cost_nanousd", "tenant:nobody:", "tenant:acme:tokens:", MONTH + "s", "%"])
async def test_a_beginning_that_no_limit_and_no_alert_has_is_an_error_with_its_name(admin: Admin, of: str) -> None:
    reply = await asked(admin, of)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "not_found", "of")
    assert error["message"].startswith(f"of: no limit has an id that begins with {of!r}, and no alert is kept of one; write level:name:")


async def test_no_limits_at_all_are_an_empty_list(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        assert (await asked(admin, "")).json() == {"items": []}
