"""The transactions of the admin API, in which every SQL store takes part, and the texts of new keys."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

from domain.identity import KeyId
from domain.membership import MemberStore
from domain.policy_versions import PolicyVersions
from domain.rollouts import RolloutBook
from gateway.http.admin_api import call
from tenancy.directory_ports import DirectoryChange
from tenancy.journal import Change
from tenancy.keys import SECRET_BYTES, mint, mint_again
from tenancy.stores.sql import SqlDirectory, SqlJournal, SqlMemberStore, SqlPolicyVersions, SqlRolloutStore

ENVIRONMENT: Final = "live"
"""The environment in every key's text."""


@dataclass(frozen=True, slots=True)
class _Open:
    change: Change
    members: MemberStore
    rollouts: RolloutBook
    policies: PolicyVersions
    directory: DirectoryChange


class Books:
    """Opens the transactions that `gateway.http.admin_api.call.Parts` asks for."""

    def __init__(self, journal: SqlJournal) -> None:
        self._journal = journal

    def change(self) -> AbstractAsyncContextManager[call.Books]:
        """A transaction for changes."""
        return self._change()

    @contextlib.asynccontextmanager
    async def _change(self) -> AsyncIterator[call.Books]:
        async with self._journal.change() as change, SqlDirectory(change.connections).transaction() as directory:
            on = change.connections
            yield _Open(change, SqlMemberStore(on), SqlRolloutStore(on), SqlPolicyVersions(on), directory)

    @contextlib.asynccontextmanager
    async def policies(self) -> AsyncIterator[PolicyVersions]:
        """A transaction for reading policies."""
        async with self._journal.reading() as joined:
            yield SqlPolicyVersions(joined)

    @contextlib.asynccontextmanager
    async def rollouts(self) -> AsyncIterator[RolloutBook]:
        """A transaction for reading rollouts."""
        async with self._journal.reading() as joined:
            yield SqlRolloutStore(joined)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[DirectoryChange]:
        """A transaction for reading the directory."""
        async with self._journal.reading() as joined, SqlDirectory(joined).transaction() as directory:
            yield directory


def id_of(entropy: bytes) -> KeyId:
    """The id of a new key, from random bytes."""
    return mint(ENVIRONMENT, entropy).id


def text_of(key_id: KeyId, entropy: bytes) -> str:
    """The text of the key with this id, from the same random bytes."""
    return mint_again(ENVIRONMENT, key_id, entropy[:SECRET_BYTES]).text
