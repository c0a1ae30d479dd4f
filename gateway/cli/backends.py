"""`tidegate backend …`: the fleet as a running gateway sees it, and changes to it."""

from typing import Annotated, Any, Final

import msgspec
import typer

from domain.membership import SourceState
from gateway.cli.admin_client import API, AdminClient, Yes, segment, sure
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import seconds_of
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err, fail, out
from gateway.placement.backend_state import BackendState

backend_app = CommandGroup("Backends of a running gateway.")

COLUMNS: Final = ("backend", "pool", "state", "revision", "source", "in_flight", "limit", "running", "waiting", "kv", "blocks", "age")
BackendId = Annotated[str, typer.Argument(metavar="BACKEND", help="The backend's id.")]


class _BackendList(msgspec.Struct):
    backends: list[BackendState]
    sources: list[SourceState] = []
    clashes: list[str] = []


@backend_app.command("list")
def list_backends(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print every backend: whether it is used, who names it, what is on it, what it says of itself, and why it is not up."""
    body = gateway.public().get("/backends")
    listing = _listing(body)
    rows = list(map(_row, listing.backends))
    output.show(
        rows,
        COLUMNS,
        msgspec.Raw(body),
        expendable=("revision", "source", "in_flight", "limit", "age", "blocks", "waiting", "running", "kv"),
    )
    if output.for_scripts:
        return
    for backend in listing.backends:
        if why := _why(backend):
            # below the table, where sentences fit on any screen
            out.print(f"{backend.backend}: {why}", markup=False, soft_wrap=True)
    for source in listing.sources:
        if source.trouble:
            kept_members = (
                f"its last answer, {source.members} backends, stays in force" if source.members else "it has given no backend yet"
            )
            err.print(f"{source.name} of pool {source.pool or 'any'}: {source.trouble}; {kept_members}", markup=False, soft_wrap=True)
        if source.left_out:
            labels = "; ".join(source.labels)
            found = f"{source.left_out} engines left out by their labels ({labels})"
            err.print(f"{source.name} of pool {source.pool}: {found}", markup=False, soft_wrap=True)
    for clash in listing.clashes:
        err.print(clash, markup=False, soft_wrap=True)


@backend_app.command("create")
def create_backend(
    backend_id: BackendId,
    url: Annotated[str, typer.Argument(metavar="URL", help="The engine's address, http://host:port.")],
    pool: Annotated[str, typer.Option(help="The pool that it joins.")],
    gateway: GatewayOptions,
) -> None:
    """Register a backend with every gateway on the database; it takes requests once a poll finds it right."""
    gateway.api().post(f"{API}/backends", {"pool": pool, "id": backend_id, "url": url})
    out.print(f"backend {backend_id} registered; gateways use it within 5 s, once it answers", markup=False)


@backend_app.command("drain")
def drain_backend(
    backend_id: BackendId,
    gateway: GatewayOptions,
    grace: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time that running requests have, as 90s; default: the gateway's drain.grace_s.")
    ] = None,
) -> None:
    """Give a backend no new requests; what runs on it may finish within the grace."""
    query = "" if grace is None else f"?grace_s={seconds_of('--grace', grace):g}"
    answer = gateway.api().post(f"{API}/backends/{segment(backend_id)}/drain{query}")
    out.print(
        f"backend {backend_id} drains within 5 s, with {answer['grace_s']:g} s for what runs. {answer['message']}",
        markup=False,
        soft_wrap=True,
    )


@backend_app.command("resume")
def resume_backend(backend_id: BackendId, gateway: GatewayOptions) -> None:
    """Let a drained backend take requests again."""
    gateway.api().post(f"{API}/backends/{segment(backend_id)}/resume")
    out.print(f"backend {backend_id} takes requests again, once a poll finds it right", markup=False)


@backend_app.command("delete")
def delete_backend(backend_id: BackendId, gateway: GatewayOptions, yes: Yes = False) -> None:
    """Delete a registered backend: it drains first, and is gone once nothing runs on it."""
    sure(f"Delete backend {backend_id}, once its requests are done?", yes)
    gateway.api().delete(f"{API}/backends/{segment(backend_id)}")
    out.print(f"backend {backend_id} is deleted within 5 s; it drains first", markup=False)


def fleet_of(client: AdminClient) -> list[BackendState]:
    """The fleet as the gateway behind the admin port sees it; ends the command with a sentence when it cannot be read."""
    return _listing(client.get("/backends")).backends


def _listing(body: bytes) -> _BackendList:
    try:
        return msgspec.json.decode(body, type=_BackendList)
    except msgspec.DecodeError:
        fail("that address does not answer like the admin port of a gateway of this version")


def _row(backend: BackendState) -> dict[str, Any]:
    signals = backend.signals
    state = backend.state or ("up" if backend.up else "down")
    return {
        "backend": backend.backend,
        "pool": backend.pool,
        "state": state + (f", breaker {backend.breaker.replace('_', ' ')}" if backend.breaker else ""),
        "revision": backend.revision,
        "source": backend.source,
        "in_flight": backend.in_flight,
        "limit": "" if backend.limit is None else f"{backend.limit.own:.0f} of {backend.limit.requests:.0f}",
        "running": _shown(signals.running if signals else None),
        "waiting": _shown(signals.waiting if signals else None),
        "kv": "?" if signals is None or signals.kv_usage is None else f"{signals.kv_usage:.0%}",
        "blocks": "" if backend.kv is None else f"{backend.kv.blocks} {'exact' if backend.kv.trusted else 'untrusted'}",
        "age": "?" if backend.reported_age_s is None else f"{backend.reported_age_s:.1f} s",
    }


def _why(backend: BackendState) -> str:
    """Why the backend is not used, else what is unknown about it; empty for neither."""
    if backend.why:
        return backend.why
    missing = f"does not report {', '.join(backend.signals.missing)}" if backend.signals and backend.signals.missing else ""
    events = f"KV events: {backend.kv.reason}" if backend.kv and backend.kv.reason else ""
    push = f"load push: {backend.push.reason}; polls say its load" if backend.push and backend.push.reason else ""
    return "; ".join(filter(None, (missing, events, push)))


def _shown(number: int | None) -> str:
    """The number as text; `?` for an unknown one, which is not zero."""
    return "?" if number is None else str(number)
