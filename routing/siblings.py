"""What the processes of one gateway tell each other of the requests that they send. Pure.

Without it, each of several processes knows only its own requests until engines report them: their load a tenth of a second later, and what
engines without KV events have cached never. In a batch, every some 25 ms, a process tells of

- its load on each backend, as sums (`SiblingLoad`): not as single events, so that a lost batch is made good by the next one,
- the prompts it sent to engines without KV events, as the keyed hashes of their blocks, and
- the backend of each conversation's last turn.

`TellSiblings` collects what a process has to tell, `HearSiblings` takes in what its siblings told. Both are bounded: `BYTES_S` is what one
process tells of prompts in a second, and the load of a sibling that has left is taken off at once.

Batches contain no text and no names of tenants. Block hashes are comparable between processes with one secret, which a batch's
`generation` tells.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgspec

from routing.load import LoadTable, SiblingLoad
from routing.load_row import NO_SIBLINGS

BYTES_S: Final = 512 * 1024
"""Bytes of block hashes that one process tells in a second: 65,000 blocks, so four million prompt tokens."""
MAX_PROMPT_BLOCKS: Final = 4096
"""Blocks told of one prompt: 262,144 tokens. The beginning of a longer one is told."""
WHOLE_EVERY_S: Final = 1.0
"""Seconds after which the load on all backends is told again, changed or not."""
MAX_PENDING_BYTES: Final = BYTES_S // 4
"""Bytes of block hashes that wait for the next batch at most."""


class SentPrompt(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One prompt that was sent."""

    backend: int
    """Position in the batch's `backends`."""
    session: int
    """The conversation, 0 for none."""
    chain: bytes
    """Hashes of its blocks, eight bytes each; empty where KV events tell of them."""


class SiblingNews(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What one process has to tell."""

    generation: int
    """Batches of another generation are not comparable, and dropped."""
    sender: int
    backends: tuple[str, ...]
    """Ids of the backends that the batch is about."""
    loads: tuple[SiblingLoad, ...]
    """The sender's load on the first ones of `backends`."""
    whole: bool
    """Whether the sender has nothing in flight on other backends."""
    prompts: tuple[SentPrompt, ...] = ()


class Index(Protocol):
    """The part of the prefix index that is needed here."""

    def touch(self, backend_id: str, chain: list[int], now: float) -> None: ...


class LastTurns(Protocol):
    """The part of a pool's conversations that is needed here."""

    def held(self, session: int, backend_id: str) -> None: ...


class TellSiblings:
    """Collects what this process has to tell its siblings.

    Args:
        generation: of this process's hashes.
        sender: a number that no sibling has.
    """

    __slots__ = ("_generation", "_pending_bytes", "_prompts", "_sender", "_told", "_whole_at", "dropped")

    def __init__(self, generation: int, sender: int) -> None:
        self._generation = generation
        self._sender = sender
        self._prompts: list[tuple[str, int, bytes]] = []
        self._pending_bytes = 0
        self._told: dict[str, SiblingLoad] = {}
        self._whole_at = float("-inf")
        self.dropped = 0
        """Prompts whose blocks were not told: there were too many to tell."""

    def sent(self, backend_id: str, session: int, chain: Sequence[int]) -> None:
        """Note a prompt that is being sent.

        Args:
            chain: the hashes of its blocks; empty where KV events tell of them.
        """
        hashes = array("q", chain[:MAX_PROMPT_BLOCKS]).tobytes() if chain else b""
        if self._pending_bytes + len(hashes) > MAX_PENDING_BYTES:
            self.dropped += 1
            hashes = b""
        if hashes or session:
            self._pending_bytes += len(hashes)
            self._prompts.append((backend_id, session, hashes))

    def joined(self) -> None:
        """There is a sibling that has been told nothing yet: tell the load on all backends with the next batch."""
        self._whole_at = float("-inf")

    def batch(self, load_tables: Iterable[LoadTable], now: float, max_bytes: int = MAX_PENDING_BYTES) -> SiblingNews | None:
        """Everything since the last call. None when there is nothing to tell; where requests are in flight nonetheless, there will be by
        `WHOLE_EVERY_S` after the last batch.

        Args:
            max_bytes: of block hashes; prompts beyond that are dropped.
        """
        told, loads = self._told, dict[str, SiblingLoad]()
        whole = now - self._whole_at >= WHOLE_EVERY_S
        for load_table in load_tables:
            for load in load_table.loads:
                own = load.own() if load.charges else NO_SIBLINGS
                if own != told.get(load.id, NO_SIBLINGS) or (whole and own.requests):
                    loads[load.id] = own
        told.update(loads)
        for backend_id in [name for name, load in loads.items() if not load.requests]:
            del told[backend_id]
        prompts, self._prompts, self._pending_bytes = self._prompts, [], 0
        if not loads and not prompts:
            return None
        if whole:
            self._whole_at = now
        places = {name: at for at, name in enumerate(loads)}
        sent: list[SentPrompt] = []
        for name, session, hashes in prompts:
            max_bytes -= len(hashes)
            if max_bytes < 0:
                self.dropped += 1
                hashes = b""
            sent.append(SentPrompt(places.setdefault(name, len(places)), session, hashes))
        return SiblingNews(self._generation, self._sender, tuple(places), tuple(loads.values()), whole, tuple(sent))


class HearSiblings:
    """Takes in what the siblings of this process told.

    Args:
        generation: of this process's hashes.
        sender: this process's own number.
        load_table_of: the load table of a backend's pool; None for a backend that this process does not know, or no longer.
        index: this process's prefix index.
        sessions_of: the conversations of a backend's pool; only called for a backend with a load table.
    """

    __slots__ = ("_generation", "_index", "_load_table_of", "_loads", "_sender", "_sessions_of", "refused")

    def __init__(
        self,
        generation: int,
        sender: int,
        load_table_of: Callable[[str], LoadTable | None],
        index: Index,
        sessions_of: Callable[[str], LastTurns],
    ) -> None:
        self._generation = generation
        self._sender = sender
        self._load_table_of = load_table_of
        self._index = index
        self._sessions_of = sessions_of
        self._loads: dict[int, dict[str, SiblingLoad]] = {}
        self.refused = 0
        """Batches of another generation."""

    def hear(self, batch: SiblingNews, now: float) -> None:
        """Take in a batch. Backends that this process does not know are skipped."""
        if batch.sender == self._sender:
            return
        if batch.generation != self._generation:
            self.refused += 1
            return
        known = self._loads.setdefault(batch.sender, {})
        told = dict(zip(batch.backends, batch.loads, strict=False))
        gone = known.keys() - told.keys() if batch.whole else ()
        for backend_id in (*told, *gone):
            load = told.get(backend_id, NO_SIBLINGS)
            if load.requests:
                known[backend_id] = load
            else:
                known.pop(backend_id, None)
            self._sum(backend_id)
        for prompt in batch.prompts:
            backend_id = batch.backends[prompt.backend]
            if self._load_table_of(backend_id) is None:
                continue
            if prompt.session:
                self._sessions_of(backend_id).held(prompt.session, backend_id)
            if prompt.chain:
                self._index.touch(backend_id, array("q", prompt.chain).tolist(), now)

    def left(self, sender: int) -> None:
        """A sibling has ended: what it had in flight is no longer told of."""
        for backend_id in self._loads.pop(sender, {}):
            self._sum(backend_id)

    def joined(self, backend_id: str) -> None:
        """Apply what siblings told of a backend before this process knew it."""
        self._sum(backend_id)

    def _sum(self, backend_id: str) -> None:
        load_table = self._load_table_of(backend_id)
        if load_table is not None:
            load_table.siblings(backend_id, sum([loads.get(backend_id, NO_SIBLINGS) for loads in self._loads.values()], NO_SIBLINGS))
