"""A prompt's chain whose hashes are computed on demand: a walk of the index ends at the first block that no backend holds."""

from collections.abc import Iterator, Sequence
from typing import Final, overload

from routing.chain import of_text

STRIDE: Final = 32
"""Blocks hashed at once, some 5 us: hashing block by block would spend twice as long on calls as on hashes."""


class LazyChain(Sequence[int]):
    """The chain that `of_text(start, data, block_bytes)` returns, hashed as far as it is read.

    Args:
        start: the root.
        data: the prompt's bytes, or its token ids at four bytes each.
    """

    __slots__ = ("_block_bytes", "_blocks", "_data", "_known", "_start")

    def __init__(self, start: int, data: bytes, block_bytes: int) -> None:
        self._start = start
        self._data = data
        self._block_bytes = block_bytes
        self._blocks = len(data) // block_bytes
        self._known: list[int] = []

    def __len__(self) -> int:
        return self._blocks

    def __iter__(self) -> Iterator[int]:
        if self._blocks <= STRIDE or len(self._known) == self._blocks:
            return iter(self._up_to(self._blocks))
        return self._strides()

    def _strides(self) -> Iterator[int]:
        for at in range(0, self._blocks, STRIDE):
            yield from self._up_to(at + STRIDE)[at : at + STRIDE]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            span = range(self._blocks)[index]
            known = self._up_to(max(span[0], span[-1]) + 1) if span else self._known
            return known[index] if len(known) == self._blocks else [known[at] for at in span]
        at = range(self._blocks)[index]
        return self._up_to(at + 1)[at]

    @property
    def hashed(self) -> int:
        """Blocks hashed so far."""
        return len(self._known)

    def _up_to(self, blocks: int) -> list[int]:
        known = self._known
        size = self._block_bytes
        have = len(known)
        blocks = min(blocks, self._blocks)
        if have < blocks:
            known += of_text(known[-1] if known else self._start, self._data[have * size : blocks * size], size)
            if blocks == self._blocks:
                self._data = b""  # not needed any more
        return known
