"""What a directory in memory holds: one dictionary per kind of record, by what names it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from domain.identity import KeyId, ProjectId, TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, LimitRecord, Organisation, Project, Tenant
from tenancy.keys import KeyRecord
from tenancy.limits import Scope
from tenancy.prices import Price
from tenancy.stores.rules import page_size

R = TypeVar("R")


def _default() -> dict[str, Organisation]:
    return {DEFAULT_ORGANISATION: Organisation(DEFAULT_ORGANISATION)}


@dataclass(slots=True)
class State:
    """Records are frozen, so a copy of the dictionaries is a copy of everything."""

    version: int = 1
    dirty: bool = False
    """Whether the open transaction has written."""
    organisations: dict[str, Organisation] = field(default_factory=_default)
    tenants: dict[TenantId, Tenant] = field(default_factory=dict)
    retired: set[TenantId] = field(default_factory=set)
    """Names of deleted tenants."""
    projects: dict[tuple[TenantId, ProjectId], Project] = field(default_factory=dict)
    keys: dict[KeyId, KeyRecord] = field(default_factory=dict)
    limits: dict[str, LimitRecord] = field(default_factory=dict)
    prices: dict[str, Price] = field(default_factory=dict)

    def copy(self) -> "State":
        """For one transaction."""
        made = State(self.version)
        for one in fields(State)[2:]:
            setattr(made, one.name, getattr(self, one.name).copy())
        return made


def page_of(records: dict[str, R], after: str, limit: int) -> list[R]:
    """Up to `limit` records by name, from behind `after`."""
    return [records[name] for name in sorted(name for name in records if name > after)[: page_size(limit)]]


def forget_limits(state: State, scopes: Iterable[Scope]) -> None:
    """What hangs on something that goes."""
    gone = set(scopes)
    state.limits = {key: record for key, record in state.limits.items() if record.limit.scope not in gone}
