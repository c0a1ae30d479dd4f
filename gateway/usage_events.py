"""Turns one finished request into one row of the ledger."""

from gateway.record import Record
from tenancy.usage import UsageEvent


def usage_event(record: Record) -> UsageEvent | None:
    """The row, or None for a request that never had a hold: it was refused before it could use anything."""
    if not record.closing:
        return None
    return UsageEvent(
        record.engine_request_id or record.request_id,
        int(record.at_unix * 1000),
        record.tenant,
        record.project,
        record.key_id,
        record.user,
        record.endpoint,
        record.model,
        record.pool,
        record.revision,
        record.lora,
        record.outcome,
        record.closing,
        record.usage,
        record.units,
        record.cost_nanousd,
        record.price_id,
        int(record.duration_s * 1000),
        record.organisation,
        record.priority_class,
        record.asked_model,
        ", ".join(record.steps),
    )
