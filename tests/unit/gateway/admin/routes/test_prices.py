"""Prices over the API: added and never changed."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tenancy.money import MAX_RATE
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
        ({"model": "m", "nanousd_per_mtok": {"cached_input": -1}}, "nanousd_per_mtok.cached_input"),
        ({"model": "m", "nanousd_per_mtok": {"reasoning": "1"}}, "nanousd_per_mtok.reasoning"),
        ({"model": "m", "usd_per_mtok": {"output": 1}}, "usd_per_mtok.output"),
        ({"model": "m", "usd_per_mtok": {"output": 0.2}}, "usd_per_mtok.output"),
        ({"model": "m", "usd_per_mtok": {"output": "-1"}}, "usd_per_mtok.output"),
        ({"model": "m", "usd_per_mtok": {"output": "NaN"}}, "usd_per_mtok.output"),
        ({"model": "m", "usd_per_mtok": {"cached_input": "1e3"}}, "usd_per_mtok.cached_input"),
        ({"model": "m", "usd_per_mtok": {"output": "1000.01"}}, "usd_per_mtok.output"),
        ({"model": "m", "usd_per_mtok": {"output": "1"}, "nanousd_per_mtok": {"output": 1}}, "usd_per_mtok"),
        ({"model": "m", "units": {"input": 1}}, "units.input"),
        ({"model": "m", "effective_unix": 1e300}, "effective_unix"),
    ],
)
async def test_what_is_wrong_is_named(admin: Admin, value: dict[str, Any], param: str) -> None:
    reply = await admin.client.post(PRICES, json=value, headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert await admin.actions() == []


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ({"uncached_input": 7, "output": 9}, (7, 7, 9, 9)),
        ({"uncached_input": 7, "cached_input": None, "output": 9, "reasoning": None}, (7, 7, 9, 9)),
        ({"uncached_input": 7, "cached_input": 0, "output": 9, "reasoning": 0}, (7, 0, 9, 0)),
        ({"uncached_input": 7, "cached_input": 2, "output": 9, "reasoning": 3}, (7, 2, 9, 3)),
        ({"output": 9}, (0, 0, 9, 9)),
    ],
)
async def test_a_rate_that_is_left_out_is_that_of_its_whole_and_an_explicit_zero_is_free(
    admin: Admin, written: dict[str, Any], stored: tuple[int, ...]
) -> None:
    in_dollars = {kind: None if rate is None else f"0.00000000{rate}" for kind, rate in written.items()}
    for model, rates in (("m", {"nanousd_per_mtok": written}), ("n", {"usd_per_mtok": in_dollars})):
        reply = await admin.client.post(PRICES, json={"model": model, **rates}, headers=OWNER)
        assert reply.status_code == 201, reply.text
        shown = reply.json()
        assert tuple(shown["nanousd_per_mtok"][kind] for kind in KINDS) == stored
        assert tuple(shown["usd_per_mtok"][kind] for kind in KINDS) == tuple(f"0.00000000{rate}" if rate else "0.00" for rate in stored)
        assert shown["doubtful"] == []


KINDS = ("uncached_input", "cached_input", "output", "reasoning")


async def test_a_price_that_an_older_version_stored_is_shown_as_doubtful_where_a_zero_may_be_an_omission(admin: Admin) -> None:
    for model, rates in (("m", {"uncached_input": "0.2", "output": "0.6"}), ("n", {"cached_input": "0", "uncached_input": "0.2"})):
        await admin.client.post(PRICES, json={"model": model, "usd_per_mtok": rates}, headers=OWNER)
    async with admin.engine.begin() as connection:  # as a version before this one stored the first
        await connection.exec_driver_sql(
            "UPDATE price SET zeros_stated = 0, nanousd_cached_input = 0, nanousd_reasoning = 0 WHERE model = 'm'"
        )
    shown = {one["model"]: one for one in (await admin.client.get(PRICES, headers=OWNER)).json()["items"]}
    assert (shown["m"]["doubtful"], shown["n"]["doubtful"]) == (["cached_input", "reasoning"], [])
    assert shown["m"]["nanousd_per_mtok"]["cached_input"] == 0, "the row itself is as it was stored"
