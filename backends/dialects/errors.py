"""Engines' error replies translated into the gateway's Faults: no path, address, model name or flag of an engine reaches a caller.

Layouts seen: `{"error": {...}}` (vLLM, llama.cpp, OpenAI), `{"message": ...}` (SGLang, TensorRT-LLM, Dynamo, old vLLM),
`{"error": "text"}` (TGI, vLLM's key check), `{"detail": ...}` (Triton, FastAPI), plain text, nothing. An engine's message is recognised
by `_RULES` and built anew from numbers and field names; a sentence that no rule recognises is passed on without what is internal
(`backends.dialects.explanations`). The evidence, recorded or documented, is under `tests/wire/engine_errors/`. Rendering a Fault is not
this module's matter.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from backends.dialects.explanations import explained
from backends.dialects.redaction import whole_tokens
from domain.ask import Endpoint
from domain.faults import NEVER, Fault, Kind
from domain.retry_after import SOON, of_busy_engine


class CallerMistake(msgspec.Struct, frozen=True):
    """A caller's mistake that one kind of engine answers with a status of 500 and more, as if the engine had failed."""

    pattern: re.Pattern[str]
    """Occurs in the engine's message, and in no message about a failure."""
    param: str
    """The field to blame; empty for the field that holds the prompt."""
    message: str = ""
    """The message for the caller; empty for the engine's own explanation."""


class _Inner(msgspec.Struct):
    message: str | None = None
    code: Any = None
    """A word from OpenAI, a number from vLLM."""
    type: Any = None
    param: str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Location(msgspec.Struct):
    loc: list[str | int] = []


class _Outer(msgspec.Struct):
    error: _Inner | str | None = None
    message: str | None = None
    param: str | None = None
    code: Any = None
    type: Any = None
    detail: list[_Location] | str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    """The content of an engine's error reply, whatever its layout."""

    text: str
    param: str | None
    endpoint: Endpoint
    tokens: int | None = None
    limit: int | None = None
    code: str | None = None
    words: tuple[object, ...] = ()
    """The code and the type of the error, as the engine wrote them."""
    served: tuple[str, ...] = ()
    """The names under which engines serve the model, which callers do not learn."""
    others: Collection[str] = ()
    """Further names of the deployment, which callers do not learn either."""
    prompt_field: str = ""

    @property
    def subject(self) -> str:
        """The field that holds the prompt."""
        return self.prompt_field or self.endpoint.prompt_fields[0]


def fault_from_reply(
    status: int,
    body: bytes,
    *,
    endpoint: Endpoint,
    retry_after: bytes | None = None,
    served: tuple[str, ...] = (),
    mistakes: Sequence[CallerMistake] = (),
    others: Collection[str] = (),
    prompt_field: str = "",
) -> Fault:
    """The Fault for an engine's error reply.

    Args:
        status: the engine's HTTP status, anything but 200.
        body: the reply's body, possibly cut.
        endpoint: the endpoint called.
        retry_after: the engine's header, seconds.
        served: names under which engines know models; no explanation repeats one.
        mistakes: the callers' mistakes that engines of this dialect answer with 5xx.
        others: further names of the deployment that no explanation tells.
        prompt_field: the field that is blamed for a prompt that is too long; empty for the endpoint's own.
    """
    refusal = msgspec.structs.replace(_read(body, endpoint), served=served, others=others, prompt_field=prompt_field)
    # the engine's text stays out of the logs as well: validation errors repeat parts of the prompt
    detail = f"engine answered {status}" + (f" about {refusal.param}" if refusal.param else "")
    for mistake in mistakes if status >= 500 else ():
        if mistake.pattern.search(refusal.text):
            message = mistake.message or explained(refusal.text, served, others) or _GENERAL
            return Fault(Kind.INVALID_VALUE, message, param=mistake.param or refusal.subject, detail=detail)
    if status == NO_CREDIT or (status < 500 and (not ACCOUNT_WORDS.isdisjoint(_texts(refusal.words)) or _ACCOUNT.match(refusal.text))):
        detail = f"engine answered {status}: the account at its provider has no credit or quota left"
        return Fault(Kind.ENGINE_ERROR, "The engine serving this request failed.", detail=detail)
    if status in BUSY_STATUSES or (status >= 500 and _BUSY.search(refusal.text)):
        retry = of_busy_engine(retry_after)
        asked_s = 0.0 if retry_after is None else retry.after_s or 0.0
        message = "The engines serving this model are busy. Try again shortly."
        return Fault(Kind.ENGINE_BUSY, message, retry=retry, detail=detail, alone_s=asked_s)
    if status in (400, 404, 405, 501) and refusal.param != "model" and _NO_ROUTE.search(refusal.text):
        return Fault(Kind.UNSUPPORTED_PARAMETER, "This model does not support this endpoint.", param="model", detail=detail)
    if status in (400, 404) and _UNKNOWN_MODEL.match(refusal.text):
        return Fault(Kind.MODEL_NOT_SERVED, "The engine serving this request failed.", detail=detail)
    if status in (400, 413, 422, 501):
        return _refused(refusal, detail)
    # 401, 403, other 404: the gateway's own configuration towards its engines, which the caller cannot correct
    retry = SOON if status >= 500 or status == GENERATION_FAILED else NEVER
    return Fault(Kind.ENGINE_ERROR, "The engine serving this request failed.", retry=retry, detail=detail)


def _read(body: bytes, endpoint: Endpoint) -> _Refusal:
    try:
        outer = msgspec.json.decode(body, type=_Outer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Refusal(whole_tokens(body.decode("utf-8", "replace")), None, endpoint)
    if isinstance(outer.error, _Inner):
        inner = outer.error
        code = inner.code if isinstance(inner.code, str) else None
        text = whole_tokens(inner.message or "")
        words = (inner.code, inner.type)
        return _Refusal(text, _path(inner.param or _location_in(text)), endpoint, inner.n_prompt_tokens, inner.n_ctx, code, words)
    if isinstance(outer.detail, list):
        place = outer.detail[0].loc if outer.detail else []
        return _Refusal("", _path(".".join(map(str, place))), endpoint)
    text = whole_tokens(outer.error or outer.message or outer.detail or "")
    return _Refusal(text, _path(outer.param or _location_in(text)), endpoint, words=(outer.code, outer.type))


def _texts(words: tuple[object, ...]) -> set[str]:
    return {word for word in words if isinstance(word, str)}


def _location_in(text: str) -> str | None:
    """The field that a validation error of SGLang names, inside its text only, as a Python tuple."""
    match = _LOCATION.search(text)
    return match[1].replace("'", "").replace(", ", ".") if match else None


def _path(param: str | None) -> str | None:
    """`body.messages.0.role` as `messages[0].role`; stops at the first part that is no field name (pydantic adds its classes)."""
    out = ""
    for part in (param or "").removeprefix("body.").replace("[", ".").replace("]", "").split("."):
        if part.isascii() and part.isdigit() and out:
            out += f"[{part}]"
        elif _FIELD.fullmatch(part):
            out += f".{part}" if out else part
        else:
            break
    return out[:100] if out and out != "body" else None


# --- refusals: errors of the request itself -------------------------------------------------------------------------------


def _refused(refusal: _Refusal, detail: str) -> Fault:
    if refusal.code in FILTERED:
        # the filter's own message is the engine's text, too
        return Fault(Kind.CONTENT_FILTERED, "The content filter of the engine serving this model refused the request.", detail=detail)
    if refusal.code == TOO_LONG:
        fault = _context_too_long(refusal)
        fault.detail = detail
        return fault
    for pattern, build in _RULES:
        match = pattern.search(refusal.text)
        if match is not None:
            fault = build(match, refusal)
            fault.detail = detail
            return fault
    sentence = explained(refusal.text, refusal.served, refusal.others)
    if sentence is None:
        sentence = _GENERAL + (f" Check '{refusal.param}'." if refusal.param else "")
    return Fault(
        Kind.REFUSED_BY_ENGINE, sentence, param=refusal.param, detail=detail, code=refusal.code if refusal.code in PASSED_CODES else None
    )


def _too_long(_: re.Match[str], refusal: _Refusal) -> Fault:
    return _context_too_long(refusal)


def _context_too_long(refusal: _Refusal) -> Fault:
    limit = refusal.limit or _first(_LIMITS, refusal.text)
    tokens = refusal.tokens or _first(_COUNTS, refusal.text)
    message = (
        f"This model's maximum context length is {limit} tokens"
        if limit
        else f"This model's maximum context length is too short for your {refusal.subject}"
    )
    if tokens:
        message += f", however your {refusal.subject} resulted in {tokens} tokens"
    return Fault(Kind.CONTEXT_TOO_LONG, f"{message}. Send less text or ask for fewer output tokens.", param=refusal.subject)


def _too_many_output_tokens(_: re.Match[str], refusal: _Refusal) -> Fault:
    param = "max_completion_tokens" if refusal.param == "max_completion_tokens" else "max_tokens"
    asked = _first(_ASKED, refusal.text)
    limit = refusal.limit or _first(_LIMITS, refusal.text)
    message = f"{param} is too large" + (f": {asked}." if asked else ".")
    if limit:
        message += f" This model supports at most {limit} tokens, prompt included."
    return Fault(Kind.INVALID_VALUE, message, param=param)


def _out_of_range(match: re.Match[str], _: _Refusal) -> Fault:
    param, rule, value = match.groups()
    return Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}': it must be {rule}, got {value}.", param=param)


def _too_many_logprobs(match: re.Match[str], refusal: _Refusal) -> Fault:
    param = "prompt_logprobs" if match[1] == "prompt" else "top_logprobs" if refusal.endpoint.has_messages else "logprobs"
    return Fault(Kind.INVALID_VALUE, f"Invalid value for '{param}': {match[2]} is above the maximum of {match[3]}.", param=param)


def _no_tools(_: re.Match[str], __: _Refusal) -> Fault:
    return Fault(Kind.UNSUPPORTED_PARAMETER, "This model is not set up for tool calls that it chooses itself.", param="tool_choice")


def _text_only(_: re.Match[str], refusal: _Refusal) -> Fault:
    return Fault(Kind.INVALID_VALUE, "This model does not take this kind of content, or not so much of it.", param=refusal.subject)


def _bad_field(match: re.Match[str], refusal: _Refusal) -> Fault:
    why = explained(refusal.text, refusal.served, refusal.others) or f"Invalid value for '{match[1]}'."
    return Fault(Kind.INVALID_VALUE, why, param=match[1])


def _unknown_parameter(match: re.Match[str], _: _Refusal) -> Fault:
    return Fault(
        Kind.UNSUPPORTED_PARAMETER, f"The parameter '{match[1]}' is not supported by the engine serving this model.", param=match[1]
    )


def _bad_grammar(match: re.Match[str], refusal: _Refusal) -> Fault:
    reason = explained(match[1], refusal.served, refusal.others)
    why = f": {reason.removesuffix('.')}" if reason else ""
    return Fault(Kind.INVALID_VALUE, f"The schema or grammar could not be compiled{why}.", param="response_format")


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> str | None:
    return next((match[1] for pattern in patterns if (match := pattern.search(text))), None)


_GENERAL: Final = "The engine serving this model refused the request."
TOO_LONG: Final = "context_length_exceeded"
PASSED_CODES: Final = frozenset(
    {
        "array_above_max_length",
        "array_below_min_length",
        "decimal_above_max_value",
        "decimal_below_min_value",
        "empty_array",
        "empty_image_file",
        "image_content_policy_violation",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "integer_above_max_value",
        "integer_below_min_value",
        "invalid_base64_image",
        "invalid_function_parameters",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_prompt",
        "invalid_type",
        "invalid_value",
        "missing_required_parameter",
        "string_above_max_length",
        "string_below_min_length",
        "unknown_parameter",
        "unsupported_image_media_type",
        "unsupported_parameter",
        "unsupported_value",
    }
)
"""The codes of OpenAI's API for mistakes in a request, which servers behind the `openai` dialect use as well. Clients branch on these
codes; any other word may be the server's own."""
FILTERED: Final = frozenset({"content_filter", "content_policy_violation"})
"""Azure OpenAI's code and OpenAI's, which servers behind the `openai` dialect use as well."""
_FIELD: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_LOCATION: Final = re.compile(r"'loc': \('body', ([a-z0-9_', ]{1,80})\)")
BUSY_STATUSES: Final = (429, 503, 529)
"""Statuses of a busy engine; 529 is Dynamo's for a full queue."""
GENERATION_FAILED: Final = 424
"""TGI's status for a model that failed behind its router; the request was right."""
NO_CREDIT: Final = 402
"""Status of hosted providers for an account without credit; no engine that an operator runs has a use for it."""
ACCOUNT_WORDS: Final = frozenset(
    {
        "Arrearage",
        "account_deactivated",
        "billing_error",
        "billing_hard_limit_reached",
        "billing_not_active",
        "insufficient_balance",
        "insufficient_credits",
        "insufficient_quota",
    }
)
"""Codes and types of hosted providers for an account without credit or quota: the account is the operator's."""
_ACCOUNT: Final = re.compile(
    r"Your credit balance is too low|You exceeded your current quota"
    r"|Insufficient (?:balance|credits?|quota|funds)\b|Billing hard limit has been",
    re.IGNORECASE,
)
"""The beginnings of their sentences; only beginnings, because callers' words can stand inside of one."""
_BUSY: Final = re.compile(r"queue is full|after shutdown|currently busy|Loading model")
_UNKNOWN_MODEL: Final = re.compile(
    r"The model `.{1,300}` does not exist|The following requested LoRA adapters are not loaded|Unknown (?:model|LoRA)\b"
)
"""The wording of vLLM, of SGLang (which takes any other name for its model), and of Triton's 400. The gateway wrote the model's name, so it
is no mistake of the caller's."""
_NO_ROUTE: Final = re.compile(r"Not Found|Method Not Allowed|does not support [\w ]{0,40}(?:API|embeddings)|to be an embedding model")

_LIMITS: Final = (
    re.compile(r"maximum context length (?:is|of) (\d{1,9})"),
    re.compile(r"context length \((\d{1,9}) tokens\)"),
    re.compile(r"available context size \((\d{1,9}) tokens\)"),
    re.compile(r"max_model_len(?:=| of | )(\d{1,9})"),
    re.compile(r"maximum model length of (\d{1,9})"),
    re.compile(r"supports at most (\d{1,9}) completion tokens"),
    re.compile(r"must be <= (\d{1,9})"),
    re.compile(r"must have less than (\d{1,9}) tokens"),
)
_COUNTS: Final = (
    re.compile(r"contains ((?:at least )?\d{1,9}) input tokens"),
    re.compile(r"(?:input|request) \((\d{1,9}) tokens\)"),
    re.compile(r"requested (?:a total of )?(\d{1,9}) tokens"),
    re.compile(r"prompt (?:\(length |length )(\d{1,9})"),
    re.compile(r"Given: (\d{1,9})"),
)
_ASKED: Final = (re.compile(r"max_(?:completion_)?tokens=(\d{1,9})"), re.compile(r"too large: (\d{1,9})"))

_RULES: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str], _Refusal], Fault]], ...]] = (
    (re.compile(r"max_(?:completion_)?tokens.{0,60}(?:cannot be greater|too large)"), _too_many_output_tokens),
    (
        re.compile(
            r"context length|context size|longer than the maximum model length|exceeds the max_model_len"
            r"|`inputs` (?:tokens|must have less)",
            re.IGNORECASE,
        ),
        _too_long,
    ),
    (re.compile(r"\b([a-z_]{1,40}) must be ([a-z0-9 (\[\]),.-]{1,60}), got (-?[0-9.]{1,20}?)\.?(?: |$)"), _out_of_range),
    (
        re.compile(r"Requested (sample|prompt) logprobs of (\d{1,9}), which is greater than max allowed: (\d{1,9})"),
        _too_many_logprobs,
    ),
    (re.compile(r"tool choice requires|tool-call-parser"), _no_tools),
    (re.compile(r"not a multimodal model|At most \d{1,9} \w{1,20}(?:\(s\))? may be provided"), _text_only),
    (re.compile(r"^Field '([a-z_]{1,40})': "), _bad_field),
    (re.compile(r"Unsupported parameter\(s\): `([a-z_]{1,40})`"), _unknown_parameter),
    (re.compile(r"[Gg]rammar error:([^\n]*)"), _bad_grammar),
)
"""Patterns of engines' messages, each with the function that builds the gateway's Fault; the first match counts."""
