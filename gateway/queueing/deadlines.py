"""How long a request may wait in the queue. Pure.

The tenant's policy sets the limit (`max_wait_s`); without it the class does:

| class | seconds | why |
|---|---|---|
| critical | 30 | it is served before all others, so it waits for one answer to end; being late is better than failing |
| interactive | 10 | a person who has seen nothing for ten seconds has left or asks again; a refusal leaves time to try another service |
| default | 60 | the idle time-out of most proxies and load balancers, beyond which a caller that streams nothing is cut off |
| batch | 600 | the time-out of the official clients; no person waits for the answer |

A caller may ask for less, and never gets more: `x-tidegate-timeout-s`, the seconds after which it no longer needs an engine to begin.
"""

from math import isfinite
from typing import Final

from domain.faults import Fault, Kind
from domain.priority import Class

HEADER: Final = b"x-tidegate-timeout-s"
MOST_S: Final = 86_400.0
"""The longest wait that the header may ask for: one day."""
DEFAULT_WAIT_S: Final = {Class.CRITICAL: 30.0, Class.INTERACTIVE: 10.0, Class.DEFAULT: 60.0, Class.BATCH: 600.0}


def asked_wait_s(value: bytes) -> float:
    """The seconds that the caller's header asks for.

    Raises:
        Fault: INVALID_VALUE, `value` is no number of seconds above 0 and up to `MOST_S`.
    """
    try:
        seconds = float(value) if len(value) <= 32 else 0.0
    except ValueError:
        seconds = 0.0
    if not (isfinite(seconds) and 0.0 < seconds <= MOST_S):
        raise Fault(
            Kind.INVALID_VALUE,
            f"The header '{HEADER.decode()}' is a number of seconds above 0 and up to {MOST_S:.0f}, such as 2.5.",
        )
    return seconds


def wait_s(tier: Class, policy_s: float | None, asked_s: float) -> float:
    """Seconds that a request of this class may wait."""
    return min(asked_s, DEFAULT_WAIT_S[tier] if policy_s is None else policy_s)
