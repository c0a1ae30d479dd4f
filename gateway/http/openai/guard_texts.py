"""The bodies of `POST /v1/guard` and `POST /v1/moderations`: what is asked, and the verdicts in each of both forms. Pure.

The second has OpenAI's form: a client finds each of OpenAI's categories in it, and beside them the kinds of what the rules found.
"""

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.openai.controls import GUARDS, guard_names
from gateway.http.openai.json_guard import parse_object
from guardrails.messages import EarlierCall, Readable, texts
from guardrails.policy import Direction
from guardrails.verdict import MAX_SHOWN, GuardVerdict, Noted

MAX_TEXTS: Final = 1024
"""Texts in one body."""

DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
NOT_CHECKED: Final = ("omni-moderation", "text-moderation")
"""How the names of OpenAI's own moderation models begin. Clients send them by themselves; they stand for the rules without a model."""
OUR_MODEL: Final = "tidegate-guards"
"""The model of a moderation that names none."""

OPENAI_CATEGORIES: Final = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""OpenAI's categories; its clients expect every one in an answer."""

_GUARD_FIELDS: Final = frozenset({"input", "direction", "model", GUARDS})
_MODERATION_FIELDS: Final = frozenset({"input", "model", GUARDS, "user"})
_encode = msgspec.json.Encoder().encode


class TextsToJudge(msgspec.Struct, frozen=True):
    """Texts to be judged."""

    texts: tuple[Readable, ...]
    """Their paths are those in the body."""
    model: str
    """The model whose rules judge; empty for the rules of every model."""
    guards: tuple[str, ...]
    """Rules that are asked for, by id."""
    unread: tuple[str, ...] = ()
    """Paths of parts that no rule can read."""
    calls: tuple[EarlierCall, ...] = ()
    """Calls of tools in a request, for the rules over whole calls."""
    shown_model: str = OUR_MODEL
    """The model that a moderation names in its answer."""
    groups: tuple[int, ...] = ()
    """The number of texts of each result, of a moderation."""


def guard_question(body: bytes) -> TextsToJudge:
    """What a body of `POST /v1/guard` asks.

    Raises:
        Fault: INVALID_JSON, MISSING_PARAMETER, UNSUPPORTED_PARAMETER or INVALID_VALUE, with the field.
    """
    document = _document(body, _GUARD_FIELDS)
    value, direction = document["input"], document.get("direction")
    if direction is not None and direction not in DIRECTIONS:
        refuse(f"Invalid value for 'direction': it is one of {', '.join(DIRECTIONS)}.", "direction")
    guards = guard_names(document.get(GUARDS), GUARDS)
    model = _model(document)
    if isinstance(value, dict):
        if direction is not None:
            refuse("Invalid value for 'direction': the texts of a request have directions of their own. Leave it out.", "direction")
        found, unread, calls = _of_request(value)
        asked_model = value.get("model")
        return TextsToJudge(found, model or (asked_model if isinstance(asked_model, str) else ""), guards, unread, calls)
    found = tuple(_plain(value, direction or "input"))
    return TextsToJudge(found, model, guards)


def moderation_question(body: bytes) -> TextsToJudge:
    """What a body of `POST /v1/moderations` asks. A list of parts is one input with one result, a list of texts has one for each.

    Raises:
        Fault: as for `guard_question`; INVALID_VALUE for an image, too.
    """
    document = _document(body, _MODERATION_FIELDS)
    value, model = document["input"], _model(document)
    guards = guard_names(document.get(GUARDS), GUARDS)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        found = tuple(_parts(value))
        groups: tuple[int, ...] = (len(found),)
    else:
        found = tuple(_plain(value, "input"))
        groups = (1,) * len(found)
    whose = "" if model.startswith(NOT_CHECKED) else model
    return TextsToJudge(found, whose, guards, shown_model=model or OUR_MODEL, groups=groups)


def _document(body: bytes, known: frozenset[str]) -> dict[str, object]:
    document = parse_object(body)
    unknown = next((name for name in document if name not in known), None)
    if unknown is not None:
        message = f"The parameter {shown(unknown)} is not known here. The known ones are {', '.join(sorted(known))}."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=unknown[:64])
    if document.get("input") is None:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'input'. It is the text to judge.", param="input")
    return document


def _model(document: dict[str, object]) -> str:
    model = document.get("model")
    if model is None:
        return ""
    if not isinstance(model, str):
        refuse_type("a string", model, "model")
    return model


def _plain(value: object, direction: Direction) -> list[Readable]:
    """The texts of a text, or of a list of texts."""
    if isinstance(value, str):
        return [Readable("input", direction, value, 0, 0)]
    if not isinstance(value, list):
        refuse_type("a string or an array of strings", value, "input")
    _check_count(value)
    found = []
    for at, one in enumerate(value):
        if not isinstance(one, str):
            refuse_type("a string", one, f"input[{at}]")
        found.append(Readable(f"input[{at}]", direction, one, 0, 0))
    return found


def _parts(value: list[object]) -> list[Readable]:
    """The texts of a list of parts, as in OpenAI's API."""
    _check_count(value)
    found = []
    for at, part in enumerate(value):
        path = f"input[{at}]"
        if not isinstance(part, dict):
            refuse_type("an object", part, path)
        if part.get("type") != "text":
            refuse(f"Invalid value for '{path}.type': guard rules judge parts of the type text alone.", f"{path}.type")
        text = part.get("text")
        if not isinstance(text, str):
            refuse_type("a string", text, f"{path}.text")
        found.append(Readable(f"{path}.text", "input", text, 0, 0))
    return found


def _of_request(value: dict[str, object]) -> tuple[tuple[Readable, ...], tuple[str, ...], tuple[EarlierCall, ...]]:
    """The texts of the body of a request, the paths of the parts that no rule can read, and the calls of tools."""
    try:
        found = texts(_encode(value))
    except (ValueError, msgspec.MsgspecError):
        refuse("Invalid value for 'input': it is no body of a request, such as {\"messages\": [...]}.", "input")
    if not found.readable and not found.unreadable:
        refuse("Invalid value for 'input': the request has no text. Send one with messages, prompt or input.", "input")
    _check_count(found.readable)
    readable = tuple(msgspec.structs.replace(text, path=f"input.{text.path}") for text in found.readable)
    calls = tuple(msgspec.structs.replace(call, path=f"input.{call.path}") for call in found.calls)
    return readable, tuple(f"input.{part.path}" for part in found.unreadable), calls


def _check_count(found: Sequence[object]) -> None:
    if not found:
        refuse("Invalid value for 'input': it has no text.", "input")
    if len(found) > MAX_TEXTS:
        refuse(f"Invalid value for 'input': {len(found)} texts are too many, at most {MAX_TEXTS} are allowed.", "input")


ACTIONS: Final = ("pass", "flag", "change", "block")
"""What becomes of a text, in the order of severity."""


def action_of(text: str, verdict: GuardVerdict) -> str:
    """What would become of a text, one of `ACTIONS`. A rule on trial (`shadow`) makes it nothing else than `pass`."""
    return "change" if not verdict.refused and verdict.text != text else _noted_or_refused(verdict)


def _noted_or_refused(verdict: GuardVerdict) -> str:
    if verdict.refused:
        return "block"
    return "flag" if any(found.mode != "shadow" for found in verdict.findings) else "pass"


def render_verdicts(
    question: TextsToJudge, verdicts: Sequence[GuardVerdict], version: str, request_id: str, calls: Sequence[GuardVerdict] = ()
) -> bytes:
    """The body of an answer of `POST /v1/guard`.

    Args:
        verdicts: one for each text.
        calls: one for each call of a tool; none where no rule looks at calls.
        version: the digest of the rules; empty where there are none.
    """
    results = [_result(text, verdict) for text, verdict in zip(question.texts, verdicts, strict=True)]
    results += [_call_result(call.path, verdict) for call, verdict in zip(question.calls, calls, strict=False)]
    worst = max((ACTIONS.index(result["action"]) for result in results), default=0)
    return _encode(
        {
            "id": request_id,
            "object": "guard",
            "model": question.model or None,
            "version": version,
            "action": ACTIONS[worst],
            "results": results,
            "unread": question.unread,
        }
    )


def _result(text: Readable, verdict: GuardVerdict) -> dict[str, Any]:
    return {
        "path": text.path,
        "direction": text.direction,
        "action": action_of(text.text, verdict),
        "text": None if verdict.refused else verdict.text,
        **_evidence(verdict),
    }


def _call_result(path: str, verdict: GuardVerdict) -> dict[str, Any]:
    """What rules over whole calls say of one. Such rules change nothing."""
    return {"path": path, "direction": "tool_arguments", "action": _noted_or_refused(verdict), "text": None, **_evidence(verdict)}


def _evidence(verdict: GuardVerdict) -> dict[str, Any]:
    return {
        "by": verdict.by or None,
        "failed": verdict.failed,
        "count": len(verdict.findings),
        "findings": [_finding(found) for found in verdict.findings[:MAX_SHOWN]],
    }


def _finding(found: Noted) -> dict[str, Any]:
    return {"rule": found.rule, "kind": found.kind, "mode": found.mode, "begin": found.begin, "end": found.end}


def render_moderations(question: TextsToJudge, verdicts: Sequence[GuardVerdict], request_id: str) -> bytes:
    """The body of an answer of `POST /v1/moderations`. A score is 1 for what was found and 0 for everything else: rules decide, and
    estimate no probability.

    Args:
        verdicts: one for each text.
    """
    results = []
    begin = 0
    for size in question.groups:
        results.append(_moderation(verdicts[begin : begin + size]))
        begin += size
    return _encode({"id": f"modr-{request_id}", "model": question.shown_model, "results": results})


def _moderation(verdicts: Sequence[GuardVerdict]) -> dict[str, Any]:
    kinds = {found.kind for verdict in verdicts for found in verdict.findings if found.mode != "shadow"}
    names = (*OPENAI_CATEGORIES, *sorted(kinds.difference(OPENAI_CATEGORIES)))
    return {
        "flagged": bool(kinds) or any(verdict.refused for verdict in verdicts),
        "categories": {name: name in kinds for name in names},
        "category_scores": {name: float(name in kinds) for name in names},
        "category_applied_input_types": {name: ["text"] for name in names},
    }
