"""The open holds of one worker's requests, and their heartbeats to the counters."""

from collections.abc import Callable
from typing import Final

import msgspec

from domain.ask import Endpoint
from domain.clock import Clock
from domain.faults import Kind, Source
from domain.usage import NO_USAGE, Usage
from gateway.story import CacheFacts, Story
from gateway.ticks import next_tick
from tenancy.estimate import NO_SOUND, used
from tenancy.hold import BEAT_S, RELEASED, Beat, Closing, Hold, estimated, hit, settled
from tenancy.limits import Amounts
from tenancy.ports import Counters
from tenancy.prices import Price
from tenancy.usage import LOST, UsageEvent

LOOK_S: Final = 1.0
"""Seconds between two checks of the holds; a heartbeat is late by this at most, and a lease lasts three heartbeats."""
CHECKPOINT_TOKENS: Final = 64
"""Delivered tokens after which a heartbeat is due early: the tokens of an answer that a crash can lose."""
OUTGROWN: Final = 2
"""The multiple of the delivered tokens that is held once they exceed the hold: an answer is topped up only a few times."""
MAX_BEATS: Final = 256
"""Heartbeats in one call to the counters; further ones follow in the next call."""


class OpenHold(msgspec.Struct, eq=False):
    """An open hold, and the state of its last heartbeat."""

    hold: Hold
    price: Price
    story: Story
    prompt_tokens: int
    """Tokens of the prompt, counted or estimated; used until the engine reports its own count."""
    output_cap: int
    """Output tokens per sequence, at most."""
    output_most: int
    """Output tokens of all sequences, at most; more than is held at first where reservations are statistical."""
    output_held: int
    """Output tokens held by now."""
    beat_at: float
    beat_events: int = 0

    def closing(self) -> Closing:
        """How the hold ends, and the usage to charge: the engine's report, else an estimate from the delivered events, else nothing."""
        story = self.story
        attempt = story.attempt
        if story.looked_up.hit is not None:
            return hit(story.looked_up.hit)
        if attempt.usage is not None and not attempt.held:
            part = story.looked_up.part
            return settled(self._with_sound(attempt.usage) if part is None else Usage(attempt.usage.prompt_tokens + part.prompt_tokens, 0))
        fault = story.settled.fault
        # the prompt, if not more, was computed for a caller that leaves after an engine was called; not for a request that was
        # preempted, or that no engine has worked on
        called = story.tried.attempts > max(story.placed.pulled_back, story.placed.returned) or story.tried.prefill
        if attempt.cut is not None:
            return estimated(self._with_sound(attempt.cut))
        if attempt.begun or (fault is not None and fault.kind is Kind.CLIENT_GONE and called):
            return estimated(self._with_sound(Usage(self.prompt_tokens, min(attempt.delivered, self.output_most))))
        return RELEASED

    @property
    def _sound(self) -> tuple[int, int]:
        """Seconds and bytes of the sound that counts by now: all of a recording, and of speech what has passed."""
        amounts = self.hold.amounts
        if not amounts.audio_bytes:
            return NO_SOUND
        spoken = self.story.asked.endpoint == Endpoint.SPEECH.path
        return self.story.attempt.speech if spoken else (amounts.audio_seconds, amounts.audio_bytes)

    def _with_sound(self, usage: Usage) -> Usage:
        """The usage with its sound, whose length is that of the engine's report where it has one."""
        seconds, sound_bytes = self._sound
        if not sound_bytes:
            return usage
        return msgspec.structs.replace(usage, audio_seconds=usage.audio_seconds or seconds, audio_bytes=sound_bytes)

    def charged(self, closing: Closing) -> Amounts:
        """The amounts to settle the hold with. A request whose failure is not the caller's fault counts as not sent."""
        fault = self.story.settled.fault
        put_off = self.story.looked_up.put_off
        free = closing.word == "release" and fault is not None and (fault.source is not Source.CALLER or fault is put_off)
        amounts = used(closing.usage, self.price)
        return msgspec.structs.replace(amounts, requests=0) if free else amounts

    def saved_nanousd(self, found: CacheFacts) -> int:
        """What a hit would have cost more at an engine."""
        charged = found.hit or found.part or NO_USAGE
        return used(found.saved or NO_USAGE, self.price).cost_nanousd - used(charged, self.price).cost_nanousd

    def beat(self) -> Beat:
        """The heartbeat with the amounts known now. One event carries one token or more, so the delivered tokens are never overstated."""
        story, attempt, held = self.story, self.story.attempt, self.hold.amounts
        if not attempt.events:
            return Beat(self.hold, Amounts(0, 0, 0, 0, held.requests), held)
        delivered = min(attempt.events, self.output_most)
        done = self._amounts(min(self.prompt_tokens, held.input_tokens), delivered, self._sound)
        if delivered > self.output_held:
            self.output_held = min(self.output_most, OUTGROWN * delivered)
        output = self.output_held
        if story.asked.statistical and attempt.choices_over:
            # finished choices free their reservation. This counts one token per event, and engines join tokens: never for strict holds
            output = min(output, delivered + max(0, story.settled.choices - attempt.choices_over) * self.output_cap)
        most = held if output == held.output_tokens else self._amounts(held.input_tokens, output, (held.audio_seconds, held.audio_bytes))
        return Beat(self.hold, done, most)

    def lost(self) -> UsageEvent:
        """The ledger row of the request if the process ended now, charged by the engine's report or by the delivered events; before any
        event it counts the request alone. Called from another thread (`tenancy.stores.under_way.Unfinished`): the Story may change
        meanwhile."""
        story = self.story
        attempt, caller = story.attempt, story.asked.caller
        usage = attempt.usage or NO_USAGE
        if attempt.usage is None and attempt.events:
            usage = Usage(self.prompt_tokens, min(attempt.delivered, self.output_most))
        if attempt.events:
            usage = self._with_sound(usage)
        amounts = used(usage, self.price)
        assert caller is not None
        return UsageEvent(
            self.hold.id,
            int(story.at_unix * 1000),
            caller.tenant,
            caller.project,
            caller.key_id,
            story.asked.user,
            story.asked.endpoint,
            story.asked.model,
            story.placed.pool,
            story.placed.revision,
            story.placed.lora,
            LOST,
            LOST,
            usage,
            amounts.units,
            amounts.cost_nanousd,
            self.price.id,
            int(((attempt.last_event_at or story.started_at) - story.started_at) * 1000),
            story.asked.organisation,
            story.class_word,
            story.asked.asked_model,
            ", ".join(story.asked.steps),
            attempt.reported,
        )

    def _amounts(self, prompt: int, output: int, sound: tuple[int, int]) -> Amounts:
        price, requests = self.price, self.hold.amounts.requests
        return Amounts(prompt, output, price.worst_units(prompt, output), price.worst_nanousd(prompt, output), requests, *sound)


class OpenHolds:
    """The open holds, by id. Bounded by the number of concurrent requests."""

    def __init__(
        self, clock: Clock, opened: Callable[[OpenHold], None] | None = None, dropped: Callable[[OpenHold], None] = lambda _: None
    ) -> None:
        self._clock = clock
        self._opened = opened
        """Called once per opened hold, so that the ledger records the request as in flight. None without a ledger."""
        self._dropped = dropped
        """Called once per hold that ends without a Record of its own."""
        self._open: dict[str, OpenHold] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, hold: Hold, price: Price, story: Story, prompt_tokens: int, output_cap: int, sequences: int) -> OpenHold:
        """Register an admitted hold; `output_cap` is per sequence."""
        held, most = hold.amounts.output_tokens, sequences * output_cap
        opened = self._open[hold.id] = OpenHold(hold, price, story, prompt_tokens, output_cap, most, held, self._clock())
        if self._opened is not None:
            self._opened(opened)
        return opened

    def close(self, hold: OpenHold) -> None:
        """Stop the hold's heartbeats: it is about to be settled."""
        self._open.pop(hold.hold.id, None)

    def drop(self, hold: OpenHold) -> None:
        """Close a hold whose request continues with another hold: the ledger gets no row with its id."""
        self.close(hold)
        self._dropped(hold)

    def due(self, now: float) -> list[Beat]:
        """The heartbeats to send now; marks them as sent."""
        beats: list[Beat] = []
        for hold in self._open.values():
            if not hold.hold.groups:
                continue
            events = hold.story.attempt.events
            outgrown = hold.output_held < min(events, hold.output_most)
            if outgrown or now - hold.beat_at >= BEAT_S or events - hold.beat_events >= CHECKPOINT_TOKENS:
                hold.beat_at = now
                hold.beat_events = events
                beats.append(hold.beat())
                if len(beats) == MAX_BEATS:
                    break
        return beats

    async def run(self, counters: Counters) -> None:
        """Send heartbeats until cancelled. Holds without limits have none."""
        idle_since = self._clock()
        while True:
            await next_tick(LOOK_S)
            while beats := self.due(self._clock()):
                await counters.beat(beats)
                idle_since = self._clock()
            if self._clock() - idle_since >= BEAT_S:
                await counters.beat(())  # so that settlements that the store could not take are tried again
                idle_since = self._clock()
