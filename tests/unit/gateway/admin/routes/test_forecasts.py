"""Forecasts over the API: limits on money of a scope, each with the pace of its own usage; a tenant's admin sees its own tenant's."""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenancy.money import NANO
from tenancy.stores.sql import SqlUsageStore
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer
from tests.usage_events import event

NOW = dt.datetime(2026, 1, 5, 12, tzinfo=dt.UTC).timestamp()
"""Four and a half days after the first event."""
LIMITS = ("tenant:acme:cost_usd:month", "tenant:acme:cost_usd:ever", "project:acme/web:cost_usd:day", "tenant:acme:requests:minute",
          "user:acme:cost_usd:day", "model:m:cost_usd:rolling-30d", "global::cost_usd:month", "organisation:default:cost_usd:month",
          "tenant:bolt:cost_usd:month")  # fmt: skip


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        made.wall.now = NOW
        for path, value in (("/tenants", {"name": "acme"}), ("/tenants", {"name": "bolt"}), ("/tenants/acme/projects", {"name": "web"})):
            assert (await made.client.post(API + path, json=value, headers=OWNER)).status_code == 201
        for limit in LIMITS:
            amount: Any = "50" if "cost_usd" in limit else 60
            assert (await made.client.put(f"{API}/limits/{limit}", json={"amount": amount}, headers=OWNER)).status_code == 201
        spends = [("acme", "web", 2), ("acme", "default", 1), ("bolt", "default", 4)]
        await SqlUsageStore(made.engine).write(
            [
                event(f"{day}-{n}", day, tenant=tenant, project=project, cost_nanousd=cost * NANO, organisation="default")
                for day in range(3)
                for n, (tenant, project, cost) in enumerate(spends)
            ]
        )
        yield made


async def asked(admin: Admin, query: str, headers: dict[str, str] = OWNER) -> list[dict[str, Any]]:
    reply = await admin.client.get(f"{API}/limits/forecast?{query}", headers=headers)
    assert reply.status_code == 200, reply.text
    items: list[dict[str, Any]] = reply.json()["items"]
    return items


async def test_every_limit_on_money_has_the_pace_of_its_own_scope(admin: Admin) -> None:
    shown = {one["id"]: one for one in await asked(admin, "name=acme")}
    assert set(shown) == {"tenant:acme:cost_usd:month", "tenant:acme:cost_usd:ever", "project:acme/web:cost_usd:day"}
    assert shown["tenant:acme:cost_usd:month"]["pace_per_day"] == 2 * NANO, "9 dollars in 4.5 days"
    assert shown["project:acme/web:cost_usd:day"]["pace_per_day"] == round(6 * NANO / 4.5)
    month = shown["tenant:acme:cost_usd:month"]
    ends = dt.datetime(2026, 2, 1, tzinfo=dt.UTC).timestamp()
    # the harness says of each limit that a nano-dollar of it is used
    assert (month["spent"], month["ends_unix"], month["expected"]) == (1, ends, 53 * NANO + 1)
    assert (month["expected_usd"], month["amount_usd"], month["pace_per_day_usd"]) == ("53.000000001", "50.00", "2.00")
    assert month["reached_unix"] == pytest.approx(NOW + 25 * 86_400)
    assert shown["tenant:acme:cost_usd:ever"]["expected_usd"] is None


@pytest.mark.parametrize(
    ("query", "limit", "dollars"),
    [
        ("level=global", "global::cost_usd:month", 21),
        ("level=model&name=m", "model:m:cost_usd:rolling-30d", 21),
        ("level=organisation&name=default", "organisation:default:cost_usd:month", 21),
        ("name=bolt", "tenant:bolt:cost_usd:month", 12),
    ],
)
async def test_every_level_has_forecasts(admin: Admin, query: str, limit: str, dollars: int) -> None:
    (shown,) = await asked(admin, query)
    assert (shown["id"], shown["pace_per_day"]) == (limit, round(dollars * NANO / 4.5))


@pytest.mark.req("R14")
async def test_a_tenants_admin_sees_forecasts_of_its_tenant_only(admin: Admin) -> None:
    mine = bearer("tenant-admin", "bolt")
    assert [one["id"] for one in await asked(admin, "name=bolt", mine)] == ["tenant:bolt:cost_usd:month"]
    for query in ("name=acme", "level=global", "level=model&name=m"):
        assert (await admin.client.get(f"{API}/limits/forecast?{query}", headers=mine)).status_code == 404


async def test_pages_of_limits_without_money_are_short_and_lead_on(admin: Admin) -> None:
    found, cursor = [], ""
    while True:
        page = (await admin.client.get(f"{API}/limits/forecast?name=acme&limit=1{cursor}", headers=OWNER)).json()
        found += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == await asked(admin, "name=acme")
