"""The answer cache over the admin API."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cache.ports import Selection, StoreFigures
from cache.semantic.ports import IndexFigures
from domain.identity import TenantId
from domain.usage import NO_USAGE, Usage
from gateway.answers.cache import SimilarState, cache_secret, digest_of_user
from gateway.process.snapshots import WorkerSnapshot
from gateway.record import Record
from gateway.telemetry.metrics import Metrics
from tenancy.responses import ResponseSealer, StoredResponse
from tenancy.stores.sql import SqlCachePurges, SqlResponses
from tests.admin_harness import API, OWNER, PEPPER, Admin, Processes, admin_port, bearer

PURGE = f"{API}/cache/purge"


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        for tenant in ("acme", "bolt"):
            assert (await made.client.post(f"{API}/tenants", json={"name": tenant}, headers=OWNER)).status_code == 201
        yield made


async def test_a_purge_is_written_down_for_every_gateway(admin: Admin) -> None:
    wanted = {"tenant": "acme", "model": "m", "namespace": "n", "user": "ann@acme.example", "before_unix": 5.0}
    done = await admin.client.post(PURGE, json=wanted, headers=bearer("operator"))
    assert (done.status_code, done.json()) == (202, {"number": 1, "owner": "acme"})
    (purge,) = await SqlCachePurges(admin.engine).since(0)
    assert (purge.owner, purge.model, purge.namespace, purge.before_unix) == ("acme", "m", "n", 5.0)
    assert purge.user == digest_of_user(cache_secret(PEPPER), "ann@acme.example")
    entry = (await admin.journal.newest(None, 1))[0].entry
    assert (entry.action, entry.target) == ("cache.purge", "cache/acme")
    assert "ann" not in (entry.after or "")


async def test_an_end_users_stored_responses_go_with_the_answers(admin: Admin) -> None:
    store = SqlResponses(admin.engine, ResponseSealer([PEPPER], bytes), lambda: 1.0)
    digest = digest_of_user(cache_secret(PEPPER), "ann")
    for name, tenant, user in (("a", "acme", digest), ("b", "acme", ""), ("c", "bolt", digest)):
        owner = TenantId(tenant)
        kept = StoredResponse(id=name, tenant=owner, created_unix=0.0, expires_unix=9.0, end_user=user, response=b"{}", items=b"[]")
        await store.add(kept, 2**20)
    for narrower in ({"model": "m"}, {"namespace": "n"}, {"before_unix": 0.0}):
        await admin.client.post(PURGE, json={"tenant": "acme", "user": "ann", **narrower}, headers=OWNER)
        assert await store.get(TenantId("acme"), "a") is not None
    await admin.client.post(PURGE, json={"tenant": "acme"}, headers=OWNER)
    assert await store.get(TenantId("acme"), "a") is not None
    assert (await admin.client.post(PURGE, json={"tenant": "acme", "user": "ann"}, headers=OWNER)).status_code == 202
    assert await store.get(TenantId("acme"), "a") is None
    assert await store.get(TenantId("acme"), "b") is not None
    assert await store.get(TenantId("bolt"), "c") is not None
    assert '"responses":1' in ((await admin.journal.newest(None, 1))[0].entry.after or "")


async def test_a_tenants_admin_purges_his_own_tenant_alone(admin: Admin) -> None:
    headers = bearer("tenant-admin")
    assert (await admin.client.post(PURGE, json={"tenant": "acme"}, headers=headers)).status_code == 202
    for wanted in ({"tenant": "bolt"}, {"group": "all"}):
        assert (await admin.client.post(PURGE, json=wanted, headers=headers)).status_code == 404
    assert (await admin.client.post(PURGE, json={"group": "all"}, headers=OWNER)).json()["owner"] == "group:all"
    assert [purge.owner for purge in await SqlCachePurges(admin.engine).since(0)] == ["acme", "group:all"]


@pytest.mark.parametrize(
    ("wanted", "status", "param"),
    [
        ({}, 400, "tenant"),
        ({"tenant": "acme", "group": "all"}, 400, "tenant"),
        ({"tenant": "nobody"}, 404, None),
        ({"group": "No Group"}, 400, "group"),
        ({"tenant": "acme", "namespace": "a b"}, 400, "namespace"),
        ({"tenant": "acme", "before_unix": -1}, 400, "before_unix"),
        ({"tenant": "acme", "modell": "m"}, 400, "modell"),
    ],
)
async def test_a_purge_that_means_nothing_is_refused_by_name(admin: Admin, wanted: dict[str, Any], status: int, param: str | None) -> None:
    refused = await admin.client.post(PURGE, json=wanted, headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)
    assert await SqlCachePurges(admin.engine).newest() == 0


def observed() -> Metrics:
    metrics = Metrics(["m"])
    usage = Usage(100, 20)
    hit = Record(
        request_id="r",
        at_unix=1.0,
        outcome="ok",
        status=200,
        duration_s=0.1,
        overhead_s=0.1,
        tenant="acme",
        closing="hit",
        cache="hit-exact",
        saved=usage,
        saved_nanousd=1_500_000_000,
    )
    for record in (
        hit,
        hit,
        *(_with(hit, cache=word) for word in ("miss", "hit-partial", "hit-semantic", "bypass:tools", "bypass:tools", "bypass:asked")),
    ):
        metrics.observe(record)
    metrics.observe(_with(hit, tenant="bolt", cache="miss", not_kept="length", resembled="differs:numbers"))
    return metrics


def _with(record: Record, **fields: Any) -> Record:
    return msgspec.structs.replace(record, **{"saved": NO_USAGE, "saved_nanousd": 0, **fields})


async def test_what_the_cache_did_is_shown_by_tenant(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def workers(_: object) -> list[WorkerSnapshot]:
        similar = SimilarState("ready", IndexFigures(kind="memory", questions=5, bytes=6000))
        figures = StoreFigures(kind="memory", entries=3, bytes=900, evicted=1)
        of_each = {"pid": 1, "state": "ready", "started_at": 0.0, "metrics": observed().snapshot(0), "answers": figures, "similar": similar}
        return [WorkerSnapshot(index=index, **of_each) for index in range(2)]

    monkeypatch.setattr(Processes, "workers", workers)
    shown = (await admin.client.get(f"{API}/cache", headers=bearer("auditor"))).json()
    acme = {
        "tenant": "acme",
        "hits": 4,
        "partial_hits": 2,
        "semantic_hits": 2,
        "misses": 2,
        "bypassed": {"tools": 4, "asked": 2},
        "not_kept": {},
        "not_similar": {},
        "saved_prompt_tokens": 400,
        "saved_completion_tokens": 80,
        "saved_usd": "6.00",
    }
    assert shown["tenants"][0] == acme
    assert [one["tenant"] for one in shown["tenants"]] == ["acme", "bolt"]
    assert (shown["tenants"][1]["not_kept"], shown["tenants"][1]["not_similar"]) == ({"length": 2}, {"differs": 2})
    assert [(one["worker"], one["kind"], one["entries"], one["bytes"]) for one in shown["workers"]] == [
        (0, "memory", 3, 900),
        (1, "memory", 3, 900),
    ]
    assert [(one["worker"], one["state"], one["questions"]) for one in shown["similar"]] == [(0, "ready", 5), (1, "ready", 5)]
    own = (await admin.client.get(f"{API}/cache", headers=bearer("tenant-admin"))).json()
    assert own == {"tenants": [acme], "workers": [], "similar": [], "audited": shown["audited"][:1]}
    assert [(one["owner"], one["wrong_rate"], one["stopped"]) for one in shown["audited"]] == [
        ("acme", 0.005, False),
        ("bolt", 0.045, True),
        ("group:all", 0.0, False),
    ]


ENTRIES = f"{API}/cache/entries"
KEY = "6b" * 32


async def test_kept_answers_are_listed_without_their_content(admin: Admin) -> None:
    found = await admin.client.get(f"{ENTRIES}?tenant=acme&namespace=n&limit=7", headers=bearer("auditor"))
    entry = {"key": KEY, "model": "sim", "namespace": "n", "bytes": 70, "kept_unix": 5.0, "expires_unix": 65.0, "writer": "k1"}
    assert (found.status_code, found.json()) == (200, {"entries": [entry]})
    assert admin.parts.kept.asked == [(Selection(owner="acme", namespace="n"), 7)]  # type: ignore[attr-defined]
    none = await admin.client.get(f"{ENTRIES}?group=all&before_unix=5", headers=OWNER)
    assert (none.status_code, none.json()) == (200, {"entries": []})


async def test_content_is_for_owners_and_admins_of_the_tenant(admin: Admin) -> None:
    shown = {role: await admin.client.get(f"{ENTRIES}/{KEY}?tenant=acme", headers=bearer(role)) for role in ("owner", "tenant-admin")}
    for reply in shown.values():
        assert (reply.status_code, reply.json()["document"]) == (200, {"id": "x", "choices": []})
        assert (reply.json()["prompt_tokens"], reply.json()["completion_tokens"]) == (3, 4)
    for role in ("admin", "operator", "billing", "auditor"):
        assert (await admin.client.get(f"{ENTRIES}/{KEY}?tenant=acme", headers=bearer(role))).status_code == 403
    assert (await admin.client.get(f"{ENTRIES}/{'00' * 32}?tenant=acme", headers=OWNER)).status_code == 404


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ("", 400, "tenant"),
        ("?tenant=acme&group=all", 400, "tenant"),
        ("?tenant=nobody", 404, None),
        ("?group=away", 503, None),
        ("?tenant=acme&limit=0", 400, "limit"),
        ("?tenant=acme&modell=m", 400, "modell"),
    ],
)
async def test_a_list_that_means_nothing_is_refused_by_name(admin: Admin, query: str, status: int, param: str | None) -> None:
    refused = await admin.client.get(ENTRIES + query, headers=OWNER)
    assert (refused.status_code, refused.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("query", ["?tenant=bolt", "?group=all"])
async def test_a_tenants_admin_sees_his_own_answers_alone(admin: Admin, query: str) -> None:
    for path in (ENTRIES, f"{ENTRIES}/{KEY}"):
        assert (await admin.client.get(path + query, headers=bearer("tenant-admin"))).status_code == 404
