"""Assigns requests to a rollout's canary or baseline: sticky by key, and moving in one direction only.

A key has one place in [0, 1) for the whole rollout, and the canary gets the keys below its share. So a growing share moves keys from the
baseline to the canary and none back, and every gateway computes the same assignment without asking another: the place is a hash of the
key, equal in every process and after every restart. Pure.
"""

from enum import Enum
from hashlib import blake2b
from typing import Final

import msgspec

BYTES: Final = 6
"""Bytes of the digest that are used: 48 bits, which a float holds exactly."""


def place(salt: str, key: str) -> float:
    """A key's place on [0, 1): uniform over keys, and independent between salts."""
    digest = blake2b(f"{salt}\0{key}".encode(), digest_size=BYTES).digest()
    return int.from_bytes(digest, "big") / (1 << 8 * BYTES)


class Arm(Enum):
    """The two variants that a rollout compares."""

    CANARY = "canary"
    BASELINE = "baseline"


class Assignment(msgspec.Struct, frozen=True):
    """The arm of one request."""

    arm: Arm
    counted: bool
    """Whether the request's outcome is part of the comparison; that of a request whose arm a tester chose is not."""


def assign(salt: str, key: str, share: float, wanted: Arm | None = None) -> Assignment:
    """The arm of a request.

    Args:
        salt: the rollout's, so that the first keys differ between rollouts.
        key: the sticky key of the request.
        share: the canary's current share of the traffic, 0 to 1.
        wanted: the arm that a tester chose; the caller checks whether the tester may.
    """
    if wanted is not None:
        return Assignment(wanted, counted=False)
    return Assignment(Arm.CANARY if place(f"rollout/{salt}", key) < share else Arm.BASELINE, counted=True)


def mirrored(salt: str, request: str, share: float) -> bool:
    """Whether a copy of a request is sent to the canary in the shadow phase. Hashes the request's id, not its conversation, so that
    the sample covers all callers."""
    return place(f"shadow/{salt}", request) < share
