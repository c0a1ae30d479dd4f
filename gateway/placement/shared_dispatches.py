"""What the workers of one host tell each other of their dispatches, so that each knows which engine will hold a prompt that another sent.

Engines with KV events tell every worker what they hold. Of the others a worker would know only what it dispatched itself: with four workers
three of four conversations' turns would go where nothing is cached. So each dispatch is told to the siblings (`SharedDispatches` is a
topic of `gateway.process.sibling_bus`), and counts in their prefix indexes like a dispatch of their own: predicted for 3 s or until it
failed, and assumed to be held from its first token on, as an LRU cache of the engine's size would hold it.

What travels are the 60-bit keyed hashes of the prompt's blocks, whose root holds the tenant's salt (`routing.prefix.chain`), and the hash
of the conversation's name: nothing of a prompt's text, and no tenant finds what another one sent. Messages of a process with another secret
or other hashes are recognised by their generation (`routing.prefix.chain`) and ignored.

Prompts of which an engine's events tell are not told. What would take more than `max_bytes_per_s`, or more than `MAX_EVENTS` in one
message, is dropped and counted. Of one prompt at most `MAX_BLOCKS` are told, so that the work for one event is bounded, too.

    message = [generation, [[number, backend, session, by tokens, blocks], ...], [numbers that have begun], [numbers that have failed]]
"""

from array import array
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from domain.clock import Clock
from gateway.placement.pool_state import PoolStates
from gateway.process.sibling_bus import Sibling, TopicNumber
from routing.ports import RoutingRequest
from routing.prefix.index import Prediction

MAX_BYTES_PER_S: Final = 1 << 20
"""Bytes a second that a worker tells each sibling: 130,000 blocks, or 4,000 prompts of 2,000 tokens."""
MAX_EVENTS: Final = 256
"""Dispatches in one message: 10,000 a second, several times what a worker serves."""
MAX_BLOCKS: Final = 4096
"""Blocks told of one prompt, from its beginning: 260,000 tokens."""
MAX_OPEN: Final = 8192
"""Dispatches of one sibling that have neither begun nor failed; beyond it the oldest are forgotten, and end as predictions do."""
_EVENT_BYTES: Final = 32
"""Bytes of a dispatch beside its blocks and its backend's id, at most."""
_NUMBER_BYTES: Final = 9


class _Sent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A dispatch on the wire."""

    number: int
    backend: str
    session: int
    by_tokens: bool
    blocks: bytes
    """Eight bytes a block, in this machine's byte order."""


class _DispatchBatch(msgspec.Struct, array_like=True, frozen=True):
    generation: int
    sent: list[_Sent]
    begun: list[int]
    failed: list[int]


class SharedFigures(NamedTuple):
    """Dispatches counted since the start."""

    told: int = 0
    dropped: int = 0
    """Dispatches not told, because they were more than the bounds let through."""
    heard: int = 0
    """Dispatches of siblings."""


class SharedDispatches:
    """The dispatches of this worker, to be told, and those of its siblings, in its prefix index.

    Args:
        pool_states: the state that siblings' dispatches go into.
        max_bytes_per_s: bound of what this worker tells each sibling.
    """

    kind = TopicNumber.DISPATCHES
    between_hosts = True

    def __init__(self, pool_states: PoolStates, clock: Clock, max_bytes_per_s: int = MAX_BYTES_PER_S) -> None:
        self.max_bytes_per_s = max_bytes_per_s
        self.tell_soon: Callable[[], None] = lambda: None
        """Asks the bus to call `batch` soon; set by the worker that has a bus."""
        self._pool_states = pool_states
        self._clock = clock
        self._siblings: dict[Sibling, dict[int, tuple[Prediction, bool]]] = {}
        """The dispatches of each sibling that have neither begun nor failed: the prediction, and whether its prompt is of tokens."""
        self._there: set[Sibling] = set()
        self._number = 0
        self._sent: list[tuple[int, str, RoutingRequest]] = []
        self._begun: list[int] = []
        self._failed: list[int] = []
        self._told = self._dropped = self._heard = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_DispatchBatch)

    def figures(self) -> SharedFigures:
        """What was counted since the start."""
        return SharedFigures(self._told, self._dropped, self._heard)

    # --- this worker's dispatches ---

    def sent(self, backend_id: str, request: RoutingRequest) -> int:
        """Tell the siblings that a request is being sent to a backend.

        Returns:
            A number for `begun` or `failed`; 0 when nothing is told: nobody is there, or the engine's own events tell of the prompt.
        """
        if not self._there or (request.by_tokens and self._pool_states.is_exact(backend_id)):
            return 0
        if len(self._sent) >= MAX_EVENTS:
            self._dropped += 1
            return 0
        self._number += 1
        self._sent.append((self._number, backend_id, request))
        self.tell_soon()
        return self._number

    def begun(self, number: int) -> None:
        """Tell the siblings that the backend has begun to answer the request with this number."""
        self._begun.append(number)
        self.tell_soon()

    def failed(self, number: int) -> None:
        """Tell the siblings that the request with this number came to nothing."""
        self._failed.append(number)
        self.tell_soon()

    def batch(self, max_bytes: int) -> bytes:
        """The next message, for `SiblingBus`. A dispatch that does not fit is dropped, with what would be told of it later."""
        sent, self._sent = self._sent, []
        begun, self._begun = self._begun, []
        failed, self._failed = self._failed, []
        if not sent and not begun and not failed:
            return b""
        left = max_bytes - _EVENT_BYTES
        # a few bytes each; without them, what was told before would count too long or too short
        failed = failed[: max(0, left // _NUMBER_BYTES)]
        left -= len(failed) * _NUMBER_BYTES
        begun = begun[: max(0, left // _NUMBER_BYTES)]
        left -= len(begun) * _NUMBER_BYTES
        told: list[_Sent] = []
        for number, backend, request in sent:
            blocks = array("q", request.chain[:MAX_BLOCKS]).tobytes()
            left -= len(blocks) + len(backend) + _EVENT_BYTES
            if left < 0:
                break
            told.append(_Sent(number, backend, request.session, request.by_tokens, blocks))
        self._told += len(told)
        self._dropped += len(sent) - len(told)
        return self._encoder.encode(_DispatchBatch(self._pool_states.generation, told, begun, failed)) if told or begun or failed else b""

    # --- the siblings' dispatches ---

    def received(self, sibling: Sibling, payload: bytes) -> None:
        """Take a sibling's message. Raises ValueError when it is none."""
        try:
            message = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        if message.generation != self._pool_states.generation:
            return
        now = self._clock()
        under_way = self._siblings.setdefault(sibling, {})
        for sent in message.sent:
            self._heard += 1
            prediction = self._predicted(sent, now)
            if prediction is not None:
                under_way[sent.number] = (prediction, sent.by_tokens)
        while len(under_way) > MAX_OPEN:
            del under_way[next(iter(under_way))]
        index = self._pool_states.index
        for number in message.begun:
            if (found := under_way.pop(number, None)) is not None:
                index.confirm(found[0], now, told=found[1])
        for number in message.failed:
            if (found := under_way.pop(number, None)) is not None:
                index.withdraw(found[0])

    def _predicted(self, sent: _Sent, now: float) -> Prediction | None:
        """Enter one dispatch of a sibling; None for a backend that this worker does not have, and for a prompt without blocks."""
        pool_state = self._pool_states.of(sent.backend)
        if pool_state is None:
            return None
        if sent.session:
            pool_state.sessions.held(sent.session, sent.backend)
        if not sent.blocks:
            return None
        chain = array("q")
        chain.frombytes(sent.blocks[: 8 * MAX_BLOCKS])
        return self._pool_states.index.predict(sent.backend, chain, now)

    def joined(self, sibling: Sibling) -> None:
        """From now on there is somebody to tell."""
        self._there.add(sibling)

    def left(self, sibling: Sibling) -> None:
        """What an ended sibling sent ends as predictions do, unless an engine has begun to answer it."""
        self._there.discard(sibling)
        self._siblings.pop(sibling, None)
