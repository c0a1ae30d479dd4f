"""`tidegate backend …`: the fleet as a running gateway sees it."""

import http.client
from typing import Annotated, Final, NoReturn
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from gateway.worker_link import BackendState

backend_app = typer.Typer(no_args_is_help=True, help="Backends of a running gateway.")

ADMIN: Final = "http://127.0.0.1:8081"
WITHIN_S: Final = 5.0

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class _Listing(msgspec.Struct):
    backends: list[BackendState]


@backend_app.command("list")
def list_backends(
    admin: Annotated[str, typer.Option(help="Where the gateway's admin port is.")] = ADMIN,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Print every backend: whether it is used, what is on it, what it says of itself, and why it is down."""
    body = _get(admin, "/backends")
    if as_json:
        typer.echo(body.decode())
        return
    table = Table("backend", "pool", "state", "in flight", "running", "waiting", "kv", "blocks", "age", "why")
    for seen in _listing(admin, body):
        signals = seen.signals
        table.add_row(
            seen.backend,
            seen.pool,
            "up" if seen.up else "down",
            str(seen.in_flight),
            _shown(signals.running if signals else None),
            _shown(signals.waiting if signals else None),
            "?" if signals is None or signals.kv_usage is None else f"{signals.kv_usage:.0%}",
            "" if seen.kv is None else f"{seen.kv.blocks} {'exact' if seen.kv.trusted else 'untrusted'}",
            "?" if seen.signals_age_s is None else f"{seen.signals_age_s:.1f} s",
            _why(seen),
        )
    out.print(table)


def fleet_of(admin: str) -> list[BackendState]:
    """The fleet as the gateway behind the admin port sees it; ends the command with a sentence when it cannot be had."""
    return _listing(admin, _get(admin, "/backends"))


def _listing(admin: str, body: bytes) -> list[BackendState]:
    try:
        return msgspec.json.decode(body, type=_Listing).backends
    except msgspec.DecodeError:
        _fail(f"{admin} does not answer like the admin port of a gateway of this version")


def _why(seen: BackendState) -> str:
    """What keeps it from being used, or what is not known of it."""
    if seen.why:
        return seen.why
    missing = f"does not report {', '.join(seen.signals.missing)}" if seen.signals and seen.signals.missing else ""
    events = f"KV events: {seen.kv.reason}" if seen.kv and seen.kv.reason else ""
    return "; ".join(filter(None, (missing, events)))


def _shown(number: int | None) -> str:
    """Unknown is not zero."""
    return "?" if number is None else str(number)


def _get(admin: str, path: str) -> bytes:
    parts = urlsplit(admin)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        _fail(f"--admin {admin!r} is no address; write http://host:port", code=2)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname, parts.port, timeout=WITHIN_S)
        connection.request("GET", path)
        reply = connection.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException, ValueError) as error:
        _fail(f"no gateway answers at {admin} ({type(error).__name__}); start one, or name its admin port with --admin")
    if reply.status != 200:
        _fail(f"{admin}{path} answers {reply.status}; is that the admin port?")
    return body


def _fail(message: str, code: int = 1) -> NoReturn:
    err.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(code)
