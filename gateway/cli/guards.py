"""`tidegate guard …`: what guard rules find, tried on texts before anybody relies on them. Nothing is sent anywhere."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import msgspec
import typer

from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err, fail
from guardrails.build import RuleUnusable, chain_of
from guardrails.chain import Chain
from guardrails.messages import texts
from guardrails.placeholders import Placeholders
from guardrails.policy import Direction, GuardPolicy
from guardrails.rules.pii import KINDS as PII
from guardrails.rules.secret_formats import KINDS as SECRETS
from guardrails.verdict import GuardVerdict
from guardrails.window import GuardWindow
from policies.yaml.located import read_yaml
from policies.yaml.problems import ConfigError, listing
from policies.yaml.validate import validated

guard_app = CommandGroup("Guard rules, tried on texts.")

MAX_FILE_BYTES: Final = 256 * 1024**2
_COLUMNS: Final = ("rule", "kind", "mode", "texts", "findings", "lines")
SHOWN_LINES: Final = 5
"""Line numbers that are named for each rule and kind."""


@guard_app.command("list")
def types(output: OutputOptions) -> None:
    """Print the types that rules of the kinds `secrets` and `pii` can look for."""
    rows = [{"kind": kind, "type": name} for kind, names in (("secrets", SECRETS), ("pii", PII)) for name in names]
    output.show(rows, ("kind", "type"))


@guard_app.command("test")
def try_rules(
    file: Annotated[
        Path, typer.Argument(help='Lines of JSON: a text, {"text": …, "on": …}, {"call": …, "arguments": …}, or the body of a request.')
    ],
    rules: Annotated[Path, typer.Option(help="The rules, a YAML file: rules: [{id, kind, mode, …}].")],
    output: OutputOptions,
    pieces: Annotated[int, typer.Option(min=0, help="Judge outputs as streams in pieces of so many characters; 0: whole.")] = 0,
) -> None:
    """Print what rules find in the texts of a file: which rule, in how many texts and lines. Contents are not printed; --json has places.

    Exit codes: 0 nothing would be refused, 1 something would be, 2 the rules or the file cannot be used.
    """
    policy = _policy(rules)
    directions: tuple[Direction, ...] = get_args(Direction)
    try:
        chains = {direction: chain_of(policy.rules, direction) for direction in directions}
    except RuleUnusable as error:
        fail(f"{rules}: rule {error.rule}: {error}", code=2)
    found: Counter[tuple[str, str, str]] = Counter()
    seen: dict[tuple[str, str, str], list[int]] = {}
    texts_with: Counter[tuple[str, str, str]] = Counter()
    records: list[dict[str, Any]] = []
    refused = read = 0
    for line, text in _subjects(file):
        if text.tool is not None and not chains[text.on].calls:
            continue
        read += 1
        verdict = _judged(chains[text.on], text, pieces)
        refused += verdict.refused
        for key in {(noted.rule, noted.kind, noted.mode) for noted in verdict.findings}:
            texts_with[key] += 1
            seen.setdefault(key, []).append(line)
        found.update((noted.rule, noted.kind, noted.mode) for noted in verdict.findings)
        if verdict.findings or verdict.failed or verdict.refused:
            records.append({"line": line, "path": text.path, "on": text.on, **verdict.evidence()})
    rows = [
        {"rule": key[0], "kind": key[1], "mode": key[2], "texts": texts_with[key], "findings": found[key], "lines": _lines(seen[key])}
        for key in sorted(found)
    ]
    output.show(rows, _COLUMNS, records, expendable=("lines", "kind"))
    err.print(f"{read} texts read, {len(records)} with findings, {refused} would be refused", markup=False, soft_wrap=True)
    if refused:
        raise typer.Exit(1)


def _lines(lines: list[int]) -> str:
    distinct = list(dict.fromkeys(lines))
    more = f" and {len(distinct) - SHOWN_LINES} more" if len(distinct) > SHOWN_LINES else ""
    return ", ".join(map(str, distinct[:SHOWN_LINES])) + more


def _policy(file: Path) -> GuardPolicy:
    try:
        return validated(GuardPolicy, read_yaml(file, None))
    except ConfigError as error:
        err.print(listing(error.problems), markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


class _Subject(msgspec.Struct, frozen=True):
    """A text or a call that is judged."""

    path: str
    on: Direction
    text: str
    system: str = ""
    tool: str | None = None
    """The name of the tool, where the text is the arguments of a call that is judged as such."""


def _judged(chain: Chain, subject: _Subject, pieces: int) -> GuardVerdict:
    """The verdict on a call, or on a text: whole, or as a stream where it is an answer."""
    if subject.tool is not None:
        return chain.judge_call(subject.tool, subject.text)
    text = subject.text
    if subject.system:
        chain = chain.bound([subject.system])
    if not pieces or subject.on not in ("output", "tool_arguments"):
        return chain.judge(text, Placeholders(random.SystemRandom()).label)
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
