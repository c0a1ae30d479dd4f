"""`tidegate logs …`: finished requests, as they finish or as they are kept, and where the time of one went."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

import msgspec
import typer

from gateway.cli.admin_client import API, segment
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import DURATION, seconds_of, unix_of
from gateway.cli.groups import CommandGroup, Options
from gateway.cli.printing import AsJson, OutputOptions, err, fail, moment, out, print_json

logs_app = CommandGroup("Finished requests: watch them, find them, and where the time of one went.")

MAX_REQUESTS: Final = 100_000
COLUMNS: Final = (
    "at_unix",
    "request_id",
    "tenant",
    "model",
    "outcome",
    "duration_ms",
    "ttft_ms",
    "slowest_step",
    "backend",
    "completion_tokens",
)
EXPENDABLE: Final = ("completion_tokens", "ttft_ms", "backend", "tenant")


@dataclass
class WantedRequests(Options):
    """Which requests: those that meet every condition that is set."""

    tenant: Annotated[str, typer.Option(help="Only this tenant.")] = ""
    project: Annotated[str, typer.Option(help="Only this project.")] = ""
    key: Annotated[str, typer.Option(help="Only this key, by its public id.")] = ""
    model: Annotated[str, typer.Option(help="Only this model.")] = ""
    pool: Annotated[str, typer.Option(help="Only this pool.")] = ""
    backend: Annotated[str, typer.Option(help="Only this backend.")] = ""
    endpoint: Annotated[str, typer.Option(help="Only this path, as /v1/chat/completions.")] = ""
    rule: Annotated[str, typer.Option(help="Only requests that this rule of their tenant's policy matched.")] = ""
    outcome: Annotated[str, typer.Option(help="Only this outcome: ok, or a kind of fault such as overloaded.")] = ""
    failed: Annotated[bool, typer.Option("--failed", help="Only requests that did not end well.")] = False
    slower: Annotated[str, typer.Option("--slower-than", help=f"Only requests that took so long or longer, {DURATION}, or 500ms.")] = ""

    def query(self) -> dict[str, str]:
        """The conditions as the admin API takes them."""
        same = ("tenant", "project", "model", "pool", "backend", "endpoint", "rule", "outcome")
        asked = {name: value for name in same if (value := getattr(self, name))}
        if self.key:
            asked["key_id"] = self.key
        if self.failed:
            asked["failed"] = "true"
        if self.slower:
            asked["min_duration_ms"] = f"{1000 * seconds_of('--slower-than', self.slower):g}"
        return asked


@logs_app.command("find")
def find(
    gateway: GatewayOptions,
    wanted: WantedRequests,
    output: OutputOptions,
    since: Annotated[str, typer.Option(help=f"Only requests of so long ago or less, {DURATION}, or since a moment (ISO 8601).")] = "",
    until: Annotated[str, typer.Option(help="Only requests from before so long ago, or before a moment.")] = "",
    order: Annotated[Literal["newest", "slowest"], typer.Option(help="The newest first, or those first that took longest.")] = "newest",
    limit: Annotated[int, typer.Option(min=1, max=MAX_REQUESTS, help="Most requests.")] = 50,
    lines: Annotated[
        bool, typer.Option("--lines", help="Print the lines of the access log, the oldest first, as `tidegate simulate` reads them.")
    ] = False,
) -> None:
    """Print finished requests."""
    asked = {**wanted.query(), "order": order}
    for name, text in (("since", since), ("until", until)):
        if text:
            asked[f"{name}_unix"] = f"{_moment(f'--{name}', text):.6f}"
    if lines:
        asked |= {"records": "true"}
    rows = gateway.api().items(f"{API}/requests?{urlencode(asked)}", limit)
    if lines:
        text = "".join(f"{msgspec.json.encode(row['record']).decode()}\n" for row in sorted(rows, key=lambda row: row["at_unix"]))
        output.write(text)
        return
    output.show(rows, COLUMNS, rows, expendable=EXPENDABLE)


@logs_app.command("show")
def show(
    gateway: GatewayOptions,
    request_id: Annotated[str, typer.Argument(help="The request's id: `x-tidegate-request-id` of its reply, or of the access log.")],
    as_json: AsJson = False,
) -> None:
    """Print where the time of a request went, what it met on its way, and its texts where they are kept and you may read them."""
    request = gateway.api().find(f"{API}/requests/{segment(request_id)}")
    if request is None:
        fail(f"no finished request {request_id!a} is kept: it is too old, still runs, or is another tenant's")
    if as_json:
        print_json(request)
        return
    for line in described(request):
        out.print(line, markup=False, soft_wrap=True)


@logs_app.command("tail")
def tail(
    gateway: GatewayOptions,
    wanted: WantedRequests,
    count: Annotated[int, typer.Option("--count", "-n", min=0, max=500, help="Kept requests that are printed first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Print requests as they finish, until it is stopped (Ctrl-C)."""
    client = gateway.api()
    asked = wanted.query()
    earlier = client.items(f"{API}/requests?{urlencode(asked)}", count) if count else []
    for row in reversed(earlier):
        _print_row(row, as_json=as_json)
    try:
        for name, event in client.events(f"{API}/requests/live?{urlencode(asked)}"):
            if name == "end":
                fail("the key is no longer valid" if event["reason"] == "revoked" else "the gateway cannot check the key now; try again")
            for row in event["items"]:
                _print_row(row, as_json=as_json)
            if event["dropped"]:
                err.print(f"{event['dropped']} requests were left out", markup=False)
    except KeyboardInterrupt:
        return


def _print_row(row: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        out.file.write(msgspec.json.encode(row).decode() + "\n")
        out.file.flush()
        return
    slowest = f"  {row['slowest_step']} {row['slowest_step_ms']:.0f} ms" if row["slowest_step"] else ""
    line = f"{moment(row['at_unix'])}  {row['request_id']}  {row['tenant'] or '-'}  {row['model'] or '-'}  {row['outcome']}"
    out.print(f"{line}  {row['duration_ms']:.0f} ms{slowest}", markup=False, highlight=False, soft_wrap=True)


def described(request: Mapping[str, Any]) -> list[str]:
    """A request in lines for people."""
    where = f" on {request['backend']}" if request["backend"] else ""
    lines = [
        f"{request['request_id']} of {request['tenant'] or 'nobody known'} at {moment(request['at_unix'])}: "
        f"{request['model'] or 'no known model'}{where}: {request['outcome']} with status {request['status']} after "
        f"{request['duration_ms']:.0f} ms"
    ]
    lines += [
        f"  {step['start_ms']:>9.1f} ms  {step['step']:<12} {step['length_ms']:>9.1f} ms  {step['note']}" for step in request["timeline"]
    ]
    tokens = (
        f"{request['prompt_tokens']} prompt tokens ({request['cached_tokens']} cached), {request['completion_tokens']} tokens of answer"
    )
    lines.append(f"{tokens}; ${request['cost_usd']}")
    if request["detail"]:
        lines.append(f"cause: {request['detail']}")
    for name, words in (("failed", "failed before"), ("fell_back", "could not be answered by"), ("limits", "crossed")):
        lines += [f"{words} {one}" for one in request[name]]
    lines += [f"{name}: {request[name]}" for name in ("rule", "cache", "guard", "trace_id") if request[name]]
    content = request["content"]
    if content is not None:
        redacted = f" (redacted: {', '.join(content['redacted'])})" if content["redacted"] else ""
        lines += [f"--- prompt{redacted}", content["prompt"], "--- answer", content["answer"]]
    return lines


def _moment(option: str, text: str) -> float:
    """A moment, or a length of time before now, as seconds since the epoch."""
    if text[:1].isdigit() and text[-1:].isalpha() and "T" not in text.upper():
        return time.time() - seconds_of(option, text)
    return unix_of(option, text)
