"""Limits over the API: one spelling each, set and replaced as seen, raised for a time, removed; what is wrong is named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

RPM = f"{API}/limits/tenant:acme:requests:minute"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        for path, value in (("/tenants", {"name": "acme"}), ("/tenants", {"name": "bolt"}), ("/tenants/acme/projects", {"name": "web"})):
            assert (await made.client.post(API + path, json=value, headers=OWNER)).status_code == 201
        yield made


async def test_a_limit_is_set_shown_replaced_as_seen_and_removed(admin: Admin) -> None:
    made = await admin.client.put(RPM, json={"amount": 600, "burst": 60, "soft": 50}, headers=OWNER)
    assert made.status_code == 201
    assert made.json() == {
        "id": "tenant:acme:requests:minute", "level": "tenant", "name": "acme", "meter": "requests", "window": "minute", "tenant": "acme",
        "amount": 600, "burst": 60, "soft": 50, "raised_to": None, "raised_until_unix": None, "zone": "",
        "amount_usd": None, "soft_usd": None, "raised_to_usd": None,
    }  # fmt: skip
    seen = await admin.client.get(RPM, headers=OWNER)
    assert (seen.json(), seen.headers["etag"]) == (made.json(), made.headers["etag"])
    unseen = await admin.client.put(RPM, json={"amount": 5}, headers=OWNER)
    assert (unseen.status_code, unseen.json()["error"]["param"]) == (428, "if-match")
    replaced = await admin.client.put(RPM, json={"amount": 5}, headers={**OWNER, "if-match": seen.headers["etag"]})
    assert (replaced.status_code, replaced.json()["burst"]) == (200, None)
    for method in ("PUT", "DELETE"):
        stale = {**OWNER, "if-match": seen.headers["etag"]}
        reply = await admin.client.request(method, RPM, json={"amount": 9} if method == "PUT" else None, headers=stale)
        assert reply.status_code == 412
    gone = await admin.client.delete(RPM, headers={**OWNER, "if-match": replaced.headers["etag"]})
    assert (gone.status_code, (await admin.client.get(RPM, headers=OWNER)).status_code) == (204, 404)
    assert (await admin.client.put(RPM, json={"amount": 5}, headers={**OWNER, "if-match": "*"})).status_code == 404, "what was seen is gone"
    assert (await admin.actions())[3:] == ["limit.set", "limit.set", "limit.remove"]


async def test_a_raise_is_for_a_time_and_only_upwards(admin: Admin) -> None:
    await admin.client.put(RPM, json={"amount": 600, "soft": 500}, headers=OWNER)
    until = admin.wall.now + 3600
    raised = await admin.client.post(f"{RPM}/raise", json={"to": 900, "until_unix": until}, headers=OWNER)
    shown = raised.json()
    assert (shown["amount"], shown["soft"], shown["raised_to"], shown["raised_until_unix"]) == (600, 500, 900, until)
    for value, param in (
        ({"to": 600, "until_unix": until}, "to"),
        ({"to": 900, "until_unix": admin.wall.now}, "until_unix"),
        ({"to": -1, "until_unix": until}, "to"),
        ({"to": 900}, "until_unix"),
    ):
        refused = await admin.client.post(f"{RPM}/raise", json=value, headers=OWNER)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    missing = f"{API}/limits/tenant:bolt:requests:minute/raise"
    assert (await admin.client.post(missing, json={"to": 1, "until_unix": until}, headers=OWNER)).status_code == 404


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({}, "amount"),
        ({"amount": -1}, "amount"),
        ({"amount": 2**60}, "amount"),
        ({"amount": True}, "amount"),
        ({"amount": 5, "soft": 0}, "soft"),
        ({"amount": 5, "soft": 6}, "soft"),
        ({"amount": 0, "soft": 1}, "soft"),
        ({"amount": 5, "burst": 2, "soft": 3}, "soft"),
        ({"amount": 5, "raised_to": 6}, None),
        ({"amount": 5, "bursts": 6}, "bursts"),
    ],
)
async def test_what_is_wrong_is_named(admin: Admin, value: dict[str, Any], param: str | None) -> None:
    reply = await admin.client.put(RPM, json=value, headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_a_soft_threshold_that_nothing_reaches_is_refused_and_one_of_an_older_version_can_be_raised(admin: Admin) -> None:
    said = (await admin.client.put(RPM, json={"amount": 5, "soft": 6}, headers=OWNER)).json()["error"]["message"]
    assert "soft 6: above the amount, 5" in said
    assert (await admin.client.put(RPM, json={"amount": 5, "soft": 5}, headers=OWNER)).status_code == 201
    async with admin.engine.begin() as connection:  # as a version before this one could have stored it
        await connection.exec_driver_sql("UPDATE usage_limit SET soft = 9")
    raised = await admin.client.post(f"{RPM}/raise", json={"to": 7, "until_unix": admin.wall.now + 60}, headers=OWNER)
    assert (raised.status_code, raised.json()["soft"]) == (200, 9)


@pytest.mark.parametrize(
    "limit_id",
    [
        "tenant:acme:requests",
        "moon:acme:requests:minute",
        "tenant:acme:requests:fortnight",
        "tenant:acme:REQUESTS:minute",
        "x",
        "tenant:acme:wishes:day",
    ],
)
async def test_there_is_one_spelling_of_each_limit(admin: Admin, limit_id: str) -> None:
    reply = await admin.client.put(f"{API}/limits/{limit_id}", json={"amount": 5}, headers=OWNER)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "not_found", "limit_id")
    assert error["message"].startswith(f"limit_id: '{limit_id}' is no id of a limit; write level:name:meter:window")


@pytest.mark.parametrize("scope", ["tenant:nobody", "project:acme/nothing", "key:0000000000", "organisation:none"])
async def test_limits_hang_on_what_there_is(admin: Admin, scope: str) -> None:
    assert (await admin.client.put(f"{API}/limits/{scope}:tokens:day", json={"amount": 5}, headers=OWNER)).status_code == 404


async def test_lists_come_in_pages_and_a_tenants_admin_sees_those_of_its_tenant(admin: Admin) -> None:
    ids = [f"{scope}:tokens:day" for scope in ("global:", "model:m", "project:acme/web", "tenant:acme", "tenant:bolt", "user:acme/web")]
    for one in ids:
        assert (await admin.client.put(f"{API}/limits/{one}", json={"amount": 5}, headers=OWNER)).status_code == 201
    got, cursor = [], ""
    while True:
        page = (await admin.client.get(f"{API}/limits?limit=2{cursor}", headers=OWNER)).json()
        got += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert got == ids
    mine = (await admin.client.get(f"{API}/limits", headers=bearer("tenant-admin"))).json()["items"]
    assert [one["id"] for one in mine] == [one for one in ids if "acme" in one]


async def test_the_limits_of_an_organisation_are_listed_alone_and_not_to_a_tenants_admin(admin: Admin) -> None:
    assert (await admin.client.post(f"{API}/organisations", json={"name": "default-2"}, headers=OWNER)).status_code == 201
    ids = [f"organisation:default{more}:tokens:{window}" for more in ("", "-2") for window in ("day", "minute", "month")]
    for one in [*ids, "tenant:acme:tokens:day", "model:default:tokens:day"]:
        assert (await admin.client.put(f"{API}/limits/{one}", json={"amount": 5}, headers=OWNER)).status_code == 201
    got, cursor = [], ""
    while True:
        page = (await admin.client.get(f"{API}/limits?organisation=default&limit=2{cursor}", headers=OWNER)).json()
        got += [one["id"] for one in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert sorted(got) == ids[:3]
    assert (await admin.client.get(f"{API}/limits?organisation=none", headers=OWNER)).status_code == 404
    assert (await admin.client.get(f"{API}/limits?organisation=default", headers=bearer("tenant-admin"))).status_code == 404
    both = await admin.client.get(f"{API}/limits?organisation=default&tenant=acme", headers=OWNER)
    assert (both.status_code, both.json()["error"]["param"]) == (400, "organisation")


BUDGET = f"{API}/limits/tenant:acme:cost_usd:month"
ALIAS = f"{API}/limits/tenant:acme:cost_nanousd:month"


async def test_money_is_written_as_decimal_dollars_and_shown_both_ways(admin: Admin) -> None:
    made = await admin.client.put(BUDGET, json={"amount": "50", "soft": "40.5"}, headers=OWNER)
    assert made.status_code == 201
    assert made.json() == {
        "id": "tenant:acme:cost_usd:month", "level": "tenant", "name": "acme", "meter": "cost_usd", "window": "month", "tenant": "acme",
        "amount": 50_000_000_000, "burst": None, "soft": 40_500_000_000, "raised_to": None, "raised_until_unix": None, "zone": "",
        "amount_usd": "50.00", "soft_usd": "40.50", "raised_to_usd": None,
    }  # fmt: skip
    raised = await admin.client.post(f"{BUDGET}/raise", json={"to": "75.000000001", "until_unix": admin.wall.now + 60}, headers=OWNER)
    assert (raised.json()["raised_to"], raised.json()["raised_to_usd"]) == (75_000_000_001, "75.000000001")
    lower = await admin.client.post(f"{BUDGET}/raise", json={"to": "50", "until_unix": admin.wall.now + 60}, headers=OWNER)
    assert lower.json()["error"]["message"] == "to: the limit is $50.00 without a raise; raise it to more, or set a lower limit."
    listed = (await admin.client.get(f"{API}/limits", headers=OWNER)).json()["items"]
    assert listed == [raised.json()]
    rows = (await admin.client.get(f"{API}/audit", headers=OWNER)).json()["items"]
    assert {row["target"] for row in rows[:2]} == {"limit/tenant:acme:cost_usd:month"}


async def test_the_older_name_is_the_same_limit_in_whole_nano_dollars(admin: Admin) -> None:
    made = await admin.client.put(ALIAS, json={"amount": 50_000_000_000}, headers=OWNER)
    seen = await admin.client.get(BUDGET, headers=OWNER)
    assert (made.status_code, made.json(), made.headers["etag"]) == (201, seen.json(), seen.headers["etag"])
    replaced = await admin.client.put(BUDGET, json={"amount": "7.50"}, headers={**OWNER, "if-match": made.headers["etag"]})
    assert (replaced.status_code, replaced.json()["amount"]) == (200, 7_500_000_000)
    raised = await admin.client.post(f"{ALIAS}/raise", json={"to": 8_000_000_000, "until_unix": admin.wall.now + 60}, headers=OWNER)
    assert raised.json()["raised_to_usd"] == "8.00"
    assert (await admin.client.delete(ALIAS, headers={**OWNER, "if-match": "*"})).status_code == 204
    assert (await admin.client.get(BUDGET, headers=OWNER)).status_code == 404
    assert {row["target"] for row in (await admin.client.get(f"{API}/audit?limit=4", headers=OWNER)).json()["items"]} == {
        "limit/tenant:acme:cost_usd:month"
    }


@pytest.mark.parametrize(
    ("path", "amount", "says"),
    [
        (BUDGET, 50, "bare number"),
        (BUDGET, 0, "bare number"),
        (BUDGET, 50.0, "may be rounded"),
        (BUDGET, "-1", "not negative"),
        (BUDGET, "NaN", "plain decimal"),
        (BUDGET, "1e3", "plain decimal"),
        (BUDGET, "$50", "plain decimal"),
        (BUDGET, "", "empty"),
        (BUDGET, "1000000.01", "$1000000.00"),
        (BUDGET, None, "whole number"),
        (BUDGET, ["1"], "whole number"),
        (ALIAS, "50", "cost_usd"),
        (RPM, "50", "whole number"),
        (RPM, "6x", "requests takes a whole number"),
        (RPM, 1.5, "whole number"),
        (RPM, True, "whole number"),
        (RPM, 10**15 + 1, "at most"),
    ],
)
async def test_an_amount_in_the_wrong_form_is_refused_and_nothing_is_guessed(admin: Admin, path: str, amount: Any, says: str) -> None:
    for method, url, field in (("PUT", path, "amount"), ("POST", f"{path}/raise", "to")):
        body = {field: amount, **({"until_unix": admin.wall.now + 60} if field == "to" else {})}
        await admin.client.put(ALIAS if "cost" in path else RPM, json={"amount": 5}, headers=OWNER)
        reply = await admin.client.request(method, url, json=body, headers={**OWNER, "if-match": "*"})
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["message"].startswith(f"{field}: ")) == (400, field, True), error
        assert says in error["message"]


async def test_limits_of_one_tenant_are_listed_alone(admin: Admin) -> None:
    for limit in ("tenant:acme:requests:minute", "project:acme/web:requests:day", "user:acme:requests:day", "tenant:bolt:requests:minute"):
        assert (await admin.client.put(f"{API}/limits/{limit}", json={"amount": 5}, headers=OWNER)).status_code == 201
    listed = (await admin.client.get(f"{API}/limits?tenant=acme", headers=bearer("auditor"))).json()["items"]
    assert [one["id"] for one in listed] == ["project:acme/web:requests:day", "tenant:acme:requests:minute", "user:acme:requests:day"]
    for name in ("nobody", "acme"):
        refused = await admin.client.get(f"{API}/limits?tenant={name}", headers=bearer("tenant-admin", "bolt"))
        assert refused.status_code == 404
