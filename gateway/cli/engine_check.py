"""`tidegate engine check`: compares running engines with the gateway's needs, and names the remedy for each mismatch.

`check_engine` is the command and `look` checks one engine. `ask` sends one blocking HTTP request to an engine, and its errors are those
that `backends.discovery` can explain.
"""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import typer

from backends.dialects import DIALECTS
from backends.discovery import diagnose
from backends.fetch import FetchedReply, FetchError, FetchTimeout
from backends.launch.check import EngineFinding, EngineNeeds, compare, needs_of
from backends.launch.engine_facts import COMPLETION, MODELS, PATHS, model_paths, read_facts
from backends.ports import Loss
from domain.model_revisions import Pinned
from gateway.cli.connection import StoreOptions
from gateway.cli.engine_access import EngineAccess, EngineAccessOptions, Kind, NamedPool, access_of, kind_of, settings_of, unanswered
from gateway.cli.launch_options import Sets, launch_from
from gateway.cli.models import revision_of
from gateway.cli.printing import fail, moment, out
from gateway.config.pools import PoolSettings
from gateway.prompt.find_tokenizer import found_tokenizer

if TYPE_CHECKING:
    import httpx

ENGINE_WITHIN_S: Final = 10.0
GREETING_WITHIN_S: Final = 1.0
"""Longest wait for a greeting of a server that does not answer HTTP; an SSH server on a busy host greets within milliseconds."""
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
"""Largest reply read; vLLM's metrics are 100 KB, its /server_info 60 KB."""


def checked_url(url: str) -> str:
    """The text itself, if it is the URL of an engine. Raises ValueError with a sentence otherwise."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} is no address of an engine; write http://host:port")
    return url


def ask(url: str, path: str, access: EngineAccess, body: bytes | None = None) -> FetchedReply:
    """GET `path`, or POST a body there: at most MAX_REPLY_BYTES of the answer, and at most WITHIN_S for all of it.

    Raises:
        FetchTimeout: the whole answer did not arrive in time.
        FetchError: there was no usable reply; `diagnose` reads its `loss` and `detail`.
    """
    import httpx  # noqa: F401 - before the time counts: on a busy machine the import takes seconds

    question = _Question(url, path, access, body)
    # A socket's own timeout begins anew with every byte, and name look-ups have none. A thread that is still waiting holds one
    # connection until the command ends.
    thread = threading.Thread(target=question.run, daemon=True)
    thread.start()
    thread.join(ENGINE_WITHIN_S)
    if question.outcome is None:
        raise question.late()
    if isinstance(question.outcome, FetchedReply):
        return question.outcome
    raise question.outcome


class _Question:
    """One request, sent in a thread of its own."""

    def __init__(self, url: str, path: str, access: EngineAccess, body: bytes | None) -> None:
        self._url = url.rstrip("/") + path
        self._access = access
        self._body = body
        # an encoded reply could be larger than MAX_REPLY_BYTES once it is decoded
        self._headers = {"accept-encoding": "identity", "content-type": "application/json", **access.headers}
        self._connected = False
        self._received = False
        self.outcome: FetchedReply | Exception | None = None
        """The reply or the error; None while the request runs."""

    def run(self) -> None:
        """Send the request and set `outcome`. Never raises."""
        try:
            self.outcome = self._exchange()
        except Exception as error:  # noqa: BLE001 - `ask` raises it, in its own thread
            self.outcome = error

    def late(self) -> FetchError:
        """The error when the request takes too long."""
        if not self._connected:
            return _lost(Loss.CONNECT, f"no connection within {ENGINE_WITHIN_S:g} s")
        return FetchTimeout(f"no answer within {ENGINE_WITHIN_S:g} s", received=self._received)

    def _exchange(self) -> FetchedReply:
        # imported only here: the import takes longer than all of `--help`
        import httpx

        try:
            with httpx.Client(timeout=ENGINE_WITHIN_S, trust_env=False, verify=self._access.verify(self._url)) as client:
                request = client.build_request(
                    "GET" if self._body is None else "POST",
                    self._url,
                    content=self._body,
                    headers=self._headers,
                    extensions={"trace": self._step},
                )
                return self._whole(client.send(request, stream=True))
        except httpx.TimeoutException:
            fault = self.late()
        except (httpx.ConnectError, httpx.InvalidURL, UnicodeError) as error:
            fault = _lost(Loss.CONNECT, _why_unconnected(error))
        except httpx.RemoteProtocolError as error:
            text = str(error)
            if "disconnected without" in text:
                greeting = _greeting(self._url)
                fault = _lost(Loss.GARBLED, repr(greeting)) if greeting else _lost(Loss.NO_REPLY, text)
            else:
                fault = _lost(Loss.CUT if self._received else Loss.GARBLED, text)
        except (httpx.NetworkError, OSError) as error:
            fault = _lost(Loss.CUT if self._received else Loss.NO_REPLY, f"{type(error).__name__}: {error}")
        raise fault

    def _whole(self, reply: "httpx.Response") -> FetchedReply:
        self._received = True
        whole = bytearray()
        with contextlib.closing(reply):
            for piece in reply.iter_raw():
                whole += piece
                if len(whole) >= MAX_REPLY_BYTES:
                    break
        headers = {name.lower(): value for name, value in reply.headers.raw}
        return FetchedReply(reply.status_code, headers, bytes(whole[:MAX_REPLY_BYTES]))

    def _step(self, name: str, _info: object) -> None:
        """Called by httpx for each step of the request."""
        if name == "http11.send_request_headers.started":
            self._connected = True


def _why_unconnected(error: BaseException) -> str:
    """The system's or OpenSSL's own error, with its name, behind an error of httpx."""
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
        if isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
            break
    # a host name without an IDNA form is refused before it is looked up
    is_name = isinstance(cause, socket.gaierror | UnicodeError) or type(error).__name__ == "InvalidURL"
    return f"{'gaierror' if is_name else type(cause).__name__}: {cause}"


def _greeting(url: str) -> bytes:
    """The bytes that a server sends unasked, as those of SSH and mail do; empty where none come."""
    parts = urlsplit(url)
    if parts.scheme != "http":
        return b""
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), GREETING_WITHIN_S) as connection:
            return connection.recv(64)
    except OSError:
        return b""


def _lost(loss: Loss, detail: str) -> FetchError:
    return FetchError(f"{loss.value}: {detail}"[:200], loss=loss, detail=detail)


_REQUIRED: Final = ("running", "waiting", "kv_usage")
"""The signals that dialects require, all or some of them."""
_MARKS: Final = {"ok": "ok    ", "wrong": "WRONG ", "unread": "?     ", "note": "note  "}


class Subject(msgspec.Struct):
    """One engine to check."""

    id: str
    url: str
    dialect: str
    needs: EngineNeeds
    access: EngineAccess = EngineAccess()
    pool: str = ""
    has_tokenizer: bool = False
    """Whether its pool names one."""
    pin: Pinned | None = None
    """The revision that its pool is pinned to."""


def check_engine(
    gateway: StoreOptions,
    way: EngineAccessOptions,
    url: Annotated[
        str | None, typer.Argument(help="Where the engine listens, without /v1; leave it out to check all backends of --config.")
    ] = None,
    dialect: Kind = None,
    launch: Annotated[str | None, typer.Option(help="A launch configuration: then the engine must show what it says.")] = None,
    sets: Sets = None,
    revision: Annotated[
        str | None, typer.Option(metavar="MODEL@REVISION", help="The engine must prove this revision of the registry.")
    ] = None,
    served_name: Annotated[str | None, typer.Option(help="The name the pool asks for.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens that must fit.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Block size that is needed.")] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="Sequences it must run at once.")] = None,
    lora_slots: Annotated[int | None, typer.Option(min=1, help="Adapters it must take in one batch.")] = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="It makes embeddings: caches do not matter.")] = False,
    probe: Annotated[bool, typer.Option(help="Ask for one token, to see what usage says.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Compare running engines with what the gateway needs. Exit codes: 0 nothing is wrong, 1 something is, 2 wrong usage.

    What an engine does not tell is marked "?" and is no mismatch.
    """
    named = way.named(gateway.config)
    kind = kind_of(dialect, named)
    if url is not None:
        try:
            checked_url(url)
        except ValueError as error:
            fail(str(error), code=2)
    elif way.own:
        fail("--ca, --cert, --key and --api-key-env go with a URL: engines of settings are asked with what their pools say", code=2)
    shown = None if revision is None else revision_of(gateway.api(), revision)
    # an engine that runs is compared wherever its files came from, and `_of_registry` says that a revision is retired
    served = None if shown is None else {**shown, "retired_unix": None, "weights": "/models", "tokenizer": None}
    needs = EngineNeeds() if launch is None else needs_of(launch_from(launch, sets, revision=served))
    options = {"served_name": served_name, "context": context, "block_size": block_size, "sequences": sequences, "lora_slots": lora_slots}
    needs = msgspec.structs.replace(needs, **{name: value for name, value in options.items() if value is not None})
    if embeddings:
        needs = msgspec.structs.replace(needs, generates=False)
    if shown is not None:
        needs = msgspec.structs.replace(needs, pinned=Pinned(shown["reference"], shown["digest"]))
    if url is None:
        subjects = _of_settings(gateway.config, needs, named)
    elif named is None:
        subjects = [Subject("", url, kind, needs, way.access(None, (url,)))]
    else:
        subjects = [_of_pool(named.pool, url, kind, needs, way.access(named, (url,)))]
    wrong = False
    results = []
    for subject in subjects:
        findings = look(subject, probe=probe) + ([] if shown is None else _of_registry(subject, shown))
        wrong = wrong or any(finding.state == "wrong" for finding in findings)
        results.append({"id": subject.id, "url": subject.url, "dialect": subject.dialect, "findings": findings})
        if not as_json:
            _print(subject, findings)
        # a pool has one prefix index and so one block size: that of its first engine that reports it
        _agree(subject, findings, subjects)
    if as_json:
        typer.echo(msgspec.json.encode({"engines": results, "ok": not wrong}).decode())
    raise typer.Exit(1 if wrong else 0)


def look(subject: Subject, *, probe: bool) -> list[EngineFinding]:
    """Ask one engine and compare its facts; a server that is no engine of the dialect gives one wrong finding."""
    replies: dict[str, bytes] = {}
    load = DIALECTS[subject.dialect].signals_path
    findings = []
    for path in dict.fromkeys((MODELS, *((load,) if load else ()), *PATHS.get(subject.dialect, ()))):
        try:
            reply = ask(subject.url, path, subject.access)
        except FetchError as error:
            return [EngineFinding("engine", "wrong", unanswered(subject.url, path, subject.access, error))]
        if path == MODELS and (why := _no_models(reply)):
            return [EngineFinding("engine", "wrong", why)]
        if path == load:
            findings.append(_load(subject.dialect, path, reply))
            if findings[0].state == "wrong":
                return findings
        if reply.status == 200:
            replies[path] = reply.body
    served = read_facts(subject.dialect, replies).served_names
    if probe and subject.needs.generates and subject.dialect == "vllm" and served:
        request = json.dumps({"model": served[0], "prompt": "a b c", "max_tokens": 1}).encode()
        with contextlib.suppress(FetchError):
            answer = ask(subject.url, COMPLETION, subject.access, request)
            if answer.status == 200:
                replies[COMPLETION] = answer.body
    if subject.needs.generates and not subject.has_tokenizer:
        findings += _tokenizer(subject.dialect, replies)
    return findings + compare(subject.dialect, read_facts(subject.dialect, replies), subject.needs)


def _tokenizer(dialect: str, replies: Mapping[str, bytes]) -> list[EngineFinding]:
    """The tokenizer that this machine has where the engine says its model is: a readable folder, or a name in the hub's local cache."""
    for path in model_paths(dialect, replies):
        folder = found_tokenizer(path, "main", os.environ, Path.home())
        if folder is not None:
            text = f"the engine's model is {path}, which has a tokenizer here; write tokenizer: {folder} in its pool, and holds are exact"
            return [EngineFinding("tokenizer", "note", text)]
    return []


def _no_models(reply: FetchedReply) -> str | None:
    """Why the reply is no model list; None when it is one."""
    if reply.status in (401, 403):
        return f"answers {reply.status}: it asks for a key; name the variable that holds it with --api-key-env"
    if reply.status != 200:
        return diagnose.of_status(MODELS, reply.status, reply.headers, reply.body)
    if read_facts("", {MODELS: reply.body}).served_names is None:
        return diagnose.of_list(MODELS, reply.headers, reply.body)
    return None


def _load(dialect: str, path: str, reply: FetchedReply) -> EngineFinding:
    """Whether the engine reports its load as engines of this dialect do, which distinguishes one kind of engine from another."""
    read = DIALECTS[dialect].read_signals
    assert read is not None  # a dialect with a path for signals has a reader
    if reply.status == 404:
        return EngineFinding("load", "wrong", f"{path} answers 404: this does not look like a {dialect} engine; look at the dialect")
    if reply.status != 200:
        return EngineFinding("load", "unread", f"cannot be read: {diagnose.of_status(path, reply.status, reply.headers, reply.body)}")
    try:
        signals = read(reply.body, 0.0)
    except ValueError:
        signals = None
    if signals is None or (signals.missing and all(getattr(signals, name) is None for name in _REQUIRED)):
        none = f"{path} has none of what such engines tell of their load"
        return EngineFinding("load", "wrong", f"this does not look like a {dialect} engine: {none}; look at the dialect")
    if signals.missing:
        return EngineFinding("load", "unread", f"cannot be read: {path} lacks {', '.join(signals.missing)}")
    return EngineFinding("load", "ok", f"told at {path}")


def _of_settings(config: Path, needs: EngineNeeds, named: NamedPool | None) -> list[Subject]:
    """The engines of the settings, or those of one pool."""
    settings = settings_of(config) if named is None else named.settings
    subjects = []
    for pool in settings.pools if named is None else [named.pool]:
        access = access_of(pool, settings)
        subjects += [_of_pool(pool, backend.url, pool.dialect, needs, access) for backend in pool.backends]
    if not subjects:
        fail(f"{config} names no backends; give the URL of an engine")
    return subjects


def _of_pool(pool: PoolSettings, url: str, dialect: str, needs: EngineNeeds, access: EngineAccess) -> Subject:
    """An engine that serves a pool, whether its settings name it or not."""
    backend = next((backend for backend in pool.backends if backend.url.rstrip("/") == url.rstrip("/")), None)
    binds = backend is not None and backend.kv_events is not None and backend.kv_events.bind
    held = pool.max_loras if pool.loras else None
    needs = msgspec.structs.replace(needs, served_name=pool.model, pinned=needs.pinned or pool.pin, lora_held=held, gateway_binds=binds)
    return Subject("" if backend is None else backend.id, url, dialect, needs, access, pool.name, pool.tokenizer is not None, pool.pin)


def _of_registry(subject: Subject, shown: Mapping[str, Any]) -> list[EngineFinding]:
    """What the registry says against the revision and the pool's pin, whatever the engine proves."""
    findings, reference, pin = [], shown["reference"], subject.pin
    if shown["retired_unix"] is not None:
        there = f"{reference} is retired since {moment(shown['retired_unix'])}"
        findings.append(EngineFinding("registry", "wrong", f"{there}; serve another revision (`tidegate model list`)"))
    if pin is not None and pin.reference == reference and pin.digest != shown["digest"]:
        there = f"pool {subject.pool} is pinned to {reference} with {pin.digest}, and the registry has {shown['digest']}"
        findings.append(EngineFinding("registry", "wrong", f"{there}; correct the digest in the settings, or pin to another revision"))
    return findings


def _agree(subject: Subject, findings: list[EngineFinding], subjects: list[Subject]) -> None:
    size = next((finding.text.split()[0] for finding in findings if finding.what == "block size" and finding.state == "ok"), None)
    if size is None or not size.isdecimal():
        return
    for peer in subjects:
        if peer.pool == subject.pool and peer.needs.block_size is None:
            peer.needs = msgspec.structs.replace(peer.needs, block_size=int(size))


def _print(subject: Subject, findings: list[EngineFinding]) -> None:
    out.print(f"{subject.id} {subject.url} ({subject.dialect})".strip(), markup=False, soft_wrap=True)
    for finding in findings:
        out.print(f"  {_MARKS[finding.state]}{finding.what}: {finding.text}", markup=False, soft_wrap=True)
