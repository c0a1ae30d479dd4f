"""Lets stores that open transactions of their own take part in a transaction that is open already."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from sqlalchemy.ext.asyncio import AsyncConnection


class Connections(Protocol):
    """What stores need of an engine: `AsyncEngine` is one."""

    def connect(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A connection to read with."""
        ...

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction, committed at the end unless something is raised."""
        ...


class Joined:
    """Hands out one open connection, every time; what is done on it is committed or rolled back with the transaction around it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        yield self._connection

    begin = connect
