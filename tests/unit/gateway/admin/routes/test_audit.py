"""The audit over the API."""

from pathlib import Path

import pytest

from tests.admin_harness import API, OWNER, admin_port, bearer


@pytest.mark.req("R55")
async def test_rows_come_newest_first_page_by_page_and_verify(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        for _ in range(5):
            await admin.client.post(f"{API}/backends/s/drain", headers=bearer("operator"))
        got, cursor = [], ""
        while True:
            page = (await admin.client.get(f"{API}/audit?limit=2{cursor}", headers=OWNER)).json()
            got += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert [row["seq"] for row in got] == [5, 4, 3, 2, 1]
        assert {(row["actor"], row["role"], row["action"], row["target"]) for row in got} == {
            ("key oper@acme", "operator", "backend.drain", "backend/s")
        }
        assert got[0]["after"] == {"grace_s": 120.0, "source": "static"}
        found = (await admin.client.get(f"{API}/audit/verification", headers=bearer("auditor"))).json()
        assert found == {"rows": 5, "head": got[0]["hash"], "broken_at": None, "why": ""}


async def test_rows_of_one_action_or_of_all_that_begin_so(tmp_path: Path) -> None:
    async with admin_port(tmp_path) as admin:
        await admin.client.post(f"{API}/backends/s/drain", headers=bearer("operator"))
        await admin.client.post(f"{API}/tenants", json={"name": "north"}, headers=OWNER)
        found = {}
        for action in ("backend", "backend.drain", "backend.d", "tenant", "guard"):
            page = (await admin.client.get(f"{API}/audit?action={action}", headers=OWNER)).json()
            found[action] = [row["action"] for row in page["items"]]
        assert found == {
            "backend": ["backend.drain"],
            "backend.drain": ["backend.drain"],
            "backend.d": [],
            "tenant": ["tenant.create"],
            "guard": [],
        }
