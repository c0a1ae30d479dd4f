"""The holds of requests under way in this worker, and their signs of life to the counters."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from domain.clock import Clock
from domain.faults import Kind, Source
from domain.usage import NO_USAGE, Usage
from gateway.story import Story
from tenancy.estimate import used
from tenancy.hold import BEAT_S, RELEASED, Beat, Closing, Hold, estimated, settled
from tenancy.limits import Amounts
from tenancy.ports import Counters
from tenancy.prices import Price
from tenancy.usage_event import LOST, UsageEvent

LOOK_S: Final = 1.0
"""How often holds are looked at; a beat is late by this at most, and the lease is three beats long."""
CHECKPOINT_TOKENS: Final = 64
"""Delivered tokens after which a beat is due before its time: what a crash can lose of an answer, in tokens."""
OUTGROWN: Final = 2
"""How many times what was delivered is held once that is more than was held: an answer is topped up a few times in all."""
MAX_BEATS: Final = 256
"""Beats in one call; more follow in the next."""


class OpenHold(msgspec.Struct, eq=False):
    """A hold under way, and what was last said of it."""

    hold: Hold
    price: Price
    story: Story
    prompt_tokens: int
    """Taken for the prompt as long as nobody has counted it."""
    output_cap: int
    """Output tokens per sequence, at most."""
    output_most: int
    """Output tokens of all sequences, at most; more than is held in the beginning where reservations are statistical."""
    output_held: int
    """Output tokens held by now."""
    said_at: float
    said_events: int = 0

    def closing(self) -> Closing:
        """How it ends, and what is charged: what the engine reported, else what was counted on the way, else nothing."""
        story = self.story
        if story.usage_reported:
            return settled(story.usage)
        fault = story.fault
        # a caller that leaves once an engine was called has had its prompt computed, if not more; not where we took it back from there
        called = story.attempts > story.pulled_back or story.prefill
        if story.events or (fault is not None and fault.kind is Kind.CLIENT_GONE and called):
            return estimated(Usage(self.prompt_tokens, min(story.events, self.output_most)))
        return RELEASED

    def charged(self, closing: Closing) -> Amounts:
        """What the hold is settled at. A request that failed through no fault of its caller is as if it had not been sent."""
        fault = self.story.fault
        free = closing.word == "release" and fault is not None and fault.source is not Source.CALLER
        amounts = used(closing.usage, self.price)
        return msgspec.structs.replace(amounts, requests=0) if free else amounts

    def beat(self) -> Beat:
        """What is known now: one event carries one token or more, so what was delivered is never overstated."""
        story, held = self.story, self.hold.amounts
        if not story.events:
            return Beat(self.hold, Amounts(0, 0, 0, 0, held.requests), held)
        delivered = min(story.events, self.output_most)
        done = self._amounts(min(self.prompt_tokens, held.input_tokens), delivered)
        if delivered > self.output_held:
            self.output_held = min(self.output_most, OUTGROWN * delivered)
        output = self.output_held
        if story.statistical and story.choices_over:
            # what finished choices were held for, but for one token an event: engines join tokens, so no strict hold may rely on it
            output = min(output, delivered + max(0, story.choices - story.choices_over) * self.output_cap)
        most = held if output == held.output_tokens else self._amounts(held.input_tokens, output)
        return Beat(self.hold, done, most)

    def lost(self) -> UsageEvent:
        """Its row should the process end now: what a beat would say, or what the engine reported, charged. Before anything came the
        request alone. See `tenancy.stores.under_way.Unfinished`: the Story may change meanwhile."""
        story = self.story
        usage, events, caller = NO_USAGE, story.events, story.caller
        if story.usage_reported:
            usage = story.usage
        elif events:
            usage = Usage(self.prompt_tokens, min(events, self.output_most))
        amounts = used(usage, self.price)
        assert caller is not None
        return UsageEvent(
            self.hold.id,
            int(story.at_unix * 1000),
            caller.tenant,
            caller.project,
            caller.key_id,
            story.user,
            story.ask_endpoint,
            story.model,
            story.pool,
            story.revision,
            story.lora,
            LOST,
            LOST,
            usage,
            amounts.units,
            amounts.cost_nanousd,
            self.price.id,
            int(((story.last_event_at or story.started_at) - story.started_at) * 1000),
            story.organisation,
            story.class_word,
            story.asked_model,
            ", ".join(story.steps),
        )

    def _amounts(self, prompt: int, output: int) -> Amounts:
        price, requests = self.price, self.hold.amounts.requests
        return Amounts(prompt, output, price.worst_units(prompt, output), price.worst_nanousd(prompt, output), requests)


class OpenHolds:
    """Bounded by the requests there may be at once."""

    def __init__(
        self, clock: Clock, opened: Callable[[OpenHold], None] = lambda _: None, dropped: Callable[[OpenHold], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._opened = opened
        """Told of each; the ledger writes down that it is under way."""
        self._dropped = dropped
        """Told of each that ends without a Record of its own."""
        self._open: dict[str, OpenHold] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, hold: Hold, price: Price, story: Story, prompt_tokens: int, output_cap: int, sequences: int) -> OpenHold:
        """A hold was admitted; `output_cap` is for each of its sequences."""
        held, most = hold.amounts.output_tokens, sequences * output_cap
        made = self._open[hold.id] = OpenHold(hold, price, story, prompt_tokens, output_cap, most, held, self._clock())
        self._opened(made)
        return made

    def close(self, one: OpenHold) -> None:
        """It is about to be settled: no more beats."""
        self._open.pop(one.hold.id, None)

    def drop(self, one: OpenHold) -> None:
        """The same for one of a request that goes on with another hold: there will be no row with its id."""
        self.close(one)
        self._dropped(one)

    def due(self, now: float) -> list[Beat]:
        """The beats to send now; taken as sent."""
        beats: list[Beat] = []
        for one in self._open.values():
            if not one.hold.groups:
                continue
            events = one.story.events
            outgrown = one.output_held < min(events, one.output_most)
            if outgrown or now - one.said_at >= BEAT_S or events - one.said_events >= CHECKPOINT_TOKENS:
                one.said_at, one.said_events = now, events
                beats.append(one.beat())
                if len(beats) == MAX_BEATS:
                    break
        return beats

    async def run(self, counters: Counters) -> None:
        """Send beats until cancelled. Requests without limits have nobody to tell."""
        idle_since = self._clock()
        while True:
            await asyncio.sleep(LOOK_S)
            while beats := self.due(self._clock()):
                await counters.beat(beats)
                idle_since = self._clock()
            if self._clock() - idle_since >= BEAT_S:
                await counters.beat(())  # so that settlements the store could not take are tried again
                idle_since = self._clock()
