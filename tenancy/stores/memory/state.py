"""The state of a directory in memory: one dictionary per kind of record, by the record's name or id."""

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
    """All records of a directory. Records are frozen, so a copy of the dictionaries is a copy of everything."""

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
        """A copy for one transaction."""
        copied = State(self.version)
        for attribute in fields(State)[2:]:
            setattr(copied, attribute.name, getattr(self, attribute.name).copy())
        return copied


def page_of(records: dict[str, R], after: str, limit: int) -> list[R]:
    """Up to `limit` records by name, those after `after`."""
    return [records[name] for name in sorted(name for name in records if name > after)[: page_size(limit)]]


def forget_limits(state: State, scopes: Iterable[Scope]) -> None:
    """Remove the limits of scopes that are deleted."""
    gone = set(scopes)
    state.limits = {key: record for key, record in state.limits.items() if record.limit.scope not in gone}
