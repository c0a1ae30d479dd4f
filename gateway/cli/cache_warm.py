"""`tidegate cache warm`: sends the requests of a file to a gateway's data port, so that their answers are kept, and prints what became of
them.

The address is that of `--url`, else `data.bind` of the settings file at hand. The caller's key never comes from the command line, which
every user of the machine can read.
"""

import asyncio
import contextlib
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args
from urllib.parse import urlsplit

import typer

from gateway.answers.controls import MAX_NAMESPACE_CHARS, NAMESPACE_PATTERN
from gateway.cli.cache_warming import Became, State, Warming, plain
from gateway.cli.connection import DEFAULT_CONFIG, Config, nobody_listens, section_of, url_to, written_settings
from gateway.cli.printing import STDOUT, AsJson, err, fail, out, print_json
from gateway.cli.warm_requests import WarmRequest, requests_of
from gateway.config.trust import verify_for

if TYPE_CHECKING:
    import httpx

KEY_VARIABLE: Final = "TIDEGATE_API_KEY"
DATA: Final = "127.0.0.1:8080"
MAX_FILE_BYTES: Final = 256 * 1024**2
"""Largest file, which is read whole so that a wrong line is found before anything is sent."""
MOST_PARALLEL: Final = 64
CONNECT_S: Final = 10.0
ANSWER_S: Final = 600.0
"""The longest silence of the gateway, which official clients allow as well."""
SHOWN: Final = 5
"""Lines that are named for each thing that went wrong."""

_SAID: Final[dict[State, str]] = {
    "hit": "answered from the cache already",
    "kept": "asked and kept",
    "not_kept": "asked and not kept",
    "unchecked": "asked; whether their answers were kept is not known",
    "bypassed": "passed by the cache",
    "no_cache": "asked without a cache: the policy of this key has none",
    "unknown": "answered; what the cache did is unknown",
    "failed": "failed",
}


class WarmTarget(NamedTuple):
    """Where the requests go."""

    url: str
    """`http(s)://host:port`."""
    source: str
    """The option or setting it comes from, for messages."""
    workers: int = 1
    """Of these workers each keeps answers of its own; 1 where they share answers, or where it is not known."""


def warm(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Requests in JSON Lines: bodies, or OpenAI's batch form; - is stdin.")],
    url: Annotated[str | None, typer.Option(metavar="URL", help="The gateway's data port; default: data.bind of --config.")] = None,
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Holds the caller's key; default: {KEY_VARIABLE}.")] = None,
    config: Config = DEFAULT_CONFIG,
    parallel: Annotated[int, typer.Option(min=1, max=MOST_PARALLEL, help="Requests at a time.")] = 4,
    model: Annotated[str | None, typer.Option(help="The model of every request, in place of its own.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Set temperature 0 in every request that generates.")] = False,
    namespace: Annotated[str, typer.Option(help="The namespace that is written.")] = "",
    check: Annotated[
        bool,
        typer.Option("--check/--no-check", help="Look whether each miss was kept, by one more request at the cost of a hit."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Send the requests of a file to a gateway, so that their answers are kept, and count what became of them.

    Exit codes: 0 every request was answered, 1 one failed, 2 wrong usage or a line that is no request; then nothing was sent.
    """
    if namespace and not re.fullmatch(NAMESPACE_PATTERN, namespace):
        fail(f"--namespace {namespace!r}: a namespace has 1 to {MAX_NAMESPACE_CHARS} letters, digits, '.', ':', '-' and '_'", code=2)
    target = target_of(url, config)
    key = key_from(key_file)
    requests = _requests(file, model, greedy)
    if nobody_listens(target.url):
        fail(f"no gateway answers at {target.url} ({target.source}); start one with `tidegate serve`, or name its data port with --url")
    warming = Warming(_clients(target.url, key), namespace=namespace, check=check)
    try:
        asyncio.run(warming.run(requests, min(parallel, len(requests))))
    except KeyboardInterrupt:
        warming.stopped = "interrupted"
    summary = _summary(warming, len(requests))
    notes = _notes(warming, target, greedy)
    if as_json:
        failures = [{"line": line, "why": one.why} for line, one in sorted(warming.became.items()) if one.state == "failed"]
        print_json({**summary, "failures": failures, "notes": notes})
    else:
        _print(warming, len(requests), notes)
    raise typer.Exit(1 if summary["failed"] or summary["not_sent"] else 0)


def target_of(url: str | None, config: Path) -> WarmTarget:
    """The data port of the option, else of the settings file at hand, else the default one; ends the command for no address."""
    if url is not None:
        return WarmTarget(_checked(url), "--url")
    written = written_settings(config, "a gateway with --url")
    if written is None:
        return WarmTarget(f"http://{DATA}", f"the default; there is no {config} here")
    data, cache = section_of(written, "data"), section_of(written, "cache")
    bind, where = data.get("bind"), f"data.bind of {config}"
    found = url_to(bind if isinstance(bind, str) else DATA, where, "https" if data.get("tls") else "http")
    if not found:
        fail(f"{where} has port 0, so the address is unknown: name the one that `tidegate serve` prints with --url", code=2)
    workers = written.get("workers")
    each_its_own = isinstance(workers, int) and not cache.get("store")
    return WarmTarget(found, where, workers if each_its_own else 1)


def _checked(url: str) -> str:
    """Scheme, host and port of the URL; a client's base URL, which ends with /v1, will do. Ends the command for no address."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and parts.path.rstrip("/") in ("", "/v1")
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        fail(f"--url: {url!r} is no address of a data port; write http://host:port", code=2)
    return f"{parts.scheme}://{parts.netloc}"


def key_from(file: Path | None) -> str:
    """The caller's key; ends the command where there is none that is usable."""
    if file is not None:
        try:
            key = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--key-file {file} cannot be read ({type(error).__name__})", code=2)
    else:
        key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        fail(f"there is no key to ask with: set {KEY_VARIABLE}, or name a file that holds one with --key-file", code=2)
    if not key.isascii() or not key.isprintable() or " " in key:
        fail("the key has characters that no key has; look at the file or variable it comes from", code=2)
    return key


def _requests(file: Path, model: str | None, greedy: bool) -> list[WarmRequest]:
    """The requests of the file; ends the command for a file that cannot be read, and for lines that are no requests."""
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if file == STDOUT else file.open("rb") as source:
            raw = source.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror or error}", code=2)
    if len(raw) > MAX_FILE_BYTES:
        fail(f"{file} has more than {MAX_FILE_BYTES // 1024**2} MiB; split it", code=2)
    requests, wrong = requests_of(raw, model, greedy=greedy)
    if wrong:
        lines = [f"line {one.line}: {plain(one.why)}" for one in wrong[:SHOWN]]
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        fail("\n".join([*lines, *more, f"{file}: lines that are no requests: {len(wrong)}; nothing was sent"]), code=2)
    if not requests:
        fail(f"{file} has no requests", code=2)
    return requests


def _clients(url: str, key: str) -> "Callable[[], httpx.AsyncClient]":
    """Makes clients of one connection each."""
    # imported only here: the import takes longer than all of `--help`
    import httpx

    verify = verify_for(url)

    def client() -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {key}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            # a connection is given up before the gateway closes it, which is after 75 s
            limits=httpx.Limits(max_connections=1, keepalive_expiry=60.0),
            trust_env=False,
            verify=verify,
        )

    return client


def _summary(warming: Warming, count: int) -> dict[str, Any]:
    """The counts, with those of words where there are several, for scripts."""
    counts: dict[str, Any] = {"requests": count}
    for state in get_args(State):
        words = [one.why or "other" for one in warming.became.values() if one.state == state]
        counts[state] = {word: words.count(word) for word in sorted(set(words))} if state in ("bypassed", "not_kept") else len(words)
    return {**counts, "not_sent": count - len(warming.became), "sent_again": warming.waited, "stopped": warming.stopped}


def _print(warming: Warming, count: int, notes: list[str]) -> None:
    """The counts for people, then the first failures, then what is to be known of them."""

    def say(text: str) -> None:
        out.print(text, markup=False, soft_wrap=True)

    for state, said in _SAID.items():
        found = {line: one for line, one in sorted(warming.became.items()) if one.state == state}
        if not found:
            continue
        by_word: dict[str, list[int]] = defaultdict(list)
        if state in ("bypassed", "not_kept"):
            for line, one in found.items():
                by_word[one.why or "other"].append(line)
        words = "; ".join(f"{word} {len(lines)} ({_lines(lines)})" for word, lines in sorted(by_word.items()))
        say(f"{len(found):6} {said}{f': {words}' if words else ''}")
        if state == "failed":
            for line, one in list(found.items())[:SHOWN]:
                say(f"       line {line}: {one.why}")
            if len(found) > SHOWN:
                say(f"       and {len(found) - SHOWN} more; --json lists all")
    if count > len(warming.became):
        say(f"{count - len(warming.became):6} not sent, or not waited for: {warming.stopped}")
    for note in notes:
        err.print(note, markup=False, soft_wrap=True)


def _lines(lines: list[int]) -> str:
    named = ", ".join(map(str, lines[:SHOWN])) + (", …" if len(lines) > SHOWN else "")
    return f"line{'s' if len(lines) > 1 else ''} {named}"


def _notes(warming: Warming, target: WarmTarget, greedy: bool) -> list[str]:
    """Sentences on what the counts mean, and what to do."""
    became = set(warming.became.values())
    states = {one.state for one in became}
    notes = []
    if Became("bypassed", "sampled") in became and not greedy:
        notes.append("requests that sample pass by the cache unless its policy has `sampled: true`; --greedy sets temperature 0")
    if states & {"not_kept", "unchecked"}:
        notes.append(
            "`tidegate cache stats` counts why answers were not kept; docs/reference/cache.md#why-an-answer-is-not-kept has the words"
        )
    if "unknown" in states:
        notes.append(
            "replies say what the cache did where the policy has `expose_headers: true`; `tidegate cache stats` counts it for each tenant"
        )
    if warming.waited:
        notes.append(f"refusals after which a request was sent again: {warming.waited}; a smaller --parallel has fewer")
    if target.workers > 1 and states & {"hit", "kept", "unchecked", "unknown"}:
        notes.append(
            f"the {target.workers} workers keep answers of their own, so each request warmed only the worker that it came to; "
            "with cache.store they share answers"
        )
    return notes
