"""A prompt's chain: one keyed 64-bit hash for each whole block, standing for all of the prompt up to that block's end.

    root  = BLAKE2b-64(secret; revision, adapter digest, salt)
    chain = h1, h2, ...   with h(i+1) = hash((h(i), block(i+1))), h(0) = root

`hash` is Python's own, SipHash over bytes (token ids as four bytes each): several times cheaper than a keyed BLAKE2b of every block, and
without xxHash's dependency (docs/routing.md; costs: `make bench-decision`). What separates tenants, adapters and revisions is the root,
which is keyed and cannot be had without the secret; two tenants' chains meet by chance only, once in 2**61 pairs. A collision
would misplace a request, never give a wrong answer: the index says where a prompt may be warm, engines look for themselves.

Hashes are comparable within one interpreter and its forks only (they have one seed). That is as far as an index goes.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

BLOCK_TOKENS: Final = 64
"""Tokens to a block. Engines cache in blocks of 16 to 128; a quarter as many entries as at 16 costs at most 63 tokens of a match."""
BLOCK_BYTES: Final = 256
"""Bytes to a block where no tokenizer is configured: at 4 bytes a token the same 64 tokens, so that figures in blocks mean the same."""

TOKEN_BYTES: Final = 4
"""Ids are hashed as the bytes they take in memory: 2.5 times as fast as a tuple of them, and keyed like text."""

_SIGN: Final = 1 << 63


def root(revision: str, lora_digest: str, salt: str, secret: bytes) -> int:
    """What a chain begins with: nobody without the secret can tell, and no two different triples share, a root.

    Args:
        revision: of the model: its name, weights and chat template; whatever, when changed, makes cached blocks useless.
        lora_digest: of the adapter's weights, not its name, which can come to mean others; empty for the base model.
        salt: of the tenant or group whose requests may share cached prefixes.
        secret: of this process and its forks, 16 to 64 bytes.

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
    return int.from_bytes(digest.digest(), "little") - _SIGN


def of_text(start: int, text: bytes, block_bytes: int = BLOCK_BYTES, before: Sequence[int] = ()) -> list[int]:
    """The chain of a prompt's bytes; what is left over at the end has no hash.

    Args:
        start: the root.
        before: the chain of an earlier text that this one begins with, when that is known: only what follows is hashed.
    """
    chain = list(before)
    last = chain[-1] if chain else start
    add = chain.append
    for at in range(len(chain) * block_bytes, len(text) - block_bytes + 1, block_bytes):
        last = hash((last, text[at : at + block_bytes]))
        add(last)
    return chain


def after_tokens(last: int, block: Sequence[int]) -> int:
    """The hash that follows `last`, or the root, for one more whole block of token ids; `of_tokens` block by block."""
    try:
        return hash((last, array("I", block).tobytes()))
    except OverflowError:  # no id of any vocabulary: it is told by an engine, and no prompt is meant to meet it
        return hash((last, *block))


def of_tokens(start: int, tokens: Sequence[int], block_tokens: int = BLOCK_TOKENS, before: Sequence[int] = ()) -> list[int]:
    """The chain of a prompt's token ids, each of which takes four bytes; `start` and `before` as in `of_text`."""
    return of_text(start, array("I", tokens).tobytes(), TOKEN_BYTES * block_tokens, before)
