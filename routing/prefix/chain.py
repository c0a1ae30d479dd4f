"""A prompt's chain: one 60-bit hash for each whole block, standing for all of the prompt up to that block's end.

    root  = BLAKE2b-60(secret; revision, adapter digest, salt)
    chain = h1, h2, ...   with h(i+1) = XXH3-60(block(i+1), seed h(i)), h(0) = root

XXH3 (token ids are hashed as four bytes each) is several times cheaper than a keyed BLAKE2b of every block, and as cheap as Python's own
`hash`, which no other interpreter can compute (record 0017). What separates tenants, adapters and revisions is the root, which is keyed and
cannot be had without the secret; two tenants' chains meet by chance only, once in 2**60 pairs. A collision would misplace a request, never
give a wrong answer: the index says where a prompt may be warm, engines look for themselves.

Chains are comparable wherever the secret is the same: in the workers of a host, on other hosts and after a restart. `generation` tells.
60 bits, because such an integer takes 32 bytes in an index and one of 64 bits takes 36.

`LazyChain` computes the hashes on demand: a walk of the index ends at the first block that no backend holds.
"""

from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain as joined
from struct import Struct
from typing import Final, overload

from xxhash import xxh3_64_intdigest

BLOCK_TOKENS: Final = 64
"""Tokens per block. Engines cache in blocks of 16 to 128; a quarter as many entries as at 16 costs at most 63 tokens of a match."""
BLOCK_BYTES: Final = 256
"""Bytes per block where no tokenizer is configured: at 4 bytes a token the same 64 tokens, so that figures in blocks mean the same."""

TOKEN_BYTES: Final = 4
"""Bytes per token id. Ids are hashed as the bytes they take in memory: 2.5 times as fast as hashing a tuple of ids, and keyed like text."""

_CUT: Final = 4
"""Bits that are cut off a 64-bit hash."""


def root(revision: str, lora_digest: str, salt: str, secret: bytes) -> int:
    """The root of a chain. It cannot be guessed without the secret, and no two different (revision, adapter, salt) triples share one.

    Args:
        revision: identifies the model's name, weights and chat template: everything that, when changed, makes cached blocks useless.
        lora_digest: digest of the adapter's weights, not its name, which other weights can have later; empty for the base model.
        salt: identifies the tenant or group whose requests may share cached prefixes.
        secret: the secret of all gateways whose chains are to be comparable, 16 to 64 bytes.

    Raises:
        ValueError: the secret is too short or too long.
    """
    if not 16 <= len(secret) <= 64:
        raise ValueError(f"the secret has {len(secret)} bytes; it needs 16 to 64")
    digest = blake2b(key=secret, digest_size=8, person=b"tidegate-prefix")
    for part in (revision, lora_digest, salt):
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))  # so that "ab", "c" is not "a", "bc"
        digest.update(encoded)
    return int.from_bytes(digest.digest(), "little") >> _CUT


def generation(secret: bytes) -> str:
    """Eight hexadecimal digits that are equal where chains are comparable: with the same secret, and the same way to hash.

    Args:
        secret: the secret that roots are keyed with, 16 to 64 bytes.
    """
    return blake2b(b"xxh3-60", digest_size=4, key=secret, person=b"tidegate-logged").hexdigest()


def hash_after(last: int, block: bytes) -> int:
    """The hash of one more piece of a prompt after `last` (a hash or a root), 0 to 2**60 - 1."""
    return xxh3_64_intdigest(block, last) >> _CUT


@lru_cache(maxsize=64)
def _blocks_of(block_bytes: int) -> Struct:
    """One block. `iter_unpack` cuts a text into blocks without a slice and its bounds for each."""
    return Struct(f"{block_bytes}s")


def of_text(start: int, text: bytes | memoryview, block_bytes: int = BLOCK_BYTES, before: Sequence[int] = ()) -> list[int]:
    """The chain of a prompt's bytes; an incomplete block at the end has no hash.

    Args:
        start: the root.
        before: the chain of an earlier text that `text` begins with, when it is known: only the bytes after it are hashed.
    """
    chain = list(before)
    last = chain[-1] if chain else start
    add = chain.append
    whole = memoryview(text)[len(chain) * block_bytes : len(text) // block_bytes * block_bytes]
    for (block,) in _blocks_of(block_bytes).iter_unpack(whole):
        last = xxh3_64_intdigest(block, last) >> _CUT
        add(last)
    return chain


def after_tokens(last: int, block: Sequence[int]) -> int:
    """The hash of one more whole block of token ids after `last` (a hash or the root): `of_tokens` for a single block."""
    try:
        return hash_after(last, array("I", block).tobytes())
    except OverflowError:  # no vocabulary has such an id: an engine reported it, and no prompt of ours should match it
        return hash_after(last, repr(tuple(block)).encode())


def of_tokens(start: int, tokens: Sequence[int], block_tokens: int = BLOCK_TOKENS, before: Sequence[int] = ()) -> list[int]:
    """The chain of a prompt's token ids, each of which takes four bytes; `start` and `before` as in `of_text`."""
    return of_text(start, array("I", tokens).tobytes(), TOKEN_BYTES * block_tokens, before)


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
        return joined.from_iterable(self._strides())

    def _strides(self) -> Iterator[list[int]]:
        for at in range(0, self._blocks, STRIDE):
            yield self._up_to(at + STRIDE)[at : at + STRIDE]

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> list[int]: ...

    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            begin, end, step = index.indices(self._blocks)
            if step > 0:
                return self._up_to(end)[begin:end:step]
            return self._up_to(self._blocks)[index]
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
            known += of_text(known[-1] if known else self._start, memoryview(self._data)[have * size : blocks * size], size)
            if blocks == self._blocks:
                self._data = b""  # not needed any more
        return known
