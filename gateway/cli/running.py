"""`tidegate status`, `tidegate reload` and `tidegate stop`: a running gateway as a whole.

`status` says what the open routes of the admin port say, and with a token what the admin API adds. `reload` and `stop` go over the admin
API; with `--run-dir`, the folder that `tidegate serve --run-dir` was given, they signal the process on this machine and need no token.
"""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.admin_client import API, AdminClient, RefusedByGateway, Yes, sure
from gateway.cli.connection import GatewayOptions, nobody_listens
from gateway.cli.durations import seconds_of
from gateway.cli.printing import AsJson, err, fail, moment, out, print_json, print_table

LOOK_S: Final = 0.3
"""Time between two looks at a gateway that reloads or ends."""
MARGIN_S: Final = 30.0
"""Time that a gateway has to end its processes, beyond its drain."""
RELOAD_WITHIN: Final = "3m"

RunDir = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="The --run-dir of `tidegate serve`: signal that process, without a token.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done.")]


def status(gateway: GatewayOptions, as_json: AsJson = False) -> None:
    """Print how the gateway stands: workers, pools, stores, policies, rollouts, and everything that needs a look.

    Without a token: version, workers and pools. Exit codes: 0 it is ready, 1 it is not, or nobody answers.
    """
    public = gateway.public()
    seen = {name: _decoded(public, path) for name, path in (("version", "/version"), ("backends", "/backends"), ("pools", "/pools"))}
    ready = _decoded(public, "/readyz", statuses=(200, 503))
    found = {
        "address": public.where,
        "version": seen["version"]["version"],
        **ready,
        "workers": seen["backends"]["workers"],
        "pools": [_pool(pool, seen["backends"]["backends"]) for pool in seen["pools"]["pools"]],
        "warnings": _fleet_warnings(seen["backends"]),
        "gateway": None,
        "rollouts": None,
    }
    api = gateway.api_or_none()
    without = "" if api is not None else "no admin token is at hand: stores, policies and rollouts are left out"
    if api is not None:
        try:
            found["gateway"] = api.read(f"{API}/gateway")
            found["rollouts"] = api.items(f"{API}/rollouts?closed=false", 100)
            found["warnings"] = [*found["gateway"]["warnings"], *found["warnings"]]
        except RefusedByGateway as refused:
            without = f"stores, policies and rollouts are left out: {refused.message}"
    if as_json:
        print_json(found)
    else:
        _print(found, without)
    raise typer.Exit(0 if found["ready"] else 1)


def reload(
    gateway: GatewayOptions,
    code: Annotated[bool, typer.Option("--code", help="Take up new code as well: replace the first process too.")] = False,
    policies: Annotated[bool, typer.Option("--policies", help="Only read the policy files now; no process is replaced.")] = False,
    wait: Wait = True,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="Longest wait.")] = RELOAD_WITHIN,
    run_dir: RunDir = None,
) -> None:
    """Take up the settings file and the policies: every process but the first is replaced, and no connection is refused.

    Policy files are read within two seconds of a change anyway. Changed addresses, numbers of workers and drain times are not taken up, and
    are named. Exit codes: 0 taken up, 1 not: the settings have mistakes or a secret is missing, so that the gateway refuses to reload; or a
    new process could not start and the old one stays: the command ends at once, and the log says why.
    """
    if code and policies:
        fail("--code and --policies: choose one", code=2)
    within_s = seconds_of("--timeout", timeout, 1.0)
    if policies:
        print_in_force(gateway.api().post(f"{API}/policies/reload"))
        return
    _check_settings(gateway)
    if run_dir is not None:
        pid = _signal(run_dir, signal.SIGUSR2 if code else signal.SIGHUP)
        out.print(f"process {pid} replaces the others, one at a time; its log says when it is done", markup=False)
        return
    api = gateway.api(quiet=True)
    try:
        before = _processes(api)
    except RefusedByGateway as refused:
        fail(refused.message)
    answer = _posted(api, f"{API}/gateway/reload", {"what": "code" if code else "settings"})
    out.print(f"process {answer['pid']} replaces the others, one at a time", markup=False)
    if not wait:
        return
    refusals = _Refusals(before)
    left = _waited(within_s, lambda: refusals.left(_quietly(api)))
    if refusals.found:
        fail(f"{refusals.found}; the old processes go on, and the log says why")
    if left:
        fail(f"not replaced within {timeout}: {', '.join(left)}; the old processes go on, and the log says why")
    out.print(f"every process has been replaced: {', '.join(sorted(before))}", markup=False)
    for sentence in api.read(f"{API}/gateway").get("unapplied", ()):
        err.print(f"note: not taken up: {sentence}", markup=False, soft_wrap=True)


def stop(gateway: GatewayOptions, yes: Yes = False, wait: Wait = True, run_dir: RunDir = None) -> None:
    """End the gateway: it takes no new requests, and running ones may finish within drain.grace_s."""
    if run_dir is not None:
        sure(f"Stop the gateway of {run_dir}?", yes)
        pid = _signal(run_dir, signal.SIGTERM)
        out.print(f"process {pid} drains", markup=False)
        if wait and (_waited(None, lambda: [str(pid)] if _runs(pid) else [])):
            fail(f"process {pid} still runs")
        return
    api = gateway.api(quiet=True)
    sure(f"Stop the gateway at {api.where}?", yes)
    answer = _posted(api, f"{API}/gateway/stop", None)
    drain_s = answer["accept_s"] + answer["grace_s"]
    out.print(f"process {answer['pid']} drains, for at most {drain_s:g} s", markup=False)
    if wait:
        if _waited(drain_s + MARGIN_S, lambda: [] if nobody_listens(api.where) else ["admin port"]):
            fail("its admin port still answers; the log says what it waits for")
        out.print("stopped", markup=False)


def _decoded(client: AdminClient, path: str, statuses: tuple[int, ...] = (200,)) -> dict[str, Any]:
    try:
        decoded: dict[str, Any] = msgspec.json.decode(client.get(path, statuses), type=dict[str, Any])
    except msgspec.DecodeError:
        fail(f"{client.where} does not answer like the admin port of a gateway of this version")
    return decoded


def _pool(pool: Mapping[str, Any], backends: list[dict[str, Any]]) -> dict[str, Any]:
    members = [backend for backend in backends if backend["pool"] == pool["name"]]
    states = Counter(backend.get("state") or ("up" if backend["up"] else "down") for backend in members)
    up = states.pop("up", 0)
    return {
        "pool": pool["name"],
        "model": pool["model"],
        "backends": len(members),
        "up": up,
        "draining": states.pop("draining", 0),
        "not_up": states.total(),
        "in_flight": sum(backend.get("in_flight", 0) for backend in members),
    }


def _fleet_warnings(fleet: Mapping[str, Any]) -> list[str]:
    backends = [f"backend {backend['backend']}: {backend['why']}" for backend in fleet["backends"] if backend.get("why")]
    sources = [
        f"{source['name']} of pool {source['pool'] or 'any'}: {source['trouble']}" for source in fleet["sources"] if source["trouble"]
    ]
    return [*backends, *sources, *fleet["clashes"]]


def _print(found: Mapping[str, Any], without: str) -> None:
    def line(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    workers = found["workers"]
    state = "ready" if found["ready"] else f"not ready: {'; '.join(found['reasons'])}"
    line(f"gateway {found['address']}, version {found['version']}: {state}")
    line(f"workers: {workers['answered']} of {workers['expected']} answer")
    gateway = found["gateway"]
    if gateway is not None:
        since = min((worker["started_unix"] for worker in gateway["workers"]), default=None)
        started = "" if since is None else f", the oldest worker since {moment(since)}"
        line(f"process {gateway['pid']}, data port {gateway['data_port']}, admin port {gateway['admin_port']}{started}")
        stores = gateway["stores"]
        shared = "" if stores["counters_shared"] else ", away: limits are decided without it"
        line(f"stores: database {stores['database']}; counters {stores['counters']}{shared}")
        digests = sorted({worker["policies"] for worker in gateway["workers"]})
        line(f"policies: {', '.join(digests) or 'none'}")
    for rollout in found["rollouts"] or ():
        line(f"rollout {rollout['name']}: {rollout['baseline']} -> {rollout['canary']}, {rollout['status']}, {100 * rollout['share']:g} %")
    if found["rollouts"] == []:
        line("rollouts: none in force")
    print_table(found["pools"], ("pool", "model", "backends", "up", "draining", "not_up", "in_flight"), ("model", "in_flight"))
    for warning in found["warnings"]:
        line(f"warning: {warning}")
    if without:
        err.print(f"note: {without}", markup=False, soft_wrap=True)


def print_in_force(outcome: dict[str, Any]) -> None:
    """Print the answer to a reload of the policies, with what is active and hardly meant."""
    out.print(f"policies {outcome['digest']} in force in {outcome['workers']} worker{'s' * (outcome['workers'] != 1)}", markup=False)
    for warning in outcome["warnings"]:
        err.print(f"warning: {warning}", markup=False, soft_wrap=True)


def _check_settings(gateway: GatewayOptions) -> None:
    """Refuse what the new processes would refuse, where the settings file of the gateway is at hand."""
    if gateway.place().settings is None:
        return
    # imported only here: a command that asks a gateway elsewhere needs no settings
    from gateway.config.load import ConfigError, load_settings

    try:
        load_settings(gateway.config)
    except ConfigError as error:
        fail(f"{error}\nnothing was reloaded")


def _posted(api: AdminClient, path: str, body: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = api.post(path, body)
    except RefusedByGateway as refused:
        fail(refused.message)
    return answer


def _processes(api: AdminClient) -> dict[str, dict[str, Any]]:
    """The workers and the admin process by name; the store of the counters is never replaced."""
    return {one["name"]: one for one in api.read(f"{API}/gateway")["processes"] if one["name"] != "store"}


def _quietly(api: AdminClient) -> dict[str, dict[str, Any]] | None:
    """The processes; None while the admin process is being replaced and does not know them."""
    with contextlib.suppress(RefusedByGateway):
        return _processes(api)
    return None


class _Refusals:
    """Follows a reload: which processes are still the old ones, until a replacement has failed."""

    def __init__(self, before: Mapping[str, dict[str, Any]]) -> None:
        self._before = before
        self.found = ""
        """Why no further process is replaced."""

    def left(self, now: Mapping[str, dict[str, Any]] | None) -> list[str]:
        """The processes that may still be replaced; none once a replacement has failed."""
        if now is None:
            return list(self._before)
        for name, one in now.items():
            # a gateway of an older version has no such count
            if one.get("refused_replacements", 0) > self._before.get(name, {}).get("refused_replacements", 0):
                self.found = f"{name} was not replaced: {one['last_refusal']}"
                return []
        return [name for name, one in self._before.items() if now.get(name, one)["pid"] in (one["pid"], None)]


def _waited(within_s: float | None, left: Callable[[], list[str]]) -> list[str]:
    """Look again and again until nothing is left, or the time is over; returns what is left then."""
    until = None if within_s is None else time.monotonic() + within_s
    while remaining := left():
        if until is not None and time.monotonic() >= until:
            return remaining
        time.sleep(LOOK_S)
    return []


def _signal(run_dir: Path, number: int) -> int:
    """Signal the first process of the gateway with this run directory; returns its pid. Ends the command where none runs."""
    file = run_dir / "ready.json"
    try:
        pid = msgspec.json.decode(file.read_bytes(), type=dict[str, int])["pid"]
        os.kill(pid, number)
    except (OSError, KeyError, msgspec.DecodeError) as error:
        fail(f"no gateway runs with the run directory {run_dir} ({type(error).__name__} at {file})")
    return pid


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
