"""Builds what traces need: the notes of a worker's requests (`tracing_for`), and its exporters (`traces_for`)."""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from gateway.config.load import Settings
from gateway.config.read_secrets import read_trace_headers
from gateway.request.trace_notes import TraceTerms, Tracing, trace_ids
from gateway.telemetry.otlp import BatchExporter, OtlpSender
from gateway.telemetry.traces import TraceReceiver, Traces


def installed_version() -> str:
    """Tidegate's version, or "unknown" when it runs from a checkout that was never installed."""
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "unknown"


def tracing_for(settings: Settings) -> Tracing | None:
    """Opens the traces of requests; None where the settings have no `traces`."""
    wanted = settings.traces
    if wanted is None:
        return None
    terms = TraceTerms(wanted.ratio, wanted.slow_s, wanted.slow_ttft_s)
    always = wanted.engine_spans == "always"
    return Tracing(terms, trace_ids(secrets.token_hex), callers_flag=wanted.callers_flag, engines_always=always)


def traces_for(settings: Settings) -> Traces | None:
    """A worker's exporters, started; None where the settings have no `traces`. Must be called in the process that uses them.

    Raises:
        SecretError: a header's secret is missing.
    """
    wanted = settings.traces
    if wanted is None:
        return None
    # imported only here: the messages of OpenTelemetry are an extra, and cost a worker 20 ms and 3 MB
    from gateway.telemetry.spans import SpanMaker, rejected_of

    resource = {**own_resource(), **wanted.resource}
    receivers = []
    for name, receiver in wanted.exporters.items():
        sender = OtlpSender(
            receiver.endpoint,
            read_trace_headers(settings, name),
            timeout_s=receiver.timeout_s,
            compress=receiver.compression == "gzip",
            rejected_of=rejected_of,
            clock=time.monotonic,
        )
        maker = SpanMaker(resource, installed_version(), _span_ids(), internals=receiver.names_internals)
        exporter = BatchExporter(name, maker.encoded, sender, max_pending=receiver.max_pending, clock=time.monotonic)
        exporter.start()
        tenants = None if receiver.tenants is None else frozenset(receiver.tenants)
        receivers.append(TraceReceiver(exporter, tenants, frozenset(receiver.except_tenants)))
    return Traces(receivers)


def own_resource() -> dict[str, str]:
    """The attributes of this process, as a resource of OpenTelemetry."""
    return {
        "service.name": "tidegate",
        "service.version": installed_version(),
        "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
    }


def _span_ids() -> Callable[[], str]:
    """Ids of steps, which nobody has to be unable to guess; one source for each exporter's thread."""
    draw = random.Random(secrets.randbits(64)).getrandbits
    return lambda: f"{draw(64) or 1:016x}"
