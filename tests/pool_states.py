"""What a worker knows of its pools, for tests of who keeps it."""

from gateway.placement.pool_state import PoolDefaults, PoolStates
from routing.load import Charge


def grounds_of(*ids: str, pool: str = "p") -> PoolStates:
    """One pool with these backends."""
    pool_states = PoolStates({pool: PoolDefaults()})
    for one in ids:
        pool_states.add(pool, one)
    return pool_states


def charged(pool_states: PoolStates, backend_id: str, now: float = 0.0, tokens: int = 100) -> Charge:
    """A request of this worker on a backend."""
    pool_state = pool_states.of(backend_id)
    assert pool_state is not None
    return pool_state.load_table.charge(backend_id, tokens, tokens, now)


def released(pool_states: PoolStates, charge: Charge) -> None:
    """It is over."""
    pool_state = pool_states.of(charge.id)
    assert pool_state is not None
    pool_state.load_table.release(charge)


def requests_on(pool_states: PoolStates, backend_id: str) -> float:
    """What a backend is taken to have, running and waiting."""
    pool_state = pool_states.of(backend_id)
    assert pool_state is not None
    return pool_state.load_table.requests[pool_state.load_table.row_of[backend_id]]
