"""`tidegate engine run`: one engine in the foreground, registered with a running gateway while it is healthy.

    start -> healthy -> registered -> (SIGTERM) drained at the gateway -> SIGTERM to the engine -> removed

When the engine dies, its registration is removed, and the command ends with the engine's exit code. When this command is killed
with SIGKILL, the engine goes on; systemd and containers end both.

`EngineRun` takes `EngineProcess` and its registration (`Place`) through these states. `need_free_port` and `need_pool` check before the
start that the port is free and the pool exists: an engine takes minutes to load, so a mistake is reported before and not after that.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import typer

from backends.dialects import DIALECTS
from backends.launch.resolve import Launch
from backends.launch.weights_digest import NotAModel, unlike
from gateway.cli.admin_client import API, AdminClient, RefusedByGateway, segment
from gateway.cli.connection import GatewayOptions
from gateway.cli.durations import seconds_of
from gateway.cli.launch_options import Executable, Name, Revision, Sets, launch_from
from gateway.cli.models import revision_of
from gateway.cli.printing import err, fail

PREFLIGHT_WITHIN_S: Final = 2.0
"""Longest wait for a connection to the engine's port; on the same machine the answer is immediate."""


class PoolSeen(msgspec.Struct, frozen=True):
    """A pool as the admin port lists it."""

    name: str
    model: str
    """The model name that the gateway's requests carry."""
    dialect: str

    def mismatches(self, launch: Launch) -> list[str]:
        """The mismatches between this engine and the pool, one sentence each."""
        sentences = []
        if launch.served_name != self.model:
            mend = f"the gateway will not use it; start it with --set served_name={self.model}, or change the pool's model"
            sentences.append(f"it serves {launch.served_name}, and pool {self.name} asks for {self.model}: {mend}")
        if launch.engine != self.dialect:
            sentences.append(f"it is {launch.engine}, and pool {self.name} speaks {self.dialect}: register it in another pool")
        return sentences


class _Pools(msgspec.Struct):
    pools: list[PoolSeen]


def need_digest(launch: Launch) -> None:
    """End the command unless the model on this machine has the digest that the launch is for, if it is for one."""
    if not launch.digest:
        return
    try:
        differs = unlike(Path(str(launch.parameters["model"])), launch.digest)
    except NotAModel as error:
        differs = str(error)
    if differs:
        fail(f"the engine is not started: {differs}")


def need_free_port(launch: Launch) -> None:
    """End the command when another process accepts connections on this engine's port: its health would pass for the engine's."""
    host = urlsplit(launch.url).hostname or ""
    try:
        socket.create_connection((host, launch.port), timeout=PREFLIGHT_WITHIN_S).close()
    except OSError:
        return
    fail(
        f"port {launch.port} of {host} is taken: something accepts connections there already; "
        "end that first, or choose another port with --set port=NUMBER"
    )


def need_pool(admin: AdminClient, name: str) -> PoolSeen:
    """The pool as the gateway lists it; ends the command when no pool has that name, or no gateway answers."""
    try:
        pools = msgspec.json.decode(admin.get("/pools"), type=_Pools).pools
    except msgspec.DecodeError:
        fail("the admin port does not list its pools like a gateway of this version; look at --admin")
    match = next((pool for pool in pools if pool.name == name), None)
    if match is None:
        fail(f"--pool {name}: the gateway has no such pool; there are {', '.join(pool.name for pool in pools)[:500] or 'none'}")
    return match


LOOK_S: Final = 0.2
"""How often the engine and the gateway are checked; a person does not notice the delay, and a check costs next to nothing."""
SETTLE_S: Final = 3.0
"""How long the engine must be seen draining and empty: each worker of each gateway looks for drains every 2 s, by itself."""
HEALTH_WITHIN_S: Final = 2.0


def run_engine(
    name: Name,
    gateway: GatewayOptions,
    sets: Sets = None,
    executable: Executable = None,
    pool: Annotated[str | None, typer.Option(help="The pool it joins once it is healthy; without one it just runs.")] = None,
    url: Annotated[str | None, typer.Option(help="Where gateways reach it; default: its own host and port.")] = None,
    kv_events: Annotated[bool, typer.Option(help="Register where it publishes KV events, too.")] = True,
    wait_grace: Annotated[
        bool, typer.Option("--wait-grace", help="Drain for the whole grace: for several gateways on one database.")
    ] = False,
    revision: Revision = None,
    ready: Annotated[str | None, typer.Option(metavar="DURATION", help="Longest start, as 10m; default: the configuration's.")] = None,
) -> None:
    """Start an engine in the foreground and wait until it is healthy; with --pool, register it, and drain it on SIGTERM or Ctrl-C.

    Ends with the engine's own exit code, or 0 when it was asked to end. A second signal ends the drain, a third kills the engine.
    """
    launch = launch_from(name, sets, executable, revision=None if revision is None else revision_of(gateway.api(), revision))
    need_digest(launch)
    ready_s = None if ready is None else seconds_of("--ready", ready, 1.0)
    place = None
    if pool is not None:
        client = gateway.api()
        place = Place(client, need_pool(client, pool), launch, url or launch.url, with_events=kv_events)
    need_free_port(launch)
    try:
        engine = EngineProcess(launch)
    except OSError as error:
        fail(f"{launch.command[0]} cannot be started ({error.strerror}); install the engine, or say --executable", code=127)
    raise typer.Exit(EngineRun(engine, place, ready_s or launch.config.ready_s, wait_grace=wait_grace).to_its_end())


class EngineProcess:
    """The engine's process, in a process group of its own so that Ctrl-C reaches this command first.

    Raises:
        OSError: the engine cannot be started.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self._process = subprocess.Popen(launch.command, env={**os.environ, **launch.environment}, start_new_session=True)

    @property
    def code(self) -> int | None:
        """The exit code (128 plus the number of a signal, as in shells); None while the engine runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def is_healthy(self) -> bool:
        """Whether the engine's health path answers 200."""
        # imported only here: the import takes longer than all of `--help`
        import httpx

        try:
            path = DIALECTS[self.launch.engine].health_path
            return httpx.get(self.launch.url + path, timeout=HEALTH_WITHIN_S, trust_env=False, verify=False).status_code == 200
        except httpx.HTTPError:
            return False

    def terminate(self) -> None:
        """Send SIGTERM to the engine's first process, which ends its own workers."""
        if self.code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to all of the engine's processes."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


class _Seen(msgspec.Struct):
    backend: str
    in_flight: int = 0
    state: str = ""


class _Workers(msgspec.Struct):
    expected: int
    answered: int


class _RegisteredBackends(msgspec.Struct):
    backends: list[_Seen]
    workers: _Workers


_BESIDES: Final = {"kv_events": "KV events", "load_push": "load push"}


class Place:
    """The engine's registration with a gateway. After `take`, a failure of the gateway is printed and does not end the command."""

    def __init__(self, admin: AdminClient, pool: PoolSeen, launch: Launch, url: str, *, with_events: bool) -> None:
        self._admin = admin
        self._mismatches = pool.mismatches(launch)
        self._path = f"{API}/backends/{segment(launch.id)}"
        self._id = launch.id
        self._grace_s = launch.grace_s
        self._body: dict[str, Any] = {"pool": pool.name, "id": launch.id, "url": url}
        if with_events and launch.kv_events is not None:
            self._body["kv_events"] = {"endpoint": launch.kv_events.endpoint, "replay": launch.kv_events.replay_endpoint}
        if launch.load_push is not None:
            self._body["load_push"] = msgspec.to_builtins(launch.load_push)
        self.taken = False

    def take(self) -> None:
        """Register the engine; ends the command when the gateway refuses."""
        body = dict(self._body)
        while not self.taken:
            try:
                self._admin.post(f"{API}/backends", body)
            except RefusedByGateway as refused:
                # the engine is useful without its KV events or load push
                refused_part = next((part for part in _BESIDES if part in body and part in refused.message), None)
                if refused_part is None:
                    raise
                err.print(f"trying again without its {_BESIDES[refused_part]}", markup=False)
                del body[refused_part]
            else:
                self.taken = True
        err.print(f"registered as {self._id} in pool {self._body['pool']}", markup=False)
        for mismatch in self._mismatches:
            err.print(f"but {mismatch}", markup=False, soft_wrap=True)

    def drain(self) -> bool:
        """Ask the gateway to send no new requests; returns whether it accepted."""
        return self._quietly(lambda: self._admin.post(f"{self._path}/drain?grace_s={self._grace_s}"))

    def is_empty(self) -> bool:
        """Whether no request of this gateway is in flight on the engine; False unless every worker answers."""
        listings: list[_RegisteredBackends] = []

        def look() -> None:
            listings.append(msgspec.json.decode(self._admin.get("/backends"), type=_RegisteredBackends))

        if not self._quietly(look) or listings[0].workers.answered < listings[0].workers.expected:
            return False
        registrations = [backend for backend in listings[0].backends if backend.backend == self._id]
        return all(backend.state == "draining" and backend.in_flight == 0 for backend in registrations)

    def leave(self) -> None:
        """Remove the registration."""
        if self.taken:
            self.taken = False
            self._quietly(lambda: self._admin.delete(self._path))

    def _quietly(self, do: Any) -> bool:
        try:
            do()
        except (typer.Exit, msgspec.DecodeError):
            return False
        return True


class EngineRun:
    """Runs one engine from its start to its end."""

    def __init__(self, engine: EngineProcess, place: Place | None, ready_s: float, *, wait_grace: bool) -> None:
        self._engine = engine
        self._place = place
        self._ready_s = ready_s
        self._wait_grace = wait_grace
        self._signals = 0

    def to_its_end(self) -> int:
        """Run until the engine has ended; returns the exit code of the command."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count_signal)
        try:
            if self._wait_until_healthy():
                err.print(f"{self._engine.launch.config.name} is healthy at {self._engine.launch.url}", markup=False)
                self._join()
                while self._engine.code is None and not self._signals:
                    time.sleep(LOOK_S)
                self._drain()
            return self._end()
        finally:
            # whatever failed above, no engine is left running
            self._engine.kill()
            if self._place is not None:
                self._place.leave()

    def _join(self) -> None:
        """Register the engine; when the gateway refuses, end the engine in order before the command ends."""
        try:
            if self._place is not None:
                self._place.take()
        except typer.Exit:
            self._end()
            raise

    def _count_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _wait_until_healthy(self) -> bool:
        deadline = time.monotonic() + self._ready_s
        while self._engine.code is None and not self._signals:
            if self._engine.is_healthy():
                return True
            if time.monotonic() > deadline:
                err.print(f"not healthy after {self._ready_s:g} s; its own log says why", markup=False)
                break
            time.sleep(LOOK_S)
        return False

    def _drain(self) -> None:
        """Drain the engine at the gateway: no new requests, and those in flight may finish within the grace.

        Only this gateway is asked for requests in flight; where others share its database, `wait_grace` waits for the whole grace.
        """
        if self._place is None or self._engine.code is not None or not self._place.drain():
            return
        err.print("draining", markup=False)
        begun = time.monotonic()
        empty_since: float | None = None
        # workers hear of a drain a moment after it was ordered, so an empty engine counts only once it stayed empty
        while self._engine.code is None and self._signals < 2 and time.monotonic() - begun < self._engine.launch.grace_s:
            now = time.monotonic()
            empty_since = (empty_since or now) if not self._wait_grace and self._place.is_empty() else None
            if empty_since is not None and now - empty_since >= SETTLE_S:
                return
            time.sleep(LOOK_S)

    def _end(self) -> int:
        """End the engine unless it has ended; returns the exit code of the command."""
        code = self._engine.code
        if code is not None:
            err.print(f"the engine ended by itself with code {code}", markup=False)
            return code
        requested = self._signals > 0
        self._engine.terminate()
        deadline = time.monotonic() + self._engine.launch.stop_s
        while self._engine.code is None and self._signals < 3 and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return 0 if requested else 1
