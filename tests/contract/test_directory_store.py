"""The directory store ports: one suite over memory, SQLite and real Postgres."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from domain.identity import KeyId, ProjectId, TenantId
from domain.priority import Class
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Organisation, Project, Tenant
from tenancy.directory_ports import EVERYWHERE, AlreadyExists, Conflict, DirectoryChange, DirectoryStore, NotFound, StillInUse, Within
from tenancy.keys import KeyRecord, revoked, rotated
from tenancy.limits import Level, Limit, Meter, Rolling, Scope, Window, state_key
from tenancy.prices import Price, TokenRates
from tenancy.rights import Caps, KeyScope, Rights, Role
from tenancy.stores.memory import MemoryDirectory
from tenancy.stores.sql import SqlDirectory

ACME, BOLT = TenantId("acme"), TenantId("bolt")
KEY = KeyId("abcdefghij")
RIGHTS = Rights(models=frozenset({"a", "b'; --"}), endpoints=frozenset(), caps=Caps(max_choices=2, tools=False), priority_class=Class.BATCH)
REQUESTS = Limit(Scope(Level.TENANT, "acme"), Meter.REQUESTS, Window.MINUTE, 60, burst=10, soft=50)


def key(key_id: str = KEY, **fields: Any) -> KeyRecord:
    made: dict[str, Any] = {"tenant": ACME, "project": DEFAULT_PROJECT, "kid": "k1", "digests": (b"d" * 32,), "created_unix": 1.5}
    return KeyRecord(id=KeyId(key_id), **{**made, **fields})


def limit(level: Level, name: str, **fields: Any) -> Limit:
    return Limit(**{"scope": Scope(level, name), "meter": Meter.TOKENS, "window": Window.DAY, "amount": 1000, **fields})


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> DirectoryStore:
    return MemoryDirectory() if kept_in is None else SqlDirectory(kept_in)


@pytest.fixture
async def peopled(store: DirectoryStore) -> DirectoryStore:
    """Two tenants, each with a key, a project `lab` and a limit of its own; and limits that are nobody's."""
    async with store.transaction() as change:
        for tenant, key_id in ((ACME, KEY), (BOLT, "0123456789")):
            await change.tenants.create(Tenant(tenant, created_unix=1.0))
            await change.projects.create(EVERYWHERE, Project(tenant, ProjectId("lab")))
            await change.keys.create(EVERYWHERE, key(key_id, tenant=tenant, project=ProjectId("lab")))
            for level, name in ((Level.TENANT, tenant), (Level.PROJECT, f"{tenant}/lab"), (Level.KEY, key_id), (Level.USER, tenant)):
                await change.limits.put(EVERYWHERE, limit(level, name), 0)
        for level, name in ((Level.GLOBAL, ""), (Level.MODEL, "chat"), (Level.ORGANISATION, DEFAULT_ORGANISATION)):
            await change.limits.put(EVERYWHERE, limit(level, name), 0)
    return store


async def refused(store: DirectoryStore, why: type[Exception], act: Callable[[DirectoryChange], Awaitable[Any]], says: str = "") -> None:
    """The act is refused, for this reason, and changes nothing."""
    before = await store.load()
    with pytest.raises(why, match=says or None):
        async with store.transaction() as change:
            await act(change)
    assert by_name(await store.load()) == by_name(before)


def by_name(contents: Any) -> dict[str, Any]:
    values = msgspec.structs.asdict(contents)
    return {what: sorted(found, key=repr) if isinstance(found, tuple) else found for what, found in values.items()}


async def test_an_empty_store_has_the_default_organisation_and_nothing_else(store: DirectoryStore) -> None:
    contents = await store.load()
    assert [one.name for one in contents.organisations] == [DEFAULT_ORGANISATION]
    assert contents.version == await store.version() == 1
    assert (contents.tenants, contents.projects, contents.keys, contents.limits, contents.prices) == ((), (), (), (), ())


async def test_what_is_written_is_read_back(store: DirectoryStore) -> None:
    full = key(
        label="ci; DROP TABLE tenant",
        digests=(b"a" * 32, b"b" * 32),
        old_until_unix=7.5,
        expires_unix=9.25,
        disabled=True,
        scopes=frozenset(KeyScope),
        roles=frozenset({Role.TENANT_ADMIN, Role.BILLING}),
        rights=RIGHTS,
        tags=(("team", "s'; --"), ("tier", "gold")),
        networks=("10.0.0.0/8", "2001:db8::/32"),
    )
    raised = msgspec.structs.replace(REQUESTS, raised_to=90, raised_until_unix=123.25)
    zoned = Limit(Scope(Level.TENANT, ACME), Meter.COST_NANOUSD, Window.WEEK, 7, zone="America/Argentina/ComodRivadavia")
    price = Price("p1", "chat", "v2", 5.5, TokenRates(10**12, 2, 3, 4), TokenRates(1, 2, 3, 4))
    doubted = Price("p2", "chat", "v3", 5.5, TokenRates(5, 0, 3, 0), zeros_stated=False)
    async with store.transaction() as change:
        await change.organisations.create(Organisation("corp", "The corp", True, RIGHTS, 2.0))
        await change.tenants.create(Tenant(ACME, "corp", "Acme", True, RIGHTS, 3.0))
        await change.projects.create(EVERYWHERE, Project(ACME, ProjectId("lab"), "Lab", True, RIGHTS, 4.0))
        await change.keys.create(EVERYWHERE, full)
        await change.limits.put(EVERYWHERE, raised, 0)
        await change.limits.put(EVERYWHERE, zoned, 0)
        await change.prices.add(price)
        await change.prices.add(doubted)
    contents = await store.load()
    assert contents.organisations[-1] == Organisation("corp", "The corp", True, RIGHTS, 2.0)
    assert contents.tenants == (Tenant(ACME, "corp", "Acme", True, RIGHTS, 3.0),)
    assert set(contents.projects) == {
        Project(ACME, DEFAULT_PROJECT, created_unix=3.0),
        Project(ACME, ProjectId("lab"), "Lab", True, RIGHTS, 4.0),
    }
    assert (contents.keys, set(contents.limits), contents.prices) == ((full,), {raised, zoned}, (price, doubted))
    async with store.transaction() as change:
        assert await change.organisations.get("corp") == contents.organisations[-1]
        assert await change.tenants.get(ACME, ACME) == contents.tenants[0]
        assert await change.projects.get(ACME, ACME, ProjectId("lab")) in contents.projects
        assert await change.keys.get(ACME, KEY) == full
        assert (await change.limits.get(ACME, raised.scope, raised.meter, raised.window)).limit == raised
        assert (await change.limits.get(ACME, zoned.scope, zoned.meter, zoned.window)).limit == zoned
        for rolling in [limit(Level.TENANT, "acme", window=Rolling(days)) for days in (7, 30, 366)]:
            await change.limits.put(EVERYWHERE, rolling, 0)
            assert (await change.limits.get(ACME, rolling.scope, rolling.meter, rolling.window)).limit == rolling
        moved = msgspec.structs.replace(zoned, zone="Asia/Kathmandu")
        assert (await change.limits.put(ACME, moved, 1)).limit == moved
        assert await change.prices.get("p1") == price
    assert moved in (await store.load()).limits


async def test_a_transaction_that_fails_changes_nothing_and_one_that_reads_raises_no_counter(peopled: DirectoryStore) -> None:
    async def fails(change: DirectoryChange) -> None:
        await change.tenants.create(Tenant(TenantId("third")))
        await change.keys.update(ACME, revoked(await change.keys.get(ACME, KEY), 5.0))
        raise LookupError("the audit log takes no rows")

    await refused(peopled, LookupError, fails, "audit")
    before = await peopled.version()
    async with peopled.transaction() as change:
        await change.tenants.get(EVERYWHERE, ACME)
    assert await peopled.version() == before


async def test_every_write_raises_the_counter(peopled: DirectoryStore) -> None:
    acts: list[Callable[[DirectoryChange], Awaitable[Any]]] = [
        lambda change: change.organisations.create(Organisation("corp")),
        lambda change: change.organisations.update(Organisation("corp", disabled=True)),
        lambda change: change.organisations.delete("corp", 2),
        lambda change: change.tenants.create(Tenant(TenantId("third"))),
        lambda change: change.tenants.update(EVERYWHERE, Tenant(TenantId("third"), disabled=True)),
        lambda change: change.projects.create(EVERYWHERE, Project(TenantId("third"), ProjectId("p"))),
        lambda change: change.projects.update(EVERYWHERE, Project(TenantId("third"), ProjectId("p"), "x")),
        lambda change: change.projects.delete(EVERYWHERE, TenantId("third"), ProjectId("p"), 2),
        lambda change: change.tenants.delete(EVERYWHERE, TenantId("third"), 2),
        lambda change: change.keys.create(EVERYWHERE, key("9999999999")),
        lambda change: change.keys.update(EVERYWHERE, key("9999999999", disabled=True)),
        lambda change: change.limits.put(EVERYWHERE, REQUESTS, 0),
        lambda change: change.limits.put(EVERYWHERE, REQUESTS, 1),
        lambda change: change.limits.remove(EVERYWHERE, REQUESTS.scope, REQUESTS.meter, REQUESTS.window, 2),
        lambda change: change.prices.add(Price("p", "m", "*", 1.0, TokenRates())),
    ]
    for act in acts:
        before = await peopled.version()
        async with peopled.transaction() as change:
            await act(change)
        assert await peopled.version() > before
    assert (await peopled.load()).version == await peopled.version()


async def test_a_change_made_from_an_older_version_is_refused(peopled: DirectoryStore) -> None:
    stale: list[Callable[[DirectoryChange], Awaitable[Any]]] = [
        lambda change: change.organisations.update(Organisation(DEFAULT_ORGANISATION, version=7)),
        lambda change: change.organisations.delete(DEFAULT_ORGANISATION, 7),
        lambda change: change.tenants.update(EVERYWHERE, Tenant(ACME, version=7)),
        lambda change: change.tenants.delete(EVERYWHERE, ACME, 7),
        lambda change: change.projects.update(EVERYWHERE, Project(ACME, ProjectId("lab"), version=7)),
        lambda change: change.projects.delete(EVERYWHERE, ACME, ProjectId("lab"), 7),
        lambda change: change.keys.update(EVERYWHERE, key(version=7)),
        lambda change: change.limits.put(EVERYWHERE, limit(Level.TENANT, ACME), 7),
        lambda change: change.limits.put(EVERYWHERE, limit(Level.TENANT, ACME), 0),
        lambda change: change.limits.put(EVERYWHERE, REQUESTS, 1),
        lambda change: change.limits.remove(EVERYWHERE, Scope(Level.TENANT, ACME), Meter.TOKENS, Window.DAY, 7),
    ]
    for act in stale:
        await refused(peopled, Conflict, act, "read it again")


async def test_updates_count_versions_and_keep_what_does_not_change(peopled: DirectoryStore) -> None:
    async with peopled.transaction() as change:
        stored = await change.keys.get(EVERYWHERE, KEY)
        moved = msgspec.structs.replace(rotated(stored, "k1", b"n" * 32, 10.0, 60.0), tenant=BOLT, created_unix=99.0, label="new")
        after = await change.keys.update(EVERYWHERE, moved)
    wanted = key(project=ProjectId("lab"), digests=(b"n" * 32, b"d" * 32), old_until_unix=70.0, label="new", version=2)
    async with peopled.transaction() as change:
        assert await change.keys.get(EVERYWHERE, KEY) == after == wanted
        tenant = await change.tenants.update(ACME, Tenant(ACME, label="new", created_unix=99.0))
        assert tenant == await change.tenants.get(ACME, ACME) == Tenant(ACME, label="new", created_unix=1.0, version=2)


WITHIN_ACME: list[Callable[[DirectoryChange, Within], Awaitable[Any]]] = [
    lambda change, within: change.tenants.get(within, BOLT),
    lambda change, within: change.tenants.update(within, Tenant(BOLT)),
    lambda change, within: change.tenants.delete(within, BOLT, 1),
    lambda change, within: change.projects.page(within, BOLT, "", 10),
    lambda change, within: change.projects.get(within, BOLT, DEFAULT_PROJECT),
    lambda change, within: change.projects.create(within, Project(BOLT, ProjectId("new"))),
    lambda change, within: change.projects.update(within, Project(BOLT, ProjectId("lab"))),
    lambda change, within: change.projects.delete(within, BOLT, ProjectId("lab"), 1),
    lambda change, within: change.keys.get(within, KeyId("0123456789")),
    lambda change, within: change.keys.create(within, key("9999999999", tenant=BOLT)),
    lambda change, within: change.keys.update(within, key("0123456789", tenant=BOLT)),
    *(
        lambda change, within, level=level, name=name: change.limits.put(within, limit(level, name, meter=Meter.REQUESTS), 0)
        for level, name in (
            (Level.TENANT, "bolt"),
            (Level.PROJECT, "bolt/lab"),
            (Level.KEY, "0123456789"),
            (Level.USER, "bolt"),
            (Level.USER, "bolt/lab"),
            (Level.ORGANISATION, "default"),
            (Level.MODEL, "chat"),
            (Level.GLOBAL, ""),
        )
    ),
    *(
        lambda change, within, level=level, name=name: change.limits.remove(within, Scope(level, name), Meter.TOKENS, Window.DAY, 1)
        for level, name in ((Level.TENANT, "bolt"), (Level.KEY, "0123456789"), (Level.GLOBAL, ""), (Level.ORGANISATION, "default"))
    ),
]


@pytest.mark.req("R14")
async def test_nothing_of_another_tenant_exists_within_a_tenant(peopled: DirectoryStore) -> None:
    for act in WITHIN_ACME:
        await refused(peopled, NotFound, lambda change, act=act: act(change, ACME))  # type: ignore[misc]  # bound now, not later
    async with peopled.transaction() as change:
        assert [one.name for one in await change.tenants.page(ACME, "", 10)] == ["acme"]
        assert [one.id for one in await change.keys.page(ACME, "", 10)] == [KEY]
        assert {record.tenant for record in await change.limits.page(ACME, "", 100)} == {"acme"}
        assert {record.tenant for record in await change.limits.page(EVERYWHERE, "", 100)} == {"", "acme", "bolt"}


async def test_what_a_tenant_does_within_itself_is_done(peopled: DirectoryStore) -> None:
    async with peopled.transaction() as change:
        await change.projects.create(ACME, Project(ACME, ProjectId("new")))
        await change.keys.create(ACME, key("9999999999", project=ProjectId("new")))
        record = await change.limits.put(ACME, limit(Level.KEY, "9999999999"), 0)
        assert record.tenant == "acme"
        await change.limits.remove(ACME, record.limit.scope, record.limit.meter, record.limit.window, record.version)


async def test_names_that_are_taken_and_names_that_are_not_there_are_named(peopled: DirectoryStore) -> None:
    async with peopled.transaction() as change:
        await change.prices.add(Price("p", "m", "*", 1.0, TokenRates()))
    taken: list[tuple[Callable[[DirectoryChange], Awaitable[Any]], str]] = [
        (lambda change: change.organisations.create(Organisation(DEFAULT_ORGANISATION)), "default"),
        (lambda change: change.tenants.create(Tenant(ACME)), "acme"),
        (lambda change: change.projects.create(EVERYWHERE, Project(ACME, DEFAULT_PROJECT)), "default"),
        (lambda change: change.keys.create(EVERYWHERE, key()), KEY),
        (lambda change: change.prices.add(Price("p", "other", "*", 1.0, TokenRates())), "'p'"),
        (lambda change: change.prices.add(Price("q", "m", "*", 1.0, TokenRates())), "from that moment"),
    ]
    for act, says in taken:
        await refused(peopled, AlreadyExists, act, says)
    missing: list[tuple[Callable[[DirectoryChange], Awaitable[Any]], str]] = [
        (lambda change: change.organisations.get("no"), "organisation 'no'"),
        (lambda change: change.tenants.create(Tenant(TenantId("third"), "no")), "organisation 'no'"),
        (lambda change: change.tenants.update(EVERYWHERE, Tenant(ACME, "no")), "organisation 'no'"),
        (lambda change: change.projects.create(EVERYWHERE, Project(TenantId("no"), ProjectId("p"))), "tenant 'no'"),
        (lambda change: change.keys.create(EVERYWHERE, key("9999999999", tenant=TenantId("no"))), "tenant 'no'"),
        (lambda change: change.keys.create(EVERYWHERE, key("9999999999", project=ProjectId("no"))), "project 'no'"),
        (lambda change: change.keys.get(EVERYWHERE, KeyId("9999999999")), "9999999999"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.KEY, "9999999999"), 0), "9999999999"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.PROJECT, "acme/no"), 0), "'no'"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.PROJECT, "acme"), 0), "tenant/project"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.TENANT, "acme/lab"), 0), "acme/lab"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.ORGANISATION, "no"), 0), "'no'"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.MODEL, ""), 0), "model"),
        (lambda change: change.limits.put(EVERYWHERE, limit(Level.GLOBAL, "x"), 0), "no name"),
        (lambda change: change.prices.get("no"), "'no'"),
    ]
    for act, says in missing:
        await refused(peopled, NotFound, act, says)


async def test_what_is_needed_cannot_be_deleted(peopled: DirectoryStore) -> None:
    needed: list[Callable[[DirectoryChange], Awaitable[Any]]] = [
        lambda change: change.organisations.delete(DEFAULT_ORGANISATION, 1),
        lambda change: change.tenants.delete(EVERYWHERE, ACME, 1),
        lambda change: change.projects.delete(EVERYWHERE, ACME, ProjectId("lab"), 1),
        lambda change: change.projects.delete(EVERYWHERE, ACME, DEFAULT_PROJECT, 1),
    ]
    for act in needed:
        await refused(peopled, StillInUse, act)

    async def with_tenants(change: DirectoryChange) -> None:
        await change.organisations.create(Organisation("corp"))
        await change.tenants.create(Tenant(TenantId("third"), "corp"))
        await change.organisations.delete("corp", 1)

    await refused(peopled, StillInUse, with_tenants, "1 tenants")


@pytest.mark.parametrize("what", ["tenant", "project"])
async def test_a_deletion_takes_along_what_hangs_on_it_and_nothing_else(peopled: DirectoryStore, what: str) -> None:
    async with peopled.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(await change.keys.get(EVERYWHERE, KEY), 5.0))
        await change.limits.put(EVERYWHERE, limit(Level.USER, "acme/lab"), 0)
        if what == "tenant":
            await change.tenants.delete(EVERYWHERE, ACME, 1)
        else:
            await change.projects.delete(EVERYWHERE, ACME, ProjectId("lab"), 1)
    contents = await peopled.load()
    assert {record.tenant for record in contents.keys} == {"bolt"}
    assert sum(project.tenant == "acme" for project in contents.projects) == (what == "project")
    left = {str(one.scope) for one in contents.limits}
    shared = {"global", "model chat", "organisation default", "tenant bolt", "project bolt/lab", "key 0123456789", "user bolt"}
    assert left == shared | ({"tenant acme", "user acme"} if what == "project" else set())


@pytest.mark.parametrize("size", [1, 3, 100])
async def test_pages_have_everything_once(peopled: DirectoryStore, size: int) -> None:
    async with peopled.transaction() as change:
        for number in range(7):
            await change.organisations.create(Organisation(f"o{number}"))
            await change.keys.create(EVERYWHERE, key(f"{number:010d}"))
            await change.prices.add(Price(f"p{number}", "m" if number % 2 else "n", "*", float(number), TokenRates()))

        async def everything(page: Callable[[str, int], Awaitable[list[Any]]], name: Callable[[Any], str]) -> list[str]:
            found: list[str] = []
            while True:
                some = await page(found[-1] if found else "", size)
                if not some:
                    return found
                assert len(some) <= size
                found += map(name, some)

        assert await everything(change.organisations.page, lambda one: one.name) == ["default", *(f"o{n}" for n in range(7))]
        keys = await everything(lambda after, limit: change.keys.page(EVERYWHERE, after, limit), lambda one: one.id)
        assert sorted(keys) == sorted({*(f"{n:010d}" for n in range(7)), KEY, "0123456789"})
        prices = await everything(lambda after, limit: change.prices.page("m", after, limit), lambda one: one.id)
        assert prices == ["p1", "p3", "p5"]
        named = lambda one: state_key(one.limit.scope, one.limit.meter, one.limit.window)  # noqa: E731 - a name for two lines
        limits = await everything(lambda after, limit: change.limits.page(EVERYWHERE, after, limit), named)
        assert len(limits) == len(set(limits)) == 11


async def test_a_raise_is_set_and_ends_by_being_taken_back(peopled: DirectoryStore) -> None:
    async with peopled.transaction() as change:
        scope = Scope(Level.TENANT, ACME)
        stored = await change.limits.get(ACME, scope, Meter.TOKENS, Window.DAY)
        higher = msgspec.structs.replace(stored.limit, raised_to=5000, raised_until_unix=99.5)
        stored = await change.limits.put(EVERYWHERE, higher, stored.version)
        assert await change.limits.get(ACME, scope, Meter.TOKENS, Window.DAY) == stored
        assert (stored.version, stored.limit.effective(99.0), stored.limit.effective(99.5)) == (2, 5000, 1000)
        plain = msgspec.structs.replace(stored.limit, raised_to=None, raised_until_unix=None)
        assert (await change.limits.put(EVERYWHERE, plain, 2)).limit.effective(0.0) == 1000


async def test_hostile_names_are_only_names(store: DirectoryStore) -> None:
    names = ("'; DROP TABLE api_key; --", 'x" OR "1"="1', "\\", "%s", "{}", "%")
    async with store.transaction() as change:
        for name in names:
            await change.tenants.create(Tenant(TenantId(name)))
        assert {one.name for one in await change.tenants.page(EVERYWHERE, "", 100)} == set(names)
        for name in names:
            assert [one.name for one in await change.tenants.page(TenantId(name), "", 100)] == [name]
    assert len((await store.load()).tenants) == len(names)


async def test_writers_wait_for_each_other(peopled: DirectoryStore) -> None:
    async def relabel() -> None:
        async with peopled.transaction() as change:
            await change.limits.put(EVERYWHERE, REQUESTS, 0)

    async def create(number: int) -> None:
        async with peopled.transaction() as change:
            await change.keys.create(EVERYWHERE, key(f"{number:010d}"))

    before = await peopled.version()
    done = await asyncio.gather(*map(create, range(8)), relabel(), relabel(), return_exceptions=True)
    assert sorted(map(type, filter(None, done)), key=repr) == [Conflict]  # both saw no limit, one was first
    assert await peopled.version() == before + 9
    assert len((await peopled.load()).keys) == 10


async def test_the_name_of_a_deleted_tenant_is_not_given_out_again(peopled: DirectoryStore) -> None:
    """Its usage, its counters and what engines cached for it go by that name."""
    async with peopled.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(await change.keys.get(EVERYWHERE, KEY), 5.0))
        await change.tenants.delete(EVERYWHERE, ACME, 1)
    await refused(peopled, AlreadyExists, lambda change: change.tenants.create(Tenant(ACME)), "was deleted")

    async def taken_back(change: DirectoryChange) -> None:
        await change.tenants.create(Tenant(TenantId("fleeting")))
        await change.tenants.delete(EVERYWHERE, TenantId("fleeting"), 1)
        raise LookupError("not done after all")

    await refused(peopled, LookupError, taken_back)
    async with peopled.transaction() as change:
        await change.tenants.create(Tenant(TenantId("fleeting")))


async def test_keys_and_projects_are_counted_and_the_oldest_revoked_keys_forgotten(peopled: DirectoryStore) -> None:
    ids = [f"revoked00{n}" for n in range(4)]
    async with peopled.transaction() as change:
        for key_id, at in zip(ids, (8.0, 6.0, 6.0, 7.0), strict=True):
            await change.keys.create(EVERYWHERE, key(key_id, revoked_unix=at))
            await change.limits.put(EVERYWHERE, limit(Level.KEY, key_id), 0)
        assert (await change.keys.alive(ACME), await change.keys.alive(BOLT)) == (1, 1)
        assert (await change.projects.count(ACME), await change.projects.count(TenantId("nobody"))) == (2, 0)
    before = await peopled.version()
    async with peopled.transaction() as change:
        await change.keys.forget_revoked(ACME, 4)
    assert await peopled.version() == before, "there was nothing to do"
    async with peopled.transaction() as change:
        await change.keys.forget_revoked(ACME, 3)
    assert {one.id for one in (await peopled.load()).keys} == {KEY, "0123456789", ids[0], ids[2], ids[3]}
    async with peopled.transaction() as change:
        await change.keys.forget_revoked(ACME, 0)
    contents = await peopled.load()
    assert {one.id for one in contents.keys} == {KEY, "0123456789"}
    assert {one.scope.name for one in contents.limits if one.scope.level is Level.KEY} == {KEY, "0123456789"}


async def test_revocations_are_the_keys_that_are_revoked(peopled: DirectoryStore) -> None:
    assert await peopled.revocations() == {}
    async with peopled.transaction() as change:
        await change.keys.update(EVERYWHERE, revoked(await change.keys.get(EVERYWHERE, KEY), 7.5))
    assert await peopled.revocations() == {KEY: 7.5}
