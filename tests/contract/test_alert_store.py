"""Budget alerts in real databases: written once, claimed by one, and forgotten when they are old."""

import asyncio

import pytest
from msgspec import structs
from sqlalchemy.ext.asyncio import AsyncEngine

from tenancy.alerts import AlertsAway, BudgetAlert
from tenancy.stores.sql import SqlAlerts, open_engine

NOW = 1_800_000_000.0


def alert(name: str, **fields: object) -> BudgetAlert:
    made = BudgetAlert(name, f"tenant:{name}:cost_usd:month", "1", 80, 10**12, 9 * 10**11, NOW, b'{"a":1}', "waiting", next_try_unix=NOW)
    return structs.replace(made, **fields)


async def test_an_alert_is_written_once_whoever_finds_it(sql_engine: AsyncEngine) -> None:
    stores = [SqlAlerts(sql_engine) for _ in range(4)]
    assert sum(await asyncio.gather(*(store.add([alert("a"), alert("b")]) for store in stores))) == 2
    assert [one.id for one in await stores[0].newest(10)] == ["a", "b"]
    assert (await stores[0].newest(1))[0] == alert("a")


async def test_one_process_at_a_time_has_a_message(sql_engine: AsyncEngine) -> None:
    stores = [SqlAlerts(sql_engine) for _ in range(4)]
    await stores[0].add([alert(name) for name in "abc"])
    claimed = await asyncio.gather(*(store.claim(NOW, 60, 2) for store in stores))
    ids = [one.id for found in claimed for one in found]
    assert sorted(ids) == sorted(set(ids))
    left = await stores[0].claim(NOW, 60, 9)
    assert sorted([*ids, *(one.id for one in left)]) == ["a", "b", "c"]
    assert await stores[0].claim(NOW + 59, 60, 9) == []
    assert len(await stores[0].claim(NOW + 61, 60, 9)) == 3, "a process that died has not taken it away for good"


async def test_what_is_over_is_not_claimed(sql_engine: AsyncEngine) -> None:
    store = SqlAlerts(sql_engine)
    await store.add([alert("a"), alert("b"), alert("c", result="superseded", next_try_unix=None)])
    await store.note("a", "sent", 1, None)
    await store.note("b", "waiting", 3, NOW + 5)
    assert await store.claim(NOW, 60, 9) == []
    (later,) = await store.claim(NOW + 5, 60, 9)
    assert (later.id, later.attempts) == ("b", 3)
    assert {one.id: one.result for one in await store.newest(9)} == {"a": "sent", "b": "waiting", "c": "superseded"}


async def test_only_those_of_a_limit_are_listed(sql_engine: AsyncEngine) -> None:
    store = SqlAlerts(sql_engine)
    await store.add([alert("a_b"), alert("axb")])
    assert [one.id for one in await store.newest(9, "tenant:a_b:")] == ["a_b"]


async def test_old_alerts_go_and_waiting_ones_stay(sql_engine: AsyncEngine) -> None:
    store = SqlAlerts(sql_engine)
    await store.add(
        [alert("a", next_try_unix=None, result="sent"), alert("b"), alert("c", at_unix=NOW + 9, next_try_unix=None, result="sent")]
    )
    assert await store.forget(NOW + 1) == 1
    assert {one.id for one in await store.newest(9)} == {"b", "c"}
    assert await store.rearm(["b", "c", "unknown"]) == {"b"}, "what is still to be posted stays"
    assert [one.id for one in await store.newest(9)] == ["b"]


async def test_a_database_that_is_away_is_said_so(tmp_path: object) -> None:
    engine = open_engine("postgresql://user:hidden@127.0.0.1:1/db")
    with pytest.raises(AlertsAway) as raised:
        await SqlAlerts(engine).newest(1)
    assert "hidden" not in str(raised.value)
    await engine.dispose()
