"""Where an engine's block ends in a chain of ours, kept small: there is one for each block that an engine holds. Pure."""

from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

_HEAD: Final = Struct("=?q")
_NOTHING: Final = array("I")


class End(msgspec.Struct, frozen=True, gc=False):
    """The place itself."""

    last: int
    """The last whole block before it, or the root."""
    rest: "array[int]" = _NOTHING
    """Tokens since."""
    done: tuple[int, ...] = ()
    """Blocks of ours that the engine's block completed; told only of those that completed more than one."""


Packed = int | bytes | End
"""An int where the engine's block completed one of ours and nothing is left over, bytes where it completed one at most."""


def packed(last: int, rest: "array[int]", done: Sequence[int]) -> Packed:
    """The place as it is kept."""
    if len(done) > 1:
        return End(last, rest, tuple(done))
    if done and not rest:
        return last
    return _HEAD.pack(bool(done), last) + rest.tobytes()


def unpacked(kept: Packed) -> End:
    """The place again, `done` left out where it was packed."""
    if isinstance(kept, int):
        return End(kept)
    if isinstance(kept, bytes):
        rest = array("I")
        rest.frombytes(kept[_HEAD.size :])
        return End(_HEAD.unpack_from(kept)[1], rest)
    return kept


def done_by(kept: Packed) -> Sequence[int]:
    """Blocks of ours that the engine's block completed."""
    if isinstance(kept, int):
        return (kept,)
    if isinstance(kept, bytes):
        done, last = _HEAD.unpack_from(kept)
        return (last,) if done else ()
    return kept.done
