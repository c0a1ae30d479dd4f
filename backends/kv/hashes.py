"""The block hashes of vLLM and SGLang, computed as those engines compute them. Pure.

    vLLM     H((parent digest, tokens, extra keys or None)), the parent of a first block being H("vllm-none-hash")
    SGLang   SHA-256(parent digest, then each token in 4 bytes, little endian); no parent for a first block without salt

Sources: vLLM 0.33 `v1/core/kv_cache_utils.py`, SGLang 0.5.23 `mem_cache`; our vectors are in the tests. vLLM's xxhash families
cannot be computed outside the engine: their root is random in each process.
"""

import hashlib
import pickle
from collections.abc import Callable, Sequence
from struct import pack
from typing import Final

import cbor2

from backends.kv.events import MASK, Stored

Keys = tuple[tuple[str, ...], ...]
"""vLLM's extra keys: `("lora", name, path)` and `("cache_salt", salt)`, in this order, the salt in a first block only."""


def vllm_sha256(value: object) -> bytes:
    """`--prefix-caching-hash-algo sha256`, vLLM's default: SHA-256 over Python's pickle, protocol 5. It depends on which objects
    are identical, so the digests of two equal values may differ; those of `sha256_cbor` do not."""
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def vllm_sha256_cbor(value: object) -> bytes:
    """`--prefix-caching-hash-algo sha256_cbor`: SHA-256 over canonical CBOR."""
    return hashlib.sha256(cbor2.dumps(value, canonical=True)).digest()


Digest = Callable[[object], bytes]


def vllm_block(digest: Digest, parent: bytes | None, tokens: Sequence[int], keys: Keys | None = None) -> bytes:
    """The digest of one full block; `parent` is the digest of the block before it, None for the first one."""
    return digest((digest("vllm-none-hash") if parent is None else parent, tuple(tokens), keys or None))


def vllm_on_the_wire(digest: bytes) -> int:
    """The part of a digest that events carry: its low 64 bits."""
    return int.from_bytes(digest[-8:], "big")


SGLANG_SALT: Final = b"sglang-cache-salt-v1\0"


def sglang_block(parent: bytes | None, tokens: Sequence[int], salt: str | None = None) -> bytes:
    """The digest of one page; the salt goes into a prompt's first page alone."""
    if parent is None:
        parent = hashlib.sha256(SGLANG_SALT + salt.encode()).digest() if salt else b""
    return hashlib.sha256(parent + pack(f"<{len(tokens)}I", *tokens)).digest()


def sglang_on_the_wire(digest: bytes) -> int:
    """The part of a digest that events carry: its high 64 bits, unsigned here; SGLang sends them signed."""
    return int.from_bytes(digest[:8], "big") & MASK


VLLM: Final = {"vllm-sha256": vllm_sha256, "vllm-sha256_cbor": vllm_sha256_cbor}

TRIES: Final = 32
"""First blocks of prompts that are tried before the hash function counts as unknown."""

MAX_TRIED_TOKENS: Final = 2_048
"""Largest block that is hashed here: larger ones of one batch would hold the event loop for a quarter of a second."""


def recognised(event: Stored) -> str:
    """The name of the engine's hash function, found by hashing a prompt's first block with every known one; empty when none fits, or when
    the block cannot tell (a child, an adapter, pairs, images) or is very large."""
    if event.block_size > MAX_TRIED_TOKENS:
        return ""
    tokens = event.tokens[: event.block_size]
    if event.parent is not None or event.lora is not None or not event.by_tokens or not event.hashes:
        return ""
    plain = [token for token in tokens if isinstance(token, int) and 0 <= token < 1 << 32]
    if len(plain) != event.block_size:
        return ""
    keys = (("cache_salt", event.salt),) if event.salt else None
    for name, digest in VLLM.items():
        if vllm_on_the_wire(vllm_block(digest, None, plain, keys)) == event.hashes[0]:
            return name
    return "sglang" if sglang_on_the_wire(sglang_block(None, plain, event.salt)) == event.hashes[0] else ""


class Recognition:
    """Recognises the hash function of one engine process from its first blocks."""

    __slots__ = ("_tries", "name")

    def __init__(self) -> None:
        self.name = ""
        """The name that `recognised` returned; empty while unknown."""
        self._tries = TRIES

    def look(self, event: Stored) -> None:
        """Try one more block, until the function is known or `TRIES` blocks were tried."""
        if self._tries and event.parent is None:
            self.name = recognised(event)
            self._tries = 0 if self.name else self._tries - 1
