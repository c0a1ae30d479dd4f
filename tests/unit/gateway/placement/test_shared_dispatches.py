"""What one worker dispatches counts in its siblings' indexes as if they had dispatched it, at a bounded cost; no text is told."""

import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import msgspec
import pytest

from gateway.placement import shared_dispatches
from gateway.placement.in_flight import InFlight
from gateway.placement.place import Placement
from gateway.placement.shared_dispatches import MAX_BLOCKS, MAX_EVENTS, MAX_OPEN, SharedDispatches
from gateway.process.sibling_bus import MAX_FRAME_BYTES, Sibling
from routing.ports import RoutingRequest
from routing.prefix.index import PREDICTION_TTL_S
from tests.placed import Worker, chat

ME, OTHER = Sibling(0, 1), Sibling(1, 2)
OURS = "ours"
"""Stands for the generation of the workers' hashes in messages that `Pair.ours` completes."""


class Pair:
    """Two workers, and between them the channel without its sockets: `pass_on` is one batch."""

    def __init__(self, *, events: bool = False) -> None:
        self.workers = [Worker("a", "b"), Worker("a", "b")]
        self.shared: list[SharedDispatches] = []
        self.asked = 0
        for worker in self.workers:
            shared = SharedDispatches(worker.deps.pool_states, lambda worker=worker: worker.now)
            shared.joined(OTHER)
            shared.tell_soon = self._asked
            object.__setattr__(worker.deps, "shared_dispatches", shared)
            self.shared.append(shared)
            if events:
                for backend in "ab":
                    worker.deps.pool_states.use_events(backend)

    def _asked(self) -> None:
        self.asked += 1

    def pass_on(self, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
        payload = self.shared[0].batch(max_bytes)
        if payload:
            self.shared[1].received(ME, payload)
        return payload

    def ours(self, message: Any) -> Any:
        generation = self.workers[1].deps.pool_states.generation
        given = {"ours": generation, "theirs": generation ^ 1}
        return [given[message[0]], *message[1:]] if isinstance(message, list) else {"generation": generation}

    def later(self, seconds: float) -> None:
        for worker in self.workers:
            worker.now += seconds

    async def placed(self) -> tuple[Placement, Callable[[str], int]]:
        placement = await self.workers[0].placed(chat())
        return placement, lambda backend: self.workers[1].held(placement, backend)


@pytest.mark.req("ROUTERS-17")
async def test_a_dispatch_counts_at_a_sibling_like_its_own() -> None:
    pair = Pair()
    placement, held = await pair.placed()
    blocks = len(placement.request.chain)
    in_flight = InFlight(placement, "a", pair.workers[0].deps, stream=True)
    assert held("a") == 0
    assert pair.asked == 1
    pair.pass_on()
    assert (held("a"), held("b")) == (blocks, 0)
    pair.later(PREDICTION_TTL_S + 0.1)
    assert held("a") == 0, "a prediction ages as its own do"
    in_flight.begun()
    in_flight.begun()
    in_flight.over()
    pair.pass_on()
    assert held("a") == blocks
    pair.later(600.0)
    assert held("a") == blocks, "what an engine has begun to answer it is assumed to hold"
    assert pair.shared[0].figures() == (1, 0, 0)
    assert pair.shared[1].figures() == (0, 0, 1)
    # and the sibling's decision follows
    then = await pair.workers[1].placed(chat())
    assert then.route.backends[0].id == "a"


@pytest.mark.req("ROUTERS-15")
async def test_a_dispatch_that_fails_is_taken_back_at_siblings_too() -> None:
    pair = Pair()
    placement, held = await pair.placed()
    in_flight = InFlight(placement, "a", pair.workers[0].deps, stream=True)
    pair.pass_on()
    assert held("a")
    in_flight.over()
    in_flight.over()
    pair.pass_on()
    assert held("a") == 0
    assert pair.shared[0].batch(MAX_FRAME_BYTES) == b""


async def test_a_conversation_is_known_to_siblings() -> None:
    pair = Pair()
    placement = await pair.workers[0].placed(chat(), session="talk")
    InFlight(placement, "b", pair.workers[0].deps, stream=True)
    pair.pass_on()
    assert placement.request.session
    assert pair.workers[1].deps.pool_states["chat"].sessions.holder(placement.request.session) == "b"


async def test_nothing_is_told_where_events_tell_it_or_nobody_listens() -> None:
    told = Pair(events=True)
    placement, _ = await told.placed()
    by_tokens = msgspec.structs.replace(placement, request=msgspec.structs.replace(placement.request, by_tokens=True))
    in_flight = InFlight(by_tokens, "a", told.workers[0].deps, stream=True)
    in_flight.begun()
    in_flight.over()
    assert (told.pass_on(), told.asked) == (b"", 0)
    of_bytes = msgspec.structs.replace(placement, request=msgspec.structs.replace(placement.request, by_tokens=False))
    InFlight(of_bytes, "a", told.workers[0].deps, stream=True)
    assert told.pass_on(), "of prompts with images no event tells"

    alone = Pair()
    alone.shared[0].left(OTHER)
    placement, _ = await alone.placed()
    InFlight(placement, "a", alone.workers[0].deps, stream=True)
    assert (alone.pass_on(), alone.asked) == (b"", 0)


async def test_what_travels_is_hashes_and_no_text() -> None:
    pair = Pair()
    secret = "the patient's name is Miller"
    placement = await pair.workers[0].placed(chat(secret * 1000), session="talk of Miller")
    InFlight(placement, "a", pair.workers[0].deps, stream=True)
    payload = pair.pass_on()
    assert b"Miller" not in payload
    assert b"talk" not in payload
    assert b"acme" not in payload, "nor the tenant"
    assert len(payload) <= 8 * len(placement.request.chain) + 64


@pytest.mark.parametrize(
    "message",
    [
        {"generation": OURS},
        [OURS, [[1, "a", 0, True, b"1234567"]], [], []],
        [OURS, [["1", "a", 0, True, b""]], [], []],
    ],
    ids=["a map", "half a block", "a number that is text"],
)
async def test_what_cannot_be_read_is_refused(message: object) -> None:
    pair = Pair()
    for payload in (msgspec.msgpack.encode(pair.ours(message)), b"", b"\xc1"):
        with pytest.raises(ValueError):
            pair.shared[1].received(ME, payload)


async def test_other_hashes_unknown_backends_and_unknown_numbers_change_nothing() -> None:
    pair = Pair()
    index = pair.workers[1].deps.pool_states.index
    for message in (
        ["theirs", [[1, "a", 0, True, bytes(8)]], [], []],
        [OURS, [[1, "gone", 7, True, bytes(8)]], [], []],
        [OURS, [[1, "a", 7, True, b""]], [1], []],
        [OURS, [], [5], [6]],
    ):
        pair.shared[1].received(ME, msgspec.msgpack.encode(pair.ours(message)))
    assert (index.predicted, index.blocks) == (0, 0)


async def test_a_sibling_that_leaves_takes_nothing_with_it_but_what_was_open() -> None:
    pair = Pair()
    placement, held = await pair.placed()
    InFlight(placement, "a", pair.workers[0].deps, stream=True)
    pair.pass_on()
    pair.shared[1].left(ME)
    assert held("a")
    pair.later(PREDICTION_TTL_S + 0.1)
    assert held("a") == 0
    pair.shared[1].left(ME)


def request_of(chain: list[int]) -> RoutingRequest:
    return RoutingRequest(64 * len(chain), chain, 64, 100, 100)


def calls(work: Callable[[], Any]) -> int:
    """Python functions that are called."""
    count = 0

    def note(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


async def test_the_bounds_in_bytes_and_in_work_for_an_event() -> None:
    pair = Pair()
    sender, receiver = pair.shared
    # bytes: no message is longer than what the bus leaves, and what does not fit is dropped and counted
    for max_bytes in (0, 100, 5_000, 20_000):
        before = sender.figures()
        numbers = [sender.sent("a", request_of(list(range(at, at + 200)))) for at in range(0, 2000, 200)]
        assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
        for number in numbers:
            sender.begun(number)
        assert len(sender.batch(max_bytes)) <= max_bytes
        after = sender.figures()
        assert after.told - before.told == min(10, max(0, (max_bytes - 32 - 90) // (8 * 200 + 33)))
        assert after.told + after.dropped - before.told - before.dropped == len(numbers)
    # events: no more than MAX_EVENTS in a message
    assert sum(bool(sender.sent("a", request_of([1, 2]))) for _ in range(2 * MAX_EVENTS)) == MAX_EVENTS
    sender.batch(MAX_FRAME_BYTES)
    # work: the same few calls for a short prompt, a long one and one of any length
    costs = {}
    for blocks in (10, 1_000, 10 * MAX_BLOCKS):
        request = request_of(list(range(blocks)))
        telling = calls(lambda request=request: sender.sent("a", request))
        payload = b""

        def encode() -> None:
            nonlocal payload
            payload = sender.batch(MAX_FRAME_BYTES)

        encoding = calls(encode)
        hearing = calls(lambda payload=payload: receiver.received(ME, payload))
        costs[blocks] = (telling, encoding, hearing)
        assert len(payload) <= 8 * MAX_BLOCKS + 64
    assert len(set(costs.values())) == 1, costs
    telling, encoding, hearing = costs[10]
    assert telling <= 4
    assert encoding <= 4
    assert hearing <= 12


async def test_what_is_open_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_OPEN > MAX_EVENTS
    monkeypatch.setattr(shared_dispatches, "MAX_OPEN", 4)
    pair = Pair()
    index = pair.workers[1].deps.pool_states.index
    blocks = [array("q", [at]).tobytes() for at in range(1, 7)]
    sent = [[number, "a", 0, True, block] for number, block in enumerate(blocks, 1)]
    pair.shared[1].received(ME, msgspec.msgpack.encode(pair.ours([OURS, sent, [], []])))
    pair.shared[1].received(ME, msgspec.msgpack.encode(pair.ours([OURS, [], [1, 2, 3, 4, 5, 6], []])))
    assert index.blocks == 4, "the oldest are forgotten, and end as predictions do"
