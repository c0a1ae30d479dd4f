"""`tidegate engine check`: compares running engines with what the gateway needs of them, and says what would mend each mismatch."""

import http.client
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console

from backends.dialects import DIALECTS
from backends.launch.check import Finding, Needs, compare, needs_of
from backends.launch.engine_facts import COMPLETION, MODELS, PATHS, read_facts
from gateway.cli.admin_client import fail
from gateway.cli.launch_options import Sets, launch_from
from gateway.secrets import SecretError, read_reference
from gateway.settings import load_settings
from policies.located_yaml import ConfigError

WITHIN_S: Final = 10.0
MAX_REPLY_BYTES: Final = 8 * 1024 * 1024
"""Largest reply read; vLLM's metrics are 100 KB, its /server_info 60 KB."""

_MARKS: Final = {"ok": "ok    ", "wrong": "WRONG ", "unread": "?     "}

out = Console(highlight=False)


class Subject(msgspec.Struct):
    """One engine to look at."""

    id: str
    url: str
    dialect: str
    needs: Needs
    key: str | None = None
    pool: str = ""


def check_engine(
    url: Annotated[
        str | None, typer.Argument(help="Where the engine listens, without /v1; leave it out to check a whole tidegate.yaml.")
    ] = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The settings file whose backends are checked when no URL is given.")
    ] = Path("tidegate.yaml"),
    dialect: Annotated[str, typer.Option(help=f"The kind of engine behind the URL: {', '.join(DIALECTS)}.")] = "vllm",
    launch: Annotated[str | None, typer.Option(help="A launch configuration: then the engine must show what it says.")] = None,
    sets: Sets = None,
    served_name: Annotated[str | None, typer.Option(help="The name the pool asks for.")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="Tokens that must fit.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Block size that is needed.")] = None,
    sequences: Annotated[int | None, typer.Option(min=1, help="Sequences it must run at once.")] = None,
    lora_slots: Annotated[int | None, typer.Option(min=1, help="Adapters it must take in one batch.")] = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="It makes embeddings: caches do not matter.")] = False,
    api_key_env: Annotated[str | None, typer.Option(help="The variable that holds the key the engine asks for.")] = None,
    probe: Annotated[bool, typer.Option(help="Ask for one token, to see what usage says.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Compare running engines with what the gateway needs. Exit codes: 0 nothing is wrong, 1 something is, 2 wrong usage.

    What an engine does not tell is marked "?" and is no mismatch.
    """
    if dialect not in DIALECTS:
        fail(f"--dialect {dialect!r} is unknown; there are {', '.join(DIALECTS)}", code=2)
    needs = Needs() if launch is None else needs_of(launch_from(launch, sets))
    said = {"served_name": served_name, "context": context, "block_size": block_size, "sequences": sequences, "lora_slots": lora_slots}
    needs = msgspec.structs.replace(needs, **{name: value for name, value in said.items() if value is not None})
    if embeddings:
        needs = msgspec.structs.replace(needs, generates=False)
    subjects = [Subject("", url, dialect, needs, _key(api_key_env))] if url is not None else _of_settings(config, needs)
    wrong, results = False, []
    for subject in subjects:
        findings = look(subject, probe=probe)
        wrong = wrong or any(finding.state == "wrong" for finding in findings)
        results.append({"id": subject.id, "url": subject.url, "dialect": subject.dialect, "findings": findings})
        if not as_json:
            _print(subject, findings)
        # one pool, one index, one block size: that of its first engine that tells
        _agree(subject, findings, subjects)
    if as_json:
        typer.echo(msgspec.json.encode({"engines": results, "ok": not wrong}).decode())
    raise typer.Exit(1 if wrong else 0)


def look(subject: Subject, *, probe: bool) -> list[Finding]:
    """Ask one engine and compare; an engine that does not answer is one wrong finding."""
    replies: dict[str, bytes] = {}
    for path in PATHS.get(subject.dialect, (MODELS,)):
        try:
            status, body = ask(subject.url, path, subject.key)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return [Finding("engine", "wrong", f"does not answer at {subject.url}{path} ({type(error).__name__}: {error}); is it started?")]
        if status in (401, 403) and path == MODELS:
            return [Finding("engine", "wrong", f"answers {status}: it asks for a key; name the variable that holds it with --api-key-env")]
        if status == 200:
            replies[path] = body
    served = read_facts(subject.dialect, replies).served_names
    if probe and subject.needs.generates and subject.dialect == "vllm" and served:
        request = json.dumps({"model": served[0], "prompt": "a b c", "max_tokens": 1}).encode()
        try:
            status, body = ask(subject.url, COMPLETION, subject.key, request)
        except (OSError, http.client.HTTPException):
            status, body = 0, b""
        if status == 200:
            replies[COMPLETION] = body
    return compare(subject.dialect, read_facts(subject.dialect, replies), subject.needs)


def ask(url: str, path: str, key: str | None, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body, at most MAX_REPLY_BYTES of it. Raises OSError, HTTPException, or ValueError for a URL that is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no address; write http://host:port")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    connection = kind(parts.hostname, parts.port, timeout=WITHIN_S)
    try:
        connection.request("GET" if body is None else "POST", parts.path.rstrip("/") + path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read(MAX_REPLY_BYTES)
    finally:
        connection.close()


def _of_settings(config: Path, needs: Needs) -> list[Subject]:
    try:
        settings = load_settings(config, os.environ)
    except ConfigError as error:
        fail(str(error))
    subjects = []
    for pool in settings.pools:
        try:
            key = None if pool.api_key is None else read_reference(pool.api_key, settings.base_dir, os.environ)
        except SecretError as error:
            fail(f"pool {pool.name}: {error}")
        own = msgspec.structs.replace(needs, served_name=pool.model, lora_held=pool.max_loras if pool.loras else None)
        for backend in pool.backends:
            binds = backend.kv_events is not None and backend.kv_events.bind
            needed = msgspec.structs.replace(own, gateway_binds=binds)
            subjects.append(Subject(backend.id, backend.url, pool.dialect, needed, key, pool.name))
    if not subjects:
        fail(f"{config} names no backends; give the URL of an engine")
    return subjects


def _agree(seen: Subject, findings: list[Finding], subjects: list[Subject]) -> None:
    size = next((one.text.split()[0] for one in findings if one.what == "block size" and one.state == "ok"), None)
    if size is None or not size.isdecimal():
        return
    for other in subjects:
        if other.pool == seen.pool and other.needs.block_size is None:
            other.needs = msgspec.structs.replace(other.needs, block_size=int(size))


def _key(variable: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    if variable is None:
        return None
    if not environment.get(variable):
        fail(f"--api-key-env {variable}: the variable is not set", code=2)
    return environment[variable].strip()


def _print(subject: Subject, findings: list[Finding]) -> None:
    out.print(f"{subject.id} {subject.url} ({subject.dialect})".strip(), markup=False, soft_wrap=True)
    for finding in findings:
        out.print(f"  {_MARKS[finding.state]}{finding.what}: {finding.text}", markup=False, soft_wrap=True)
