"""An engine's prefill speed and its load now, from its readings and from this process's own counts. Pure.

A reading is up to a poll interval old, and older when the engine is slow; the requests that this process has sent and seen end since are
known exactly. Every router that balances well adds the second to the first (`routing.load` counts it).
"""

from typing import Final

import msgspec

from backends.signals import Signals, restarted

MEASURED_BUSY_S: Final = 0.2
"""Least prefill time over which a rate is measured: a few batches, so that one unusual batch does not set the rate."""


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
    """An engine's probable load now; None is unknown and not zero."""

    running: int | None
    waiting: int | None


def standing(read: Signals, sent: int, ended: int, in_flight: int = 0) -> Standing:
    """The load of the last reading, updated by the requests that one gateway sent and saw end since.

    Where requests wait, the batch is full: a new request joins the queue, and one that ends lets the queue move up. Where none waits, a
    new request joins the batch. The total is never below that gateway's own `in_flight`: SGLang counts a request in its first prefill
    neither as running nor as waiting (0.5.23, read and pushed alike).
    """
    running = read.running
    waiting = read.waiting
    if running is None or waiting is None:
        return Standing(running, waiting)
    all_now = max(in_flight, running + waiting + sent - ended, 0)
    running_now = min(running, all_now) if waiting else all_now
    return Standing(running_now, all_now - running_now)
