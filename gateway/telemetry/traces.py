"""Decides of each finished request whether it is traced, and hands it to the exporters that get its tenant's requests.

The decision is made at the end (tail sampling), on the closed Record: requests that failed, fell back or were slow are always traced, and
of the others those whose trace was sampled from the start (`gateway.request.trace_notes`). It costs a request that is not traced a few
comparisons; whatever is made of a Record is made in a thread of its exporter (`otlp.py`, `spans.py`). Imports nothing of OpenTelemetry.
"""

import asyncio
from collections.abc import Sequence

import msgspec

from domain.faults import SOURCE, Kind, Source
from gateway.record import OK, Record
from gateway.telemetry.otlp import BatchExporter


def is_error(record: Record) -> bool:
    """Whether the request failed for a reason that is not its caller's: an error of a server, as OpenTelemetry counts them."""
    return record.outcome != OK and SOURCE[Kind(record.outcome)] is not Source.CALLER


def is_kept(record: Record) -> bool:
    """Whether a request is traced. Its notes say whether it was sampled, and from when on it is slow."""
    notes = record.trace
    if notes is None or notes.terms is None:
        return False
    if notes.sampled or record.failed or record.fell_back or record.duration_s > notes.terms.slow_s or is_error(record):
        return True
    ttft_s = record.caller_ttft_s or record.ttft_s
    if ttft_s is not None and ttft_s > notes.terms.slow_ttft_s:
        return True
    return any([not met for _, met in record.promises])


class TraceReceiver(msgspec.Struct, frozen=True):
    """One exporter, and whose requests it gets."""

    exporter: BatchExporter[Record]
    tenants: frozenset[str] | None
    """None for all tenants but those of `except_tenants`."""
    except_tenants: frozenset[str]

    def wants(self, tenant: str) -> bool:
        """Whether it gets the requests of a tenant; of a request without a tenant (a refused key) the name is empty."""
        return tenant in self.tenants if self.tenants is not None else tenant not in self.except_tenants


class Traces:
    """The exporters of one worker. `observe` belongs to the event loop's thread."""

    def __init__(self, receivers: Sequence[TraceReceiver]) -> None:
        self._receivers = receivers

    def observe(self, record: Record) -> None:
        """Takes one Record with notes; never waits."""
        if is_kept(record):
            for receiver in self._receivers:
                if receiver.wants(record.tenant):
                    receiver.exporter.add(record)

    def figures(self) -> dict[str, tuple[int, int, int, int]]:
        """What became of traces since the start, by exporter, as `otlp.RESULTS`."""
        return {receiver.exporter.name: receiver.exporter.figures() for receiver in self._receivers}

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        await asyncio.gather(*(asyncio.to_thread(receiver.exporter.close) for receiver in self._receivers))
