"""What several readings of one engine say together: how fast it prefills, and how it stands by now. Pure.

A reading is up to a poll interval old, and older when the engine is slow; what this process has sent and seen end since is
known exactly. Every router that balances well adds the second to the first (`routing.load` counts it).
"""

from typing import Final

import msgspec

from backends.signals import Signals, restarted

MEASURED_BUSY_S: Final = 0.2
"""Prefill time over which a rate is measured: a few batches, so that one odd batch is not the rate."""


class PrefillRate(msgspec.Struct, frozen=True):
    """The prefill speed of one engine, and the reading from which the next one is measured."""

    since: Signals
    tokens_per_s: float | None = None
    """Prompt tokens computed per second of prefill; None until enough was computed, and again after a restart."""


def measured(known: PrefillRate | None, now: Signals) -> PrefillRate:
    """The rate after one more reading: tokens over busy seconds, both differences of the engine's own counters.

    Time in which nothing was prefilled does not count, so an idle engine keeps its rate. An engine that does not report its
    busy time has no rate: over wall-clock time the number would be its load and not its speed.
    """
    if known is None or restarted(known.since, now):
        return PrefillRate(now)
    before = known.since
    if before.prefill_tokens is None or before.prefill_busy_s is None:
        return PrefillRate(now)
    if now.prefill_tokens is None or now.prefill_busy_s is None:
        return known
    busy_s = now.prefill_busy_s - before.prefill_busy_s
    if busy_s < MEASURED_BUSY_S:
        return known
    return PrefillRate(now, (now.prefill_tokens - before.prefill_tokens) / busy_s)


class Standing(msgspec.Struct, frozen=True):
    """How an engine probably stands now; None is unknown and not zero."""

    running: int | None
    waiting: int | None


def standing(read: Signals, sent: int, ended: int, in_flight: int = 0) -> Standing:
    """The last reading, brought up to date by what one gateway sent and saw end since.

    Where requests wait, the batch is as large as it gets: what comes joins the queue, and what ends lets the queue move up.
    Where nobody waits, what comes joins the batch. There are never fewer than that gateway's own `in_flight`: SGLang counts
    what is in its first prefill neither as running nor as waiting (0.5.23, read and pushed alike).
    """
    running, waiting = read.running, read.waiting
    if running is None or waiting is None:
        return Standing(running, waiting)
    all_now = max(in_flight, running + waiting + sent - ended, 0)
    running_now = min(running, all_now) if waiting else all_now
    return Standing(running_now, all_now - running_now)
