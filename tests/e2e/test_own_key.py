"""`GET /v1/key`: a caller sees its own key, limits and spending, and nothing of other tenants."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.simengine import SimEngine, SimSettings
from gateway.ledger.writer import usage_event
from gateway.request.own_key import OwnSpend
from tenancy.hold import LimitUsage
from tenancy.keys import parse
from tenancy.limits import Group, Level, Limit, Meter, Rolling, Scope, Window
from tenancy.ports import CountersAway
from tenancy.prices import ANY_REVISION, Price, TokenRates
from tenancy.rights import Rights
from tenancy.stores.memory import MemoryCounters
from tenancy.stores.sql import SqlSpendReader, SqlUsageStore, open_engine
from tests.databases import migrated_file
from tests.gateway_harness import chat, directory, gateway

SIM = SimSettings(models=("sim",), speed=2000)
LIMITS = [
    Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Window.DAY, 1000),
    Limit(Scope(Level.TENANT, "acme"), Meter.COST_NANOUSD, Window.MONTH, 12_500_000_000),
    Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Rolling(30), 500),
    Limit(Scope(Level.TENANT, "bolt"), Meter.REQUESTS, Window.EVER, 77_777),
    Limit(Scope(Level.GLOBAL, ""), Meter.REQUESTS, Window.DAY, 88_888),
    Limit(Scope(Level.MODEL, "sim"), Meter.REQUESTS, Window.DAY, 99_999),
]


def by_meter(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {limit["meter"]: limit for limit in answer["limits"]}


async def test_a_caller_sees_its_own_limits_and_what_is_left_of_them() -> None:
    rights = {"acme": Rights(models=frozenset({"sim"}))}
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=LIMITS, rights=rights) as running, running.client() as client:
        used = (await client.post("/v1/chat/completions", json=chat(max_tokens=8))).json()["usage"]["total_tokens"]
        for _ in range(3):  # asking counts towards no limit
            reply = await client.get("/v1/key")
        assert (reply.status_code, reply.headers["cache-control"]) == (200, "no-store")
        answer = reply.json()
        assert (answer["object"], answer["tenant"], answer["project"], answer["models"]) == ("key", "acme", "default", ["sim"])
        tokens, money = by_meter(answer)["tokens"], by_meter(answer)["cost_usd"]
        assert (tokens["scope"], tokens["name"], tokens["window"]) == ("tenant", "acme", "day")
        assert (tokens["limit"], tokens["used"], tokens["held"], tokens["left"]) == (1000, used, 0, 1000 - used)
        assert dt.datetime.fromisoformat(tokens["resets_at"]).strftime("%H:%M:%S") == "00:00:00"
        assert (money["limit"], money["used"], money["left"], money["resets_at"]) == ("12.50", "0.00", "12.50", None)
        rolling = by_meter(answer)["requests"]
        assert (rolling["window"], rolling["zone"], rolling["limit"], rolling["used"], rolling["left"]) == (
            "rolling-30d",
            None,
            500,
            1,
            499,
        )
        leaves = dt.datetime.fromisoformat(rolling["resets_at"]) - dt.datetime.now(dt.UTC)
        assert dt.timedelta(days=30, seconds=-120) < leaves <= dt.timedelta(days=30, hours=1, seconds=120)
        assert answer["spend"] is None, "there is no ledger"
        for number in ("77777", "88888", "99999"):
            assert number not in reply.text, "limits of others, and shared ones, are not shown"
        assert len(engine.received) == 1
        assert (await running.recorded(4))[-1].endpoint == "/v1/key"


async def test_only_a_valid_key_is_answered_and_only_with_its_own_tenant() -> None:
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=LIMITS) as running:
        async with running.client("bolt") as bolt:
            answer = (await bolt.get("/v1/key/")).json()
            assert (answer["tenant"], list(by_meter(answer))) == ("bolt", ["requests"])
            assert (await bolt.post("/v1/key")).status_code == 405
            for headers in ({"authorization": "Bearer wrong"}, {"authorization": "Bearer gw_test_0000000000_x"}):
                assert (await bolt.get("/v1/key", headers=headers)).status_code == 401


async def test_a_caller_sees_its_spending_and_the_label_and_end_of_its_key(tmp_path: Path) -> None:
    await migrated_file(tmp_path / "usage.db")
    database = open_engine(f"sqlite:///{tmp_path / 'usage.db'}")
    prices = [Price("p", "sim", ANY_REVISION, 0.0, TokenRates(output=10**12))]  # a thousandth of a dollar a token
    async with (
        SimEngine(SIM) as engine,
        gateway(engine.url, prices=prices) as running,
        running.client() as acme,
    ):
        object.__setattr__(running.deps, "own_spend", OwnSpend(SqlSpendReader(database), running.deps.clock, running.deps.wall))
        live, ends = running.deps.live, 4_102_444_800.0
        parsed = parse(running.keys["acme"])
        assert parsed is not None
        record = live.directory.key(parsed.id)
        assert record is not None
        live.directory = directory([msgspec.structs.replace(record, label="nightly build", expires_unix=ends)], prices=prices)
        tokens = (await acme.post("/v1/chat/completions", json=chat(max_tokens=8))).json()["usage"]["completion_tokens"]
        (answered,) = await running.recorded(1)
        booked = usage_event(answered)
        assert booked is not None
        others = [
            msgspec.structs.replace(booked, request_id=f"other-{tenant}", tenant=tenant, key_id=key, cost_nanousd=5 * 10**9)
            for tenant, key in (("acme", "another"), ("bolt", "theirs"))
        ]
        await SqlUsageStore(database).write([booked, *others])
        answer = (await acme.get("/v1/key")).json()
        assert tokens > 0
        assert Decimal(answer["spend"]["key_usd"]) == Decimal(tokens) / 1000
        assert Decimal(answer["spend"]["tenant_usd"]) == Decimal(tokens) / 1000 + 5, "another key of the tenant counts, no other tenant"
        assert answer["spend"]["month"] == f"{dt.datetime.now(dt.UTC):%Y-%m}"
        assert (answer["label"], answer["expires_at"]) == ("nightly build", "2100-01-01T00:00:00Z")
    await database.dispose()


class AwayCounters(MemoryCounters):
    async def look(self, group: Group) -> list[LimitUsage]:
        raise CountersAway("no answer")


@pytest.mark.fault("counter store away")
async def test_amounts_are_shown_while_the_counter_store_is_away() -> None:
    counters = AwayCounters(lambda: 1_800_000_000.0)
    async with SimEngine(SIM) as engine, gateway(engine.url, limits=LIMITS, counters=counters) as running, running.client() as client:
        tokens = by_meter((await client.get("/v1/key")).json())["tokens"]
        assert (tokens["limit"], tokens["used"], tokens["left"], tokens["resets_at"]) == (1000, None, None, None)
