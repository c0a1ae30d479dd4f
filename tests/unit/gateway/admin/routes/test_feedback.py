"""Ratings over the API: of one's own tenant, in pages, with comments for those alone who may read content."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.identity import TenantId
from tenancy.feedback import Feedback
from tenancy.stores.sql import SqlFeedback
from tests.admin_harness import API, OWNER, Admin, admin_port, bearer

NOW = 1_800_000_000.0


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Admin]:
    async with admin_port(tmp_path) as made:
        store = SqlFeedback(made.engine)
        for n in range(5):
            tenant = TenantId("bolt" if n == 4 else "acme")
            await store.put(Feedback(tenant, f"req-{n}", "caller", NOW + n, NOW + 99, "down" if n % 2 else "up", comment=f"said {n}"), 9)
        await store.put(Feedback(TenantId("acme"), "req-0", "judge", NOW, NOW + 99, "down", score=2), 9)
        yield made


async def ids(admin: Admin, query: str = "", headers: dict[str, str] = OWNER) -> list[str]:
    reply = await admin.client.get(f"{API}/feedback{query}", headers=headers)
    assert reply.status_code == 200, reply.text
    return [one["request_id"] for one in reply.json()["items"]]


async def test_ratings_come_newest_first_and_in_pages(admin: Admin) -> None:
    assert await ids(admin) == ["req-4", "req-3", "req-2", "req-1", "req-0", "req-0"]
    first = (await admin.client.get(f"{API}/feedback?limit=5", headers=OWNER)).json()
    assert await ids(admin, f"?limit=5&cursor={first['next_cursor']}") == ["req-0"]
    assert await ids(admin, "?source=judge") == ["req-0"]
    assert await ids(admin, "?rating=down&since_unix=1800000001") == ["req-3", "req-1"]
    reply = await admin.client.get(f"{API}/feedback?rating=five", headers=OWNER)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "rating")


async def test_a_tenant_admin_sees_its_own_tenant_alone(admin: Admin) -> None:
    own = bearer("tenant-admin", "bolt")
    assert await ids(admin, headers=own) == ["req-4"]
    assert await ids(admin, "?tenant=bolt", headers=own) == ["req-4"]
    assert (await admin.client.get(f"{API}/feedback?tenant=acme", headers=own)).status_code == 404


async def test_comments_are_for_those_who_may_read_content(admin: Admin) -> None:
    for who, comment in ((OWNER, "said 3"), (bearer("tenant-admin"), "said 3"), (bearer("auditor"), None), (bearer("operator"), None)):
        items = (await admin.client.get(f"{API}/feedback?request_id=req-3", headers=who)).json()["items"]
        assert [one["comment"] for one in items] == [comment], who
