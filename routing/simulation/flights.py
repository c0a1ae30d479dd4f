"""The simulator's kinds of events, and a request in flight between gateway and engine."""

from enum import IntEnum

from routing.disaggregation import Terms
from routing.simulation.decoders import Run
from routing.simulation.replica import Replica, Sent
from routing.simulation.turns import Turn


class Kind(IntEnum):
    """Kind of an event; events of the same moment happen in ascending order."""

    FAULT = 0
    HEALTH = 1
    SIGNAL = 2
    CACHE = 3
    ARRIVAL = 4
    LOADED = 5
    HANDED = 6
    ENGINE = 7


class Flight:
    """A request in flight between a gateway replica and an engine."""

    __slots__ = ("index", "prefilled", "replica", "retries", "run", "sent", "turn")

    def __init__(self, index: int, turn: Turn, replica: Replica) -> None:
        self.index = index
        self.turn = turn
        self.replica = replica
        self.retries = 0
        self.prefilled = False
        """Whether a prefill engine has computed the prompt, so that the decode engine's part is next or running."""
        self.sent: Sent | None = None
        self.run: Run | None = None

    def to_decode(self, terms: Terms, there: int) -> float:
        """Continue on the decode engine, after the prefill engine has computed the prompt. Returns the seconds of the KV transfer.

        Args:
            there: tokens of the prompt that the decode engine has cached.
        """
        first = self.run
        turn = self.turn
        assert first is not None
        self.prefilled = True
        self.run = Run(self, turn.prompt_tokens, turn.output_tokens, turn.chain if terms.decode_reuses else (), first.order, -first.key[0])
        self.run.handed = turn.prompt_tokens
        moved = turn.prompt_tokens - (there if terms.decode_reuses else 0)
        return moved * terms.kv_bytes_token / terms.bandwidth_bytes_s + terms.fixed_s
