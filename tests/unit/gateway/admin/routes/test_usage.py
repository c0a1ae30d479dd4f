"""Usage over the API: the ledger's sums, in pages, and of a tenant alone for its admin."""

import datetime as dt
import random
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path

import pytest

from tenancy.stores.sql import SqlUsageStore
from tenancy.usage import SUMS
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer
from tests.usage_events import FIRST_DAY, grouped, label, random_event

EVENTS = [random_event(n, random.Random(n)) for n in range(200)]


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        await SqlUsageStore(made.engine).write(EVENTS)
        yield made


async def test_sums_are_those_of_the_events_page_by_page(admin: Admin) -> None:
    by = ("day", "tenant", "model")
    got, cursor = {}, ""
    while True:
        page = (await admin.client.get(f"{API}/usage?by=model&by=day&by=tenant&limit=5{cursor}", headers=bearer("billing"))).json()
        assert len(page["items"]) <= 5
        got |= {tuple(one["labels"][name] for name in by): tuple(one[name] for name in SUMS) for one in page["items"]}
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert got == {labels: tuple(getattr(sums, name) for name in SUMS) for labels, sums in grouped(EVENTS, by).items()}


async def test_questions_narrow_it(admin: Admin) -> None:
    last = FIRST_DAY + dt.timedelta(days=1)
    query = f"by=key&tenant=acme&model=large&first_day={FIRST_DAY}&last_day={last}"
    items = (await admin.client.get(f"{API}/usage?{query}", headers=OWNER)).json()["items"]
    days = {str(FIRST_DAY), str(last)}
    within = [e for e in EVENTS if (e.tenant, e.model) == ("acme", "large") and label(e, "day") in days]
    wanted = {key: sums.cost_nanousd for (key,), sums in grouped(within, ["key"]).items()}
    assert {one["labels"]["key"]: one["cost_nanousd"] for one in items} == wanted
    assert {one["labels"]["key"]: Decimal(one["cost_usd"]) * 10**9 for one in items} == wanted
    assert (await admin.client.get(f"{API}/usage?tenant=nobody", headers=OWNER)).json() == {"items": [], "next_cursor": None}


@pytest.mark.req("R14")
async def test_a_tenants_admin_sees_its_own_whatever_he_asks(admin: Admin) -> None:
    mine = bearer("tenant-admin", "bolt")
    items = (await admin.client.get(f"{API}/usage?by=tenant", headers=mine)).json()["items"]
    assert [one["labels"]["tenant"] for one in items] == ["bolt"]
    assert (await admin.client.get(f"{API}/usage?tenant=acme", headers=mine)).status_code == 404
    assert (await admin.client.get(f"{API}/usage?by=key&project=lab", headers=mine)).json()["items"] != []


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("by=colour", "by.0"),
        ("first_day=yesterday", "first_day"),
        ("limit=501", "limit"),
        ("limit=0", "limit"),
        ("cursor=nonsense", "cursor"),
        ("colour=red", "colour"),
    ],
)
async def test_what_is_wrong_is_named(admin: Admin, query: str, param: str) -> None:
    reply = await admin.client.get(f"{API}/usage?{query}", headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
