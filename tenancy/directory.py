"""The directory: keys with their rights, limits and prices, as one immutable snapshot for the request path. Pure; a store's contents
go in, look-ups come out.

Grants are compiled when they are first asked for: swapping in a snapshot of 10,000 keys costs nothing for keys that send no request.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import Contents, Organisation, Project, Tenant
from tenancy.grant import Grant, Holder, OfUsers
from tenancy.keys import Digest, KeyRecord, KeyRing, Pepper, digest_of
from tenancy.limits import Group, Level, Limit, LimitLine, Rolling, Scope, Window, line_of
from tenancy.prices import PriceBook
from tenancy.rights import Rights, combined

GLOBAL_SCOPE: Final = Scope(Level.GLOBAL, "")
GLOBAL_TAG: Final = "global/"
"""The slash keeps it apart from a tenant of that name."""
SHARED_TAGS: Final = {Level.ORGANISATION: "org/", Level.MODEL: "model/", Level.GLOBAL: GLOBAL_TAG}
CALENDAR: Final = frozenset({Window.HOUR, Window.DAY, Window.WEEK, Window.MONTH, Window.EVER})


class Directory:
    """A snapshot of the directory: `keys` authenticates a caller, `grant` returns its rights and limits, `prices` has the prices."""

    __slots__ = (
        "_everywhere",
        "_limits",
        "_lines_of",
        "_models",
        "_of_projects",
        "_of_users",
        "_organisation_groups",
        "_organisations",
        "_projects",
        "_raise_ends",
        "_records",
        "_shared",
        "_tenants",
        "grants",
        "keys",
        "prices",
        "until_unix",
        "version",
    )

    def __init__(self, contents: Contents, pepper: Pepper, digest: Digest = digest_of) -> None:
        self.version = contents.version
        self.prices = PriceBook(contents.prices)
        self._organisations = {organisation.name: organisation for organisation in contents.organisations}
        self._tenants = {tenant.name: tenant for tenant in contents.tenants}
        self._projects = {(project.tenant, project.name): project for project in contents.projects}
        self._records = {record.id: record for record in contents.keys}
        self.keys = KeyRing(map(self._effective_record, contents.keys), pepper, digest)
        self._limits: defaultdict[Scope, list[Limit]] = defaultdict(list)
        for limit in contents.limits:
            self._limits[limit.scope].append(limit)
        # here and not at the first request, which waited for it on the event loop
        self._raise_ends = frozenset(limit.raised_until_unix for limit in contents.limits if limit.raised_until_unix is not None)
        self._shared = tuple(scope for scope in self._limits if scope.level in SHARED_TAGS)
        self.until_unix = -math.inf
        """Until when `grants` hold: the end of the next temporary raise of a limit."""
        self.grants: dict[KeyId, Grant] = {}
        """The grants compiled by now, by key."""
        self._of_projects: dict[tuple[TenantId, ProjectId], Grant] = {}
        self._of_users: OfUsers = {}
        self._lines_of: dict[Scope, tuple[LimitLine, ...]] = {}
        """Lines of the scopes that many keys share."""
        self._organisation_groups: dict[str, Group] = {}
        self._models: dict[str, Group] = {}
        self._everywhere: Group | None = None

    @property
    def several_tenants(self) -> bool:
        """Whether there is more than one tenant."""
        return len(self._tenants) > 1

    def grant(self, key_id: KeyId, now_unix: float) -> Grant:
        """The rights and limits of a key. One look-up, until a temporary raise of some limit ends.

        Raises:
            KeyError: there is no such key; never for a key that `keys` has just authenticated.
        """
        if now_unix >= self.until_unix:
            self._drop_compiled(now_unix)
        grant = self.grants.get(key_id)
        if grant is None:
            record = self._records[key_id]
            home = self._home(record.tenant, record.project)
            if home is None:
                raise KeyError(key_id)
            grant = self.grants[key_id] = self._compiled(home, record, now_unix)
        return grant

    def for_tenant(self, tenant: TenantId, project: ProjectId, now_unix: float) -> Grant | None:
        """The rights and limits of a caller with a token and no API key; None where there is no such project, or it is disabled."""
        if now_unix >= self.until_unix:
            self._drop_compiled(now_unix)
        grant = self._of_projects.get((tenant, project))
        if grant is None:
            home = self._home(tenant, project)
            if home is None or any(level.disabled for level in home):
                return None
            grant = self._of_projects[tenant, project] = self._compiled(home, None, now_unix)
        return grant

    def key(self, key_id: KeyId) -> KeyRecord | None:
        """The key of this id as it was stored; None for an unknown id."""
        return self._records.get(key_id)

    def calendar_limits(self) -> Iterator[tuple[str, Limit]]:
        """Every limit over a period of the calendar or for ever, and the tag it is counted under."""
        for scope, limits in self._limits.items():
            tag = self._tag(scope)
            if tag is not None:
                yield from ((tag, limit) for limit in limits if limit.window in CALENDAR or isinstance(limit.window, Rolling))

    def limits_of_tenants(self) -> Iterator[tuple[str, Limit]]:
        """Every limit of a tenant, of its projects and of its keys, with the tenant's id, under which it is counted."""
        for scope, limits in self._limits.items():
            if scope.level in (Level.TENANT, Level.PROJECT, Level.KEY) and (tenant := self._tag(scope)) is not None:
                yield from ((tenant, limit) for limit in limits)

    def shared_limits(self) -> Iterator[tuple[Scope, str, Limit]]:
        """Every limit of an organisation, of a model and of the gateway, with its scope and the tag it is counted under."""
        for scope, limits in self._limits.items():
            if (prefix := SHARED_TAGS.get(scope.level)) is not None:
                yield from ((scope, prefix + scope.name, limit) for limit in limits)

    def _tag(self, scope: Scope) -> str | None:
        if scope.level in (Level.TENANT, Level.PROJECT, Level.USER):
            return scope.name.partition("/")[0]
        if scope.level is Level.KEY:
            record = self._records.get(KeyId(scope.name))
            return None if record is None else record.tenant
        return SHARED_TAGS[scope.level] + scope.name

    def _home(self, tenant: TenantId, project: ProjectId) -> tuple[Organisation, Tenant, Project] | None:
        owner = self._tenants.get(tenant)
        place = self._projects.get((tenant, project))
        organisation = self._organisations.get(owner.organisation) if owner is not None else None
        return None if owner is None or place is None or organisation is None else (organisation, owner, place)

    def _effective_record(self, record: KeyRecord) -> KeyRecord:
        """The key, disabled where its project, its tenant or its organisation is."""
        home = self._home(record.tenant, record.project)
        if home is not None and not any(level.disabled for level in home):
            return record
        return msgspec.structs.replace(record, disabled=True)

    def _drop_compiled(self, now_unix: float) -> None:
        """Drop all that was compiled before a raise ended: raises are few, and only what is asked for is compiled again."""
        self.until_unix = min((end for end in self._raise_ends if end > now_unix), default=math.inf)
        self.grants.clear()
        self._of_projects.clear()
        self._of_users.clear()
        self._lines_of.clear()
        # new dictionaries, because grants that requests still use share the old ones
        self._organisation_groups = {
            scope.name: Group(SHARED_TAGS[scope.level] + scope.name, self._lines([scope], now_unix))
            for scope in self._shared
            if scope.level is Level.ORGANISATION
        }
        self._models = {
            scope.name: Group(SHARED_TAGS[scope.level] + scope.name, self._lines([scope], now_unix))
            for scope in self._shared
            if scope.level is Level.MODEL
        }
        everywhere = self._lines([GLOBAL_SCOPE], now_unix)
        self._everywhere = Group(GLOBAL_TAG, everywhere) if everywhere else None

    def _compiled(self, home: tuple[Organisation, Tenant, Project], record: KeyRecord | None, now_unix: float) -> Grant:
        organisation, tenant, project = home
        place = f"{tenant.name}/{project.name}"
        levels: list[tuple[Scope, Rights]] = [
            (Scope(Level.ORGANISATION, organisation.name), organisation.rights),
            (Scope(Level.TENANT, tenant.name), tenant.rights),
            (Scope(Level.PROJECT, place), project.rights),
        ]
        holder = Holder(organisation.name, tenant.name, project.name)
        if record is not None:
            levels.append((Scope(Level.KEY, record.id), record.rights))
            holder = Holder(organisation.name, tenant.name, project.name, record.id, record.scopes, record.roles)
        return Grant(
            holder,
            combined(levels),
            own=self._lines((scope for scope, _ in levels[1:]), now_unix),
            per_user=self._lines((Scope(Level.USER, tenant.name), Scope(Level.USER, place)), now_unix),
            organisation=self._organisation_groups.get(organisation.name),
            models=self._models,
            everywhere=self._everywhere,
            of_users=self._of_users,
        )

    def _lines(self, scopes: Iterable[Scope], now_unix: float) -> tuple[LimitLine, ...]:
        compiled: tuple[LimitLine, ...] = ()
        for scope in scopes:
            lines = self._lines_of.get(scope)
            if lines is None:
                lines = tuple(line_of(limit, now_unix) for limit in self._limits.get(scope, ()))
                if scope.level is not Level.KEY:
                    self._lines_of[scope] = lines
            compiled += lines
        return compiled

    def __repr__(self) -> str:
        return f"Directory(version {self.version}, {len(self.keys)} keys)"
