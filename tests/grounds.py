"""What a worker knows of its pools, for tests of who keeps it."""

from gateway.placing.ground import Grounds
from gateway.placing.traits import Usual
from routing.load import Charge


def grounds_of(*ids: str, pool: str = "p") -> Grounds:
    """One pool with these backends."""
    grounds = Grounds({pool: Usual()})
    for one in ids:
        grounds.add(pool, one)
    return grounds


def charged(grounds: Grounds, backend_id: str, now: float = 0.0, tokens: int = 100) -> Charge:
    """A request of this worker on a backend."""
    ground = grounds.of(backend_id)
    assert ground is not None
    return ground.board.charge(backend_id, tokens, tokens, now)


def released(grounds: Grounds, charge: Charge) -> None:
    """It is over."""
    ground = grounds.of(charge.id)
    assert ground is not None
    ground.board.release(charge)


def requests_on(grounds: Grounds, backend_id: str) -> float:
    """What a backend is taken to have, running and waiting."""
    ground = grounds.of(backend_id)
    assert ground is not None
    return ground.board.requests[ground.board.row_of[backend_id]]
