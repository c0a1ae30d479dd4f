"""Dealing out by a key, so that equal keys always get the same, in every process and after every restart. Pure."""

from hashlib import blake2b
from typing import Final

BYTES: Final = 6
"""Of the digest that are used: 48 bits, which a float holds exactly."""


def place(salt: str, key: str) -> float:
    """A key's place on [0, 1): spread evenly over keys, and for another salt independently of this one."""
    digest = blake2b(f"{salt}\0{key}".encode(), digest_size=BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * BYTES)
