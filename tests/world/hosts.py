"""Whose code runs: every callback, task and connection of a world belongs to a host, so that a host can end as a machine does that
loses its power: nothing of it ever runs again, not even a `finally`."""

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any

OUTSIDE = "world"
"""The host of what is not simulated: the one that injects faults and judges."""


class Host:
    """One machine: a name that stays over its restarts is up to whoever makes it."""

    def __init__(self, name: str, skew_s: float = 0.0) -> None:
        self.name = name
        self.skew_s = skew_s
        """By how much its calendar clock is ahead."""
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.signals: dict[int, Callable[[], None]] = {}
        """What it does on a signal."""
        self.context: Context = copy_context()
        self.context.run(HERE.set, self)

    def __repr__(self) -> str:
        return self.name


HERE: ContextVar[Host] = ContextVar("host")


def here() -> Host:
    """The host whose code runs now."""
    return HERE.get()


def belongs_to(context: Context | None) -> Host | None:
    """The host of a callback."""
    return context.get(HERE) if context is not None else None
