"""A conversation belongs to the backend with the least hash(session, backend) that has room: requests there + 1 <= bound * mean.

Source: consistent hashing with bounded loads (Mirrokni et al. 2018), as `prefix_hash` in SMG (bound 1.25), `session` in vLLM's
production-stack and `consistent_hash` in its router. The ring is a rendezvous (highest random weight) here: it keeps the same law, that
only the conversations of a backend that leaves move, and nothing has to be built when the fleet changes, which for 1,000 backends with
160 points each would stop a process for a tenth of a second. A request without a session goes to the fewest requests.
"""

from typing import Final
from zlib import crc32

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import SPARED, spare

TERMS: Final = ("place", "requests")

MASK: Final = (1 << 64) - 1


class Params(Strict):
    """The bound."""

    bound: float = Field(default=1.25, ge=1, description="A backend with more than this times the mean number of requests gets no more.")


class Points:
    """The hash point of each backend, from its id alone, so that every process and replica agrees."""

    def __init__(self, params: Params) -> None:
        self._of: dict[str, int] = {}

    def of(self, ids: list[str]) -> dict[str, int]:
        """Points by id; points of backends that have left are forgotten when the next backend is added."""
        points = self._of
        if len(points) != len(ids) or not all([backend_id in points for backend_id in ids]):
            points = self._of = {backend_id: (crc32(backend_id.encode()) << 32 | crc32(backend_id[::-1].encode())) for backend_id in ids}
        return points

    def placed(self, request: RoutingRequest, backend_id: str, uncached_tokens: float, now: float) -> None:
        """Does nothing: the ring does not depend on past decisions."""


def _mixed(x: int) -> int:
    """A pseudo-random permutation of 64-bit numbers (the finaliser of SplitMix64)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Points, rng: Rng) -> Scores:
    """The cost by the module's rule."""
    ids = load_table.ids
    rows = candidates.rows
    requests = [load_table.requests[row] for row in rows]
    if not request.session:
        return Scores(spare(requests, candidates.shares, rng), by_backend([0.0] * len(rows), requests))
    points = memory.of(ids)
    session = request.session
    place = [_mixed(points[ids[row]] ^ session) / MASK for row in rows]
    room = params.bound * (sum(requests) + 1.0) / len(rows)
    # full backends rank after all others, the emptiest of them first
    cost = [at if count + 1.0 <= room or count == 0 else 1.0 + count for at, count in zip(place, requests, strict=True)]
    if candidates.shares:  # drawn by the session's hash and not at random, or a conversation would move between backends
        cost = [value if _mixed(session) / MASK < share else value + SPARED for value, share in zip(cost, candidates.shares, strict=True)]
    return Scores(cost, by_backend(place, requests))


POLICY: Final = Policy(score, Params, TERMS, Points)
