"""Where an engine's block ends in a chain of ours, packed small: one is kept for each block that an engine holds. Pure."""

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

_HEAD: Final = Struct("=?q")
_NOTHING: Final = array("I")


class End(msgspec.Struct, frozen=True, gc=False):
    """The end of an engine's block, unpacked."""

    last: int
    """Hash of the last whole block of ours up to the end, or the root."""
    rest: "array[int]" = _NOTHING
    """Tokens after that block."""
    done: tuple[int, ...] = ()
    """Blocks of ours that the engine's block completed; filled only when there are more than one."""


Packed = int | bytes | End
"""An int where the engine's block completed one of ours and nothing is left over, bytes where it completed one at most."""


def packed(last: int, rest: "array[int]", done: Sequence[int]) -> Packed:
    """The end in its smallest form."""
    if len(done) > 1:
        return End(last, rest, tuple(done))
    if done and not rest:
        return last
    return _HEAD.pack(bool(done), last) + rest.tobytes()


def unpacked(end: Packed) -> End:
    """The end unpacked; `done` is filled only when there are more than one."""
    if isinstance(end, int):
        return End(end)
    if isinstance(end, bytes):
        rest = array("I")
        rest.frombytes(end[_HEAD.size :])
        return End(_HEAD.unpack_from(end)[1], rest)
    return end


def done_by(end: Packed) -> Sequence[int]:
    """Blocks of ours that the engine's block completed."""
    if isinstance(end, int):
        return (end,)
    if isinstance(end, bytes):
        done, last = _HEAD.unpack_from(end)
        return (last,) if done else ()
    return end.done
