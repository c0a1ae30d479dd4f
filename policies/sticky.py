"""Sticky assignment by hash: equal keys get equal places, in every process and after every restart. Pure."""

from hashlib import blake2b
from typing import Final

BYTES: Final = 6
"""Bytes of the digest that are used: 48 bits, which a float holds exactly."""


def place(salt: str, key: str) -> float:
    """A key's place on [0, 1): uniform over keys, and independent between salts."""
    digest = blake2b(f"{salt}\0{key}".encode(), digest_size=BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * BYTES)
