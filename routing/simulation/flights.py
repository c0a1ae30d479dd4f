"""What the event loop plans, and a request between gateway and engine."""

from enum import IntEnum

from routing.disaggregation import Terms
from routing.simulation.decoders import Run
from routing.simulation.replica import Replica, Sent
from routing.simulation.turns import Turn


class Kind(IntEnum):
    """Of events; of one moment the lower come first."""

    FAULT = 0
    HEALTH = 1
    SIGNAL = 2
    CACHE = 3
    ARRIVAL = 4
    LOADED = 5
    HANDED = 6
    ENGINE = 7


class Flight:
    """A request between gateway and engine."""

    __slots__ = ("index", "prefilled", "replica", "retries", "run", "sent", "turn")

    def __init__(self, index: int, turn: Turn, replica: Replica) -> None:
        self.index = index
        self.turn = turn
        self.replica = replica
        self.retries = 0
        self.prefilled = False
        """Whether another engine has computed its prompt for the one that generates."""
        self.sent: Sent | None = None
        self.run: Run | None = None

    def to_decode(self, terms: Terms, there: int) -> float:
        """Its prompt is computed, and the other engine's turn comes. Returns the seconds until that has the KV.

        Args:
            there: tokens of the prompt that it has anyway.
        """
        first = self.run
        turn = self.turn
        assert first is not None
        self.prefilled = True
        self.run = Run(self, turn.prompt_tokens, turn.output_tokens, turn.chain if terms.decode_reuses else (), first.order, -first.key[0])
        self.run.handed = turn.prompt_tokens
        moved = turn.prompt_tokens - (there if terms.decode_reuses else 0)
        return moved * terms.kv_bytes_token / terms.bandwidth_bytes_s + terms.fixed_s
