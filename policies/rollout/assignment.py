"""Which requests a rollout's canary answers: sticky, and moving in one direction only.

A key lies at one place in [0, 1) for the whole rollout, and the canary has those below its share. So a share that grows moves keys
from the baseline to the canary and none back, and every gateway knows without asking another.
"""

from enum import Enum

import msgspec

from policies.sticky import place


class Arm(Enum):
    """What is compared."""

    CANARY = "canary"
    BASELINE = "baseline"


class Assignment(msgspec.Struct, frozen=True):
    """Where one request goes."""

    arm: Arm
    counted: bool
    """Whether its outcome is part of the comparison; one that a tester placed is not."""


def assign(salt: str, key: str, share: float, wanted: Arm | None = None) -> Assignment:
    """The arm of a request.

    Args:
        salt: the rollout's, so that not the same people are first in every rollout.
        share: of the traffic that the canary has now, 0 to 1.
        wanted: what a tester asked for; who may ask is for the caller of this to say.
    """
    if wanted is not None:
        return Assignment(wanted, counted=False)
    return Assignment(Arm.CANARY if place(f"rollout/{salt}", key) < share else Arm.BASELINE, counted=True)


def mirrored(salt: str, request: str, share: float) -> bool:
    """Whether a request is also sent to the canary in the shadow phase; not sticky, so that everybody's requests are in the sample."""
    return place(f"shadow/{salt}", request) < share
