"""A worker that starts begins with what another worker of its host assumes of the engines' caches, or the gateway before it assumed.

The answering worker copies its prefix index between requests, shard by shard; the new one reads the copy before it serves, or goes without
it: no more than `COPY_WITHIN_S` are spent on that. A copy of another generation is of no use (`routing.prefix.chain`).

A gateway that ends leaves a copy in a file (`leave_copy`), for the next start within `MAX_AGE_S`. What engines have forgotten by then is
found out as always: by the cached tokens that they report (`routing.prefix.trust`).
"""

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from gateway.placement.pool_state import PoolStates
from routing.prefix.chain import BLOCK_TOKENS
from routing.prefix.index_copy import CopiedBackend, IndexCopy, take_over

COPY_LINE: Final = b"prefixes\n"
"""The question on a worker's link."""
COPY_WITHIN_S: Final = 5.0
"""Longest wait for a copy. During a restart the worker before this one goes on serving; in place of one that ended, a worker waits for as
long only where another one does not answer."""
MAX_AGE_S: Final = 900.0
"""A copy in a file that is older is of no use: other gateways have filled the engines' caches meanwhile, or the engines were restarted
too."""
MAX_COPIED_BLOCKS: Final = 1_000_000
"""Blocks in a copy: 8 MB, half of what a worker's link carries."""


class _Copy(msgspec.Struct, array_like=True, frozen=True):
    generation: int
    backends: list[CopiedBackend]


async def copied(pool_states: PoolStates, max_blocks: int = MAX_COPIED_BLOCKS) -> bytes:
    """The copy, encoded. Lets the loop go on after each shard."""
    copy = IndexCopy(pool_states.index, max_blocks)
    for _ in copy.parts():
        await asyncio.sleep(0)
    return msgspec.msgpack.encode(_Copy(pool_states.generation, copy.backends()))


def take_copy(pool_states: PoolStates, payload: bytes, now: float) -> int:
    """Take a copy over, for the backends that this worker has; returns its blocks. Raises ValueError when it cannot be read."""
    try:
        copy = msgspec.msgpack.decode(payload, type=_Copy)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
    if copy.generation != pool_states.generation:
        return 0
    blocks = 0
    for backend in copy.backends:
        if pool_states.of(backend.id) is not None and not pool_states.is_exact(backend.id):
            pool_states.capacity(backend.id, backend.capacity * BLOCK_TOKENS)
            blocks += take_over(pool_states.index, backend, now)
    return blocks


class _LeftCopy(msgspec.Struct, array_like=True, frozen=True):
    at_s: float
    """Unix time at which it was left."""
    copy: bytes


def leave_copy(path: Path, payload: bytes, wall_s: float) -> None:
    """Leave a copy for the next start, whole or not at all; readable by the gateway's user alone. Raises OSError."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.msgpack.encode(_LeftCopy(wall_s, payload)))
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def left_copy(path: Path, wall_s: float) -> bytes:
    """The copy that the gateway before left; empty where there is none, or an old one. Raises ValueError for a file that is no copy, and
    OSError for one that cannot be read."""
    try:
        left = msgspec.msgpack.decode(path.read_bytes(), type=_LeftCopy)
    except FileNotFoundError:
        return b""
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from None
    return left.copy if 0.0 <= wall_s - left.at_s <= MAX_AGE_S else b""
