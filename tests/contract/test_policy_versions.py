"""The store of policies: one suite over SQLite and real Postgres."""

from unittest.mock import patch

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

import tenancy.stores.sql.policy_versions
from tenancy.stores.sql import SqlPolicyVersions

FILES = {"acme.yaml": "tenant: acme\n# 'quoted', ünï\n", "all.yaml": 'tenant: "*"\n'}


@pytest.fixture
async def versions(sql_engine: AsyncEngine) -> SqlPolicyVersions:
    return SqlPolicyVersions(sql_engine)


@pytest.mark.slow
async def test_versions_follow_each_other_and_keep_what_they_were(versions: SqlPolicyVersions) -> None:
    assert (await versions.current(), await versions.newest(None, 10)) == (0, [])
    first = await versions.append(FILES, "d1", "key a", "begun", 5.0)
    second = await versions.append({"all.yaml": "x"}, "d2", "key b", "", 6.0)
    assert (first.version, second.version, await versions.current()) == (1, 2, 2)
    assert await versions.files(1) == FILES
    assert await versions.find(1) == first
    assert (first.files, first.note, first.at_unix) == (2, "begun", 5.0)
    assert await versions.newest(None, 1) == [second]
    assert await versions.newest(2, 5) == [first]
    assert (await versions.find(3), await versions.files(3)) == (None, None)


async def test_old_versions_are_forgotten_and_numbers_go_on(versions: SqlPolicyVersions) -> None:
    with patch.object(tenancy.stores.sql.policy_versions, "MAX_VERSIONS", 3):
        for n in range(5):
            await versions.append(FILES, f"d{n}", "a", "", float(n))
    assert [one.version for one in await versions.newest(None, 10)] == [5, 4, 3]
    assert await versions.files(2) is None
