"""A tenant has room for so many keys and projects, and no more: the law, over a store in memory."""

import pytest

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_PROJECT, DirectoryBounds, Project, Tenant
from tenancy.directory_ports import EVERYWHERE, NoRoom, room_for_key, room_for_project
from tenancy.keys import KeyRecord, revoked
from tenancy.stores.memory import MemoryDirectory

ACME, BOLT = TenantId("acme"), TenantId("bolt")
BOUNDS = DirectoryBounds(keys=3, projects=2)


async def made_key(store: MemoryDirectory, n: int, tenant: TenantId = ACME) -> None:
    record = KeyRecord(KeyId(f"key{n:07}"), tenant, DEFAULT_PROJECT, "k1", (b"d" * 32,), created_unix=float(n))
    async with store.transaction() as change:
        await room_for_key(change, tenant, BOUNDS)
        await change.keys.create(EVERYWHERE, record)


@pytest.fixture
async def store() -> MemoryDirectory:
    made = MemoryDirectory()
    async with made.transaction() as change:
        for tenant in (ACME, BOLT):
            await change.tenants.create(Tenant(tenant))
    return made


async def test_keys_that_are_not_revoked_are_bounded_for_each_tenant_by_itself(store: MemoryDirectory) -> None:
    for n in range(3):
        await made_key(store, n)
    with pytest.raises(NoRoom, match=r"'acme' has 3 keys that are not revoked.*tenants\.max_keys.*revoke"):
        await made_key(store, 3)
    await made_key(store, 3, BOLT)
    async with store.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(await change.keys.get(EVERYWHERE, KeyId("key0000000")), 9.0))
    await made_key(store, 4)


async def test_whoever_makes_and_revokes_for_ever_fills_nothing(store: MemoryDirectory) -> None:
    for n in range(50):
        await made_key(store, n)
        async with store.transaction() as change:
            await change.keys.update(EVERYWHERE, revoked(await change.keys.get(EVERYWHERE, KeyId(f"key{n:07}")), float(n)))
    kept = [int(one.id[3:]) for one in (await store.load()).keys]
    assert kept == [46, 47, 48, 49], "the last of the revoked ones, and the one that was revoked since"


async def test_projects_are_bounded(store: MemoryDirectory) -> None:
    for name, room in (("one", True), ("two", False)):
        async with store.transaction() as change:
            if room:
                await room_for_project(change, ACME, BOUNDS)
                await change.projects.create(EVERYWHERE, Project(ACME, ProjectId(name)))
            else:
                with pytest.raises(NoRoom, match=r"'acme' has 2 projects.*tenants\.max_projects"):
                    await room_for_project(change, ACME, BOUNDS)
