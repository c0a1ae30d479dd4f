"""`tidegate backend …`: the fleet as a running gateway sees it, and changes to it."""

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from domain.membership import SourceState
from gateway.cli.admin_client import ADMIN, API, AdminClient, AdminUrl, TokenFile, segment, token_from
from gateway.cli.printing import AsJson, err, fail, out
from gateway.process.snapshots import BackendState

backend_app = typer.Typer(no_args_is_help=True, help="Backends of a running gateway.")


class _BackendList(msgspec.Struct):
    backends: list[BackendState]
    sources: list[SourceState] = []
    clashes: list[str] = []


@backend_app.command("list")
def list_backends(
    admin: AdminUrl = ADMIN,
    as_json: AsJson = False,
) -> None:
    """Print every backend: whether it is used, who names it, what is on it, what it says of itself, and why it is not up."""
    body = AdminClient(admin).get("/backends")
    if as_json:
        typer.echo(body.decode())
        return
    listing = _listing(admin, body)
    table = Table("backend", "pool", "state", "source", "in flight", "limit", "running", "waiting", "kv", "blocks", "age")
    for backend in listing.backends:
        signals = backend.signals
        table.add_row(
            backend.backend,
            backend.pool,
            (backend.state or ("up" if backend.up else "down"))
            + (f", breaker {backend.breaker.replace('_', ' ')}" if backend.breaker else ""),
            backend.source,
            str(backend.in_flight),
            "" if backend.limit is None else f"{backend.limit.own:.0f} of {backend.limit.requests:.0f}",
            _shown(signals.running if signals else None),
            _shown(signals.waiting if signals else None),
            "?" if signals is None or signals.kv_usage is None else f"{signals.kv_usage:.0%}",
            "" if backend.kv is None else f"{backend.kv.blocks} {'exact' if backend.kv.trusted else 'untrusted'}",
            "?" if backend.reported_age_s is None else f"{backend.reported_age_s:.1f} s",
        )
    out.print(table)
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
    for clash in listing.clashes:
        err.print(clash, markup=False, soft_wrap=True)


@backend_app.command("add")
def add_backend(pool: str, backend_id: str, url: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Register a backend with every gateway on the database; it takes requests once a poll finds it right."""
    AdminClient(admin, token_from(token_file)).post(f"{API}/backends", {"pool": pool, "id": backend_id, "url": url})
    out.print(f"backend {backend_id} registered; gateways use it within 5 s, once it answers", markup=False)


@backend_app.command("drain")
def drain_backend(
    backend_id: str,
    grace_s: Annotated[float | None, typer.Option(help="Seconds that running requests have; default: the gateway's drain.grace_s.")] = None,
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
) -> None:
    """Give a backend no new requests; what runs on it may finish within the grace."""
    query = "" if grace_s is None else f"?grace_s={grace_s:g}"
    answer = AdminClient(admin, token_from(token_file)).post(f"{API}/backends/{segment(backend_id)}/drain{query}")
    out.print(
        f"backend {backend_id} drains within 5 s, with {answer['grace_s']:g} s for what runs. {answer['message']}",
        markup=False,
        soft_wrap=True,
    )


@backend_app.command("resume")
def resume_backend(backend_id: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Let a drained backend take requests again."""
    AdminClient(admin, token_from(token_file)).post(f"{API}/backends/{segment(backend_id)}/resume")
    out.print(f"backend {backend_id} takes requests again, once a poll finds it right", markup=False)


@backend_app.command("remove")
def remove_backend(backend_id: str, admin: AdminUrl = ADMIN, token_file: TokenFile = None) -> None:
    """Take a registered backend away: it drains first, and is gone once nothing runs on it."""
    AdminClient(admin, token_from(token_file)).delete(f"{API}/backends/{segment(backend_id)}")
    out.print(f"backend {backend_id} is removed within 5 s; it drains first", markup=False)


def fleet_of(admin: str) -> list[BackendState]:
    """The fleet as the gateway behind the admin port sees it; ends the command with a sentence when it cannot be read."""
    return _listing(admin, AdminClient(admin).get("/backends")).backends


def _listing(admin: str, body: bytes) -> _BackendList:
    try:
        return msgspec.json.decode(body, type=_BackendList)
    except msgspec.DecodeError:
        fail(f"{admin} does not answer like the admin port of a gateway of this version")


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
