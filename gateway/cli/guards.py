"""`tidegate guard …`: what guard rules find, tried on texts before anybody relies on them, without sending them anywhere; and what the
rules of a running gateway said.
"""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from gateway.cli.admin_client import API, segment
from gateway.cli.connection import DEFAULT_CONFIG, Config, GatewayOptions
from gateway.cli.groups import CommandGroup
from gateway.cli.guard_rules import Chains, chains_of_file, chains_of_tenant
from gateway.cli.printing import OutputOptions, err, fail
from guardrails.chain import Chain
from guardrails.messages import texts
from guardrails.placeholders import Placeholders
from guardrails.policy import Direction
from guardrails.rules.pii import KINDS as PII
from guardrails.rules.secret_formats import KINDS as SECRETS
from guardrails.verdict import GuardVerdict
from guardrails.window import GuardWindow

guard_app = CommandGroup("Guard rules: tried on texts, and what they did.")

MAX_FILE_BYTES: Final = 256 * 1024**2
_COLUMNS: Final = ("rule", "kind", "mode", "texts", "findings", "lines")
_COMPARED: Final = ("rule", "kind", "mode", "texts_now", "texts_then", "lines")
SHOWN_LINES: Final = 5
"""Line numbers that are named for each rule and kind."""


@guard_app.command("list")
def types(output: OutputOptions) -> None:
    """Print the types that rules of the kinds `secrets` and `pii` can look for."""
    rows = [{"kind": kind, "type": name} for kind, names in (("secrets", SECRETS), ("pii", PII)) for name in names]
    output.show(rows, ("kind", "type"))


_SAID: Final = ("tenant", "rule", "mode", "direction", "findings")
_BLOCKED: Final = ("at_unix", "tenant", "rule", "kinds", "direction", "model", "key", "request_id")


@guard_app.command("findings")
def findings(gateway: GatewayOptions, output: OutputOptions) -> None:
    """Print what each rule of a running gateway found since its workers started; --json has the verdicts by tenant, too. What a rule with
    mode `shadow` found had no effect."""
    shown = gateway.api().read(f"{API}/guards")
    output.show(shown["rules"], _SAID, shown)


@guard_app.command("blocks")
def blocks(
    gateway: GatewayOptions,
    output: OutputOptions,
    tenant: Annotated[str, typer.Option(help="Only blocks of this tenant.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Blocks at most, newest first.")] = 50,
) -> None:
    """Print the last requests that rules refused and answers that they cut, without their texts."""
    found = gateway.api().items(f"{API}/guards/events" + (f"?tenant={segment(tenant)}" if tenant else ""), limit)
    rows = [
        {
            **one,
            "at_unix": one["at_unix_ms"] / 1000,
            "rule": f"({one['further']} more)" if one["further"] else one["rule"],
            "kinds": ", ".join(one["kinds"]),
        }
        for one in found
    ]
    output.show(rows, _BLOCKED, found, expendable=("key", "model"))


@guard_app.command("test")
def try_rules(
    file: Annotated[
        Path, typer.Argument(help='Lines of JSON: a text, {"text": …, "on": …}, {"call": …, "arguments": …}, or the body of a request.')
    ],
    output: OutputOptions,
    rules: Annotated[Path | None, typer.Option(help="The rules, a YAML file: rules: [{id, kind, mode, …}].")] = None,
    tenant: Annotated[str | None, typer.Option(help="In place of --rules, the rules of this tenant's policy.")] = None,
    project: Annotated[str, typer.Option(help="With --tenant: the tenant's project.")] = "default",
    model: Annotated[str, typer.Option(help="With --tenant: the model; left out, the rules of no model apply.")] = "",
    guards: Annotated[str, typer.Option(metavar="ID,ID", help="With --tenant: rules that the request asks for.")] = "",
    against: Annotated[Path | None, typer.Option(help="New rules, a file as for --rules: what they would do otherwise.")] = None,
    pieces: Annotated[int, typer.Option(min=0, help="Judge outputs as streams in pieces of so many characters; 0: whole.")] = 0,
    folder: Annotated[Path | None, typer.Option(help="With --tenant: the policy folder; default: that of the settings.")] = None,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Print what rules find in the texts of a file: which rule, in how many texts and lines. Contents are not printed; --json has places.
    With --against, print in how many texts each rule finds something now and with the new rules, and the lines that fare otherwise.

    Exit codes: 0 nothing would be refused, 1 something would be, 2 the rules or the file cannot be used. With --against, 1 where the new
    rules refuse what passes now.
    """
    if (rules is None) == (tenant is None):
        fail("name the rules: either --rules FILE or --tenant NAME", code=2)
    if against is not None and pieces:
        fail("--against and --pieces: choose one; a stream has the verdict of the whole text", code=2)
    if tenant is None:
        assert rules is not None
        chains = chains_of_file(rules)
    else:
        asked = [name.strip() for name in guards.split(",") if name.strip()]
        chains = chains_of_tenant(tenant, project, model, asked, folder, config)
    if against is not None:
        _compare(file, chains, chains_of_file(against), output)
        return
    found: Counter[_Key] = Counter()
    seen: dict[_Key, list[int]] = {}
    records: list[dict[str, Any]] = []
    refused = read = 0
    for line, text in _subjects(file):
        if text.tool is not None and not chains[text.on].calls:
            continue
        read += 1
        verdict = _judged(chains[text.on], text, pieces)
        refused += verdict.refused
        for key in _keys(verdict):
            seen.setdefault(key, []).append(line)
        found.update((noted.rule, noted.kind, noted.mode) for noted in verdict.findings)
        if verdict.findings or verdict.failed or verdict.refused:
            records.append({"line": line, "path": text.path, "on": text.on, **verdict.evidence()})
    rows = [{**_named(key), "texts": len(seen[key]), "findings": found[key], "lines": _lines(seen[key])} for key in sorted(found)]
    output.show(rows, _COLUMNS, records, expendable=("lines", "kind"))
    err.print(f"{read} texts read, {len(records)} with findings, {refused} would be refused", markup=False, soft_wrap=True)
    if refused:
        raise typer.Exit(1)


_Key = tuple[str, str, str]
"""Rule, kind and mode of a finding."""


def _keys(verdict: GuardVerdict) -> set[_Key]:
    return {(noted.rule, noted.kind, noted.mode) for noted in verdict.findings}


def _named(key: _Key) -> dict[str, Any]:
    return {"rule": key[0], "kind": key[1], "mode": key[2]}


def _compare(file: Path, now: Chains, then: Chains, output: OutputOptions) -> None:
    """Print what other rules would do otherwise. Ends the command with 1 where they refuse what passes now."""
    counts: dict[_Key, list[int]] = {}
    lines: dict[_Key, list[int]] = {}
    records: list[dict[str, Any]] = []
    read = newly_refused = newly_passed = changed = 0
    for line, text in _subjects(file):
        if text.tool is not None and not (now[text.on].calls or then[text.on].calls):
            continue
        read += 1
        old, new = verdicts = [_judged(chains[text.on], text, 0, marks=True) for chains in (now, then)]
        for at, verdict in enumerate(verdicts):
            for key in _keys(verdict):
                counts.setdefault(key, [0, 0])[at] += 1
        for key in _keys(old) ^ _keys(new):
            lines.setdefault(key, []).append(line)
        newly_refused += new.refused and not old.refused
        newly_passed += old.refused and not new.refused
        changed += not (old.refused or new.refused) and old.text != new.text
        if (old.evidence(), old.text) != (new.evidence(), new.text):
            both = {"now": old.evidence(), "then": new.evidence()}
            records.append({"line": line, "path": text.path, "on": text.on, **both})
    rows = [
        {**_named(key), "texts_now": counts[key][0], "texts_then": counts[key][1], "lines": _lines(lines.get(key, []))}
        for key in sorted(counts)
    ]
    output.show(rows, _COMPARED, records, expendable=("lines", "kind"))
    said = f"{newly_refused} refused that pass now, {newly_passed} passed that are refused now, {changed} passed with another text"
    err.print(f"{read} texts read; with the new rules: {said}", markup=False, soft_wrap=True)
    if newly_refused:
        raise typer.Exit(1)


def _lines(lines: list[int]) -> str:
    distinct = list(dict.fromkeys(lines))
    more = f" and {len(distinct) - SHOWN_LINES} more" if len(distinct) > SHOWN_LINES else ""
    return ", ".join(map(str, distinct[:SHOWN_LINES])) + more


class _Subject(msgspec.Struct, frozen=True):
    """A text or a call that is judged."""

    path: str
    on: Direction
    text: str
    system: str = ""
    tool: str | None = None
    """The name of the tool, where the text is the arguments of a call that is judged as such."""


def _judged(chain: Chain, subject: _Subject, pieces: int, *, marks: bool = False) -> GuardVerdict:
    """The verdict on a call, or on a text: whole, or as a stream where it is an answer.

    Args:
        marks: whether marks stand in place of values that would be restored, which makes two verdicts comparable.
    """
    if subject.tool is not None:
        return chain.judge_call(subject.tool, subject.text)
    text = subject.text
    if subject.system:
        chain = chain.bound([subject.system])
    if not pieces or subject.on not in ("output", "tool_arguments"):
        return chain.judge(text, None if marks else Placeholders(random.SystemRandom()).label)
    window = GuardWindow(chain)
    for begin in range(0, len(text), pieces):
        if window.feed(text[begin : begin + pieces]).ended:
            break
    window.end()
    return window.verdict()


class _Line(msgspec.Struct):
    """A line that is one text."""

    text: str
    on: Direction = "input"
    system: str = ""


class _CallLine(msgspec.Struct):
    """A line that is a call of a tool."""

    call: str
    arguments: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_call = msgspec.json.Decoder(_CallLine).decode
_decode_any = msgspec.json.Decoder(dict[str, msgspec.Raw] | str).decode


def _subjects(file: Path) -> Iterator[tuple[int, _Subject]]:
    """Every text and call of a file with the number of its line. Ends the command at a line that is none of the forms."""
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            fail(f"{file} has more than {MAX_FILE_BYTES // 1024**2} MiB; split it", code=2)
        lines = file.read_bytes().splitlines()
    except OSError as error:
        fail(f"{file}: {error.strerror}", code=2)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found = _subjects_of(line)
            except (msgspec.MsgspecError, ValueError, UnicodeDecodeError) as error:
                wanted = 'a JSON text, {"text": …, "on": …}, {"call": …, "arguments": …} or the body of a request'
                fail(f"{file}:{number}: is not {wanted}: {error}", code=2)
            yield from ((number, subject) for subject in found)


def _subjects_of(line: bytes) -> list[_Subject]:
    """The texts and calls of one line. Raises ValueError (msgspec's errors are some)."""
    value = _decode_any(line)
    if isinstance(value, str):
        return [_Subject("", "input", value)]
    if "text" in value:
        one = _decode_line(line)
        return [_Subject("text", one.on, one.text, one.system)]
    if "call" in value:
        call = _decode_call(line)
        return [
            _Subject("call", "tool_arguments", call.arguments, tool=call.call),
            *[_Subject("arguments", "tool_arguments", call.arguments)] * bool(call.arguments),
        ]
    found = texts(bytes(value["body"]) if "body" in value else line)
    if not found.readable:
        raise ValueError("it has no text")
    calls = [_Subject(call.path, "tool_arguments", call.arguments, tool=call.name) for call in found.calls]
    return [_Subject(text.path, text.direction, text.text) for text in found.readable] + calls
