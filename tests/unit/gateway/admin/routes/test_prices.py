"""Prices over the API: added and never changed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.routes.prices import MAX_RATE
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

PRICES = f"{API}/prices"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        yield made


async def test_a_price_holds_from_its_moment_on_and_the_next_one_stands_beside_it(admin: Admin) -> None:
    rates = {"uncached_input": 200_000_000, "cached_input": 20_000_000, "output": 600_000_000, "reasoning": 600_000_000}
    first = await admin.client.post(PRICES, json={"model": "m", "nanousd_per_mtok": rates}, headers=bearer("billing"))
    assert first.status_code == 201
    shown = first.json()
    assert (shown["revision"], shown["effective_unix"], shown["nanousd_per_mtok"]) == ("*", admin.wall.now, rates)
    assert set(shown["units"].values()) == {1000}
    second = await admin.client.post(
        PRICES, json={"model": "m", "effective_unix": admin.wall.now + 60, "units": {"cached_input": 100}}, headers=OWNER
    )
    assert second.json()["units"] == {"uncached_input": 1000, "cached_input": 100, "output": 1000, "reasoning": 1000}
    other = await admin.client.post(PRICES, json={"model": "n", "revision": "2"}, headers=OWNER)
    assert (await admin.client.get(f"{PRICES}/{shown['id']}", headers=bearer("auditor"))).json() == shown
    listed = (await admin.client.get(f"{PRICES}?model=m", headers=OWNER)).json()["items"]
    assert sorted(one["id"] for one in listed) == sorted((shown["id"], second.json()["id"]))
    every, cursor = [], ""
    for _ in range(3):
        page = (await admin.client.get(f"{PRICES}?limit=1{cursor}", headers=OWNER)).json()
        every += page["items"]
        cursor = f"&cursor={page['next_cursor']}"
    assert ({one["id"] for one in every}, page["next_cursor"]) == ({shown["id"], second.json()["id"], other.json()["id"]}, None)
    assert (await admin.client.get(f"{PRICES}/price-nothing", headers=OWNER)).status_code == 404
    assert await admin.actions() == ["price.set"] * 3


async def test_there_are_no_two_prices_of_one_moment(admin: Admin) -> None:
    wanted = {"model": "m", "effective_unix": 1_900_000_000}
    assert (await admin.client.post(PRICES, json=wanted, headers=OWNER)).status_code == 201
    again = await admin.client.post(PRICES, json={**wanted, "nanousd_per_mtok": {"output": 1}}, headers=OWNER)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_exists")


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "model"),
        ({"model": ""}, "model"),
        ({"model": "m", "nanousd_per_mtok": {"output": -1}}, "nanousd_per_mtok.output"),
        ({"model": "m", "nanousd_per_mtok": {"output": 0.5}}, "nanousd_per_mtok.output"),
        ({"model": "m", "nanousd_per_mtok": {"output": MAX_RATE + 1}}, "nanousd_per_mtok.output"),
        ({"model": "m", "units": {"input": 1}}, "units.input"),
        ({"model": "m", "effective_unix": 1e300}, "effective_unix"),
    ],
)
async def test_what_is_wrong_is_named(admin: Admin, value: dict[str, Any], param: str) -> None:
    reply = await admin.client.post(PRICES, json=value, headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert await admin.actions() == []
