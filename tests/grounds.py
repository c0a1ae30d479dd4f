"""What a worker knows of its pools, for tests of who keeps it."""

from gateway.placement.pool_state import PoolStates, Usual
from routing.load import Charge


def grounds_of(*ids: str, pool: str = "p") -> PoolStates:
    """One pool with these backends."""
    grounds = PoolStates({pool: Usual()})
    for one in ids:
        grounds.add(pool, one)
    return grounds


def charged(grounds: PoolStates, backend_id: str, now: float = 0.0, tokens: int = 100) -> Charge:
    """A request of this worker on a backend."""
    ground = grounds.of(backend_id)
    assert ground is not None
    return ground.board.charge(backend_id, tokens, tokens, now)


def released(grounds: PoolStates, charge: Charge) -> None:
    """It is over."""
    ground = grounds.of(charge.id)
    assert ground is not None
    ground.board.release(charge)


def requests_on(grounds: PoolStates, backend_id: str) -> float:
    """What a backend is taken to have, running and waiting."""
    ground = grounds.of(backend_id)
    assert ground is not None
    return ground.board.requests[ground.board.row_of[backend_id]]
