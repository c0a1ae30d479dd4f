"""A gateway as operators start it, with an answer cache and two tenants, and a caller that takes the time of single requests.

The gateway is `tidegate serve` with one worker, its ledger and its access log; two simulated engines in instant mode stand behind it, so
that next to nothing of a time is an engine's. Tenants are "a" and "b".
"""

import contextlib
import importlib.util
import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench.overhead.processes import LOAD_CPU, running, start, wait_for
from bench.overhead.subjects import serving
from bench.stored_tenants import store
from cache.embedders.packaged import PACKAGE, TOKENIZER
from tenancy.limits import MAX_RATE, Level, Limit, Meter, Scope, Window
from tests.valkey_servers import free_port, single_server

MODEL: Final = "bench"
TENANTS: Final = ("a", "b")
READY_S: Final = 60.0
TIMEOUT_S: Final = 20.0

OWN_TOKENIZER: Final = "model"
"""A folder as a model has it, with the tokenizer of the packaged embedder, which is Llama 2's: to it, a text without special tokens is one
word."""
TEMPLATE: Final = "{% for message in messages %}<s>{{ message.role }}</s><s>{{ message.content }}</s>{% endfor %}"

_SETTINGS: Final = """
data: {{bind: "127.0.0.1:{port}"}}
admin: {{bind: "127.0.0.1:{admin}"}}
workers: 1
drain: {{accept_s: 0.0, grace_s: 1.0}}
log: {{access: true}}
ledger: {{enabled: true}}
stores: {{counters: "memory://"}}
pools:
  - name: chat
    model: {model}
{tokenizer}    backends:
      - {{id: e0, url: "http://127.0.0.1:{engines[0]}"}}
      - {{id: e1, url: "http://127.0.0.1:{engines[1]}"}}
"""


class Setup(NamedTuple):
    """How the gateway is configured."""

    semantic: str
    """`cache.semantic` of the policy as a YAML flow mapping."""
    shared_store: bool = False
    """Whether answers are kept in a Valkey, and not in the worker."""
    engine_vectors: bool = False
    """Whether an engine makes the vectors of questions, and not the packaged model."""
    tokenizer: str = ""
    """The pool's tokenizer, with which prompts are counted for the tenants' limits on tokens: a general one by its name, or
    `OWN_TOKENIZER`; none where empty."""


class Reply(NamedTuple):
    """One answered request."""

    us: float
    """Microseconds from the first byte sent to the last byte of the reply."""
    status: str
    """The header `x-tidegate-cache`."""
    semantic: str
    """The header `x-tidegate-cache-semantic`; empty where there is none."""


class Caller:
    """One tenant's connection, which is kept open.

    Args:
        port: where the gateway listens.
        key: the tenant's.
    """

    def __init__(self, port: int, key: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.example\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: "
        ).encode()

    def ask(self, system: str, question: str) -> Reply:
        """Ask, and wait for the whole reply. Raises RuntimeError for a reply other than 200."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        body = json.dumps({"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 300}).encode()
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        begun = time.perf_counter_ns()
        self._socket.sendall(request)
        head, whole = self._reply()
        us = (time.perf_counter_ns() - begun) / 1e3
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"a request was refused: {whole[:500]!r}")
        return Reply(us, _header(head, b"x-tidegate-cache"), _header(head, b"x-tidegate-cache-semantic"))

    def _reply(self) -> tuple[bytes, bytes]:
        received = b""
        end = -1
        while True:
            data = self._socket.recv(65_536)
            if not data:
                raise RuntimeError(f"the gateway has closed the connection after {received!r}")
            received += data
            if end < 0:
                at = received.find(b"\r\n\r\n")
                if at < 0:
                    continue
                end = at + 4 + int(_header(received[:at], b"content-length"))
            if len(received) >= end:
                return received[:at], received

    def close(self) -> None:
        self._socket.close()


def _header(head: bytes, name: bytes) -> str:
    for line in head.split(b"\r\n")[1:]:
        one, _, value = line.partition(b":")
        if one.strip().lower() == name:
            return value.strip().decode()
    return ""


@contextlib.contextmanager
def callers(home: Path, setup: Setup) -> Iterator[tuple[Caller, Caller]]:
    """A running gateway whose similar questions are ready, and a caller of each tenant; all ends with the context.

    Args:
        home: an empty folder for settings, store and logs.

    Raises:
        TimeoutError: an engine, the gateway or the embedder was not ready in time.
    """
    with contextlib.ExitStack() as stack:
        engines = [free_port() for _ in range(2)]
        for number, port in enumerate(engines):
            command = [sys.executable, "-m", "backends.simengine", "--instant", "--speed", "1000", "--model", MODEL, "--port", str(port)]
            stack.enter_context(running(start(command, LOAD_CPU, home / f"engine-{number}.log")))
        for port in engines:
            wait_for(f"http://127.0.0.1:{port}/health")
        port = free_port()
        file = home / "tidegate.yaml"
        if setup.tokenizer == OWN_TOKENIZER:
            _write_tokenizer(home / OWN_TOKENIZER)
        tokenizer = f"    tokenizer: {setup.tokenizer}\n" if setup.tokenizer else ""
        text = _SETTINGS.lstrip().format(port=port, admin=free_port(), model=MODEL, tokenizer=tokenizer, engines=engines)
        cache: dict[str, object] = {}
        if setup.shared_store:
            cache["store"] = stack.enter_context(single_server(home / "valkey")).url
        if setup.engine_vectors:
            cache["semantic"] = {"embedder_pool": "chat", "wait_ms": 1000}
        file.write_text(f"{text}cache: {json.dumps(cache)}\n")
        (home / "policies").mkdir()
        models = f"models: [{{name: {MODEL}, pool: chat}}]"
        (home / "policies" / "default.yaml").write_text(
            f'tenant: "*"\n{models}\nexpose_headers: true\ncache: {{semantic: {setup.semantic}}}\n'
        )
        limits = [Limit(Scope(Level.TENANT, tenant), Meter.TOKENS, Window.MINUTE, MAX_RATE) for tenant in TENANTS]
        keys = store(file, TENANTS, limits)
        stack.enter_context(serving(home))
        first, second = (Caller(port, key) for key in keys)
        for caller in (first, second):
            stack.callback(caller.close)
            _until_ready(caller)
        yield first, second


def _write_tokenizer(folder: Path) -> None:
    package = importlib.util.find_spec(PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise RuntimeError(f"the package {PACKAGE} is not installed")
    folder.mkdir()
    shutil.copy(Path(package.submodule_search_locations[0]) / TOKENIZER, folder / "tokenizer.json")
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def _until_ready(caller: Caller) -> None:
    """Ask until the embedder has been loaded, which the first look-up begins. Raises TimeoutError."""
    give_up = time.monotonic() + READY_S
    for number in range(10**9):
        reply = caller.ask("Getting ready.", f"How is number {number} of the rehearsal going along?")
        if reply.semantic not in ("starting", "embedder"):
            if reply.semantic == "unavailable":
                raise TimeoutError("similar questions cannot be had; the gateway's log says why")
            return
        if time.monotonic() > give_up:
            raise TimeoutError(f"similar questions are still {reply.semantic} after {READY_S:g} s")
        time.sleep(0.05)
