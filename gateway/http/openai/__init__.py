"""OpenAI's requests: body bytes to a checked Ask, and the model list.

`interpret` is the only way from bytes to an Ask. An Ask holds the object that was checked, serialised again, without the model (a
backend's dialect writes its own name for it) and without fields that steer engines. `interpret` knows no tenant and no backend.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai.checks import check_depth, refuse, refuse_type
from gateway.http.openai.controls import FAMILIES, GUARDS, REMOVED, SESSIONS, guards_taken, session_named, without_controls
from gateway.http.openai.endpoints import FORMS, forms_for
from gateway.http.openai.images import image_links
from gateway.http.openai.json_guard import MAX_DEPTH, parse_body
from gateway.http.openai.prompts import reference_taken
from gateway.http.openai.sizes import LOGPROBS, behind_prompt, logprobs, output_cap, sequences
from policies.caps import USUAL_CAPS, RequestCaps

MAX_MODEL_CHARS: Final = 256

STREAM_OPTIONS: Final = {"include_usage": True}
"""Engines are always asked for usage, because usage is metered."""

_SESSION_FIELDS: Final = frozenset(SESSIONS)
_GUARD_FIELDS: Final = frozenset({GUARDS, "metadata"})
_LOGPROB_FIELDS: Final = frozenset(LOGPROBS)

CUT_BYTES: Final = 4096
"""Bodies from this size on have their prompt cut out of the encoding that is there already; to encode a shorter one again costs less."""

_encode = msgspec.json.Encoder().encode


def interpret(
    endpoint: Endpoint,
    body: bytes,
    named: bytes | None = None,
    deployment: str = "",
    caps: RequestCaps = USUAL_CAPS,
    *,
    links: bool = False,
) -> Ask:
    """The Ask that `body` makes of `endpoint`.

    Args:
        named: the prompt that the header `x-tidegate-prompt` names; None without one.
        deployment: the model that the path names, which counts instead of the body's; empty for none.
        caps: the most of each thing that the request may hold.
        links: whether an image of a chat may stand as a URL, which is then in `Ask.image_links`.

    Raises:
        Fault: INVALID_JSON, or MISSING_PARAMETER, INVALID_VALUE or UNSUPPORTED_PARAMETER with the path of the field.
    """
    form = FORMS[endpoint] if caps is USUAL_CAPS and not links else forms_for(caps, links=links)[endpoint]
    document, canonical = parse_body(body)
    parsed, changed = document.copy(), False
    if caps is not USUAL_CAPS and caps.depth < MAX_DEPTH:
        check_depth(document, caps.depth)
    guards = () if _GUARD_FIELDS.isdisjoint(document) else guards_taken(document)
    cache: object = None
    session = "" if _SESSION_FIELDS.isdisjoint(document) else session_named(document)
    for field in document:
        if field in REMOVED or field.startswith(FAMILIES):
            cache = document.get("cache")
            document = without_controls(document)
            break
    template = None
    if named is not None or (endpoint.has_messages and "prompt" in document):
        template = reference_taken(endpoint, document, named)
    model = document.pop("model", None)
    if deployment:
        model = deployment
    if type(model) is not str or not (0 < len(model) <= MAX_MODEL_CHARS and model.isprintable()):
        model = _no_model(model, required=template is None)
    find_check, find_accepted = form.checks.get, form.accepted.get
    for field, value in document.items():
        accepted = find_accepted(field)
        if accepted is not None and type(value) is accepted[0] and value in accepted[1]:
            continue
        if value is not None and (check := find_check(field)) is not None and check(value, field):
            changed = True
    prompt_fields = _prompt_fields(endpoint, document) if endpoint.alternatives else endpoint.prompt_fields
    for field in prompt_fields:
        if document.get(field) is None:
            if template is None:
                raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{field}'.", param=field)
            document[field] = []
    stream = document.get("stream") is True
    # a plain request has no options: the official clients send them all the same, and vLLM refuses them
    include_usage = "stream_options" in document and _asks_for_usage(document.pop("stream_options"), stream)
    if stream:
        document["stream_options"] = STREAM_OPTIONS
    max_tokens = document.get("max_tokens")
    if type(max_tokens) is int and max_tokens > 0 and "max_completion_tokens" not in document:
        cap: int | None = max_tokens
    else:
        cap = output_cap(document, endpoint)
    n = document.get("n")
    choices = n if type(n) is int else 1
    if not endpoint.generates:
        choices = 1 if endpoint.sound == "in" or endpoint.duplex else 0
    elif form.prompts is not None:
        choices *= len(form.prompts(document) or ())
    names = frozenset(document)
    size = form.size(document, len(body))
    items = 0 if form.items is None else form.items(document)
    prompt_field = prompt_fields[0]
    linked = image_links(document[prompt_field]) if links and size.media and not endpoint.sound else ()
    value = document.pop(prompt_field)
    rest = _encode(document)
    cut = b"" if changed or len(body) < CUT_BYTES else _cut_out(prompt_field, parsed, canonical, document, rest)
    prompt = cut or _encode(value)
    prompt_start = len(prompt_field) + len(b'{"":')
    return Ask(  # by position: 20 keywords would cost 1.5 µs per request
        endpoint,
        model,
        b"".join((b'{"', prompt_field.encode(), b'":', prompt, b"," if len(rest) > len(b"{}") else b"", rest[1:])),
        stream,
        include_usage,
        choices,
        size.prompt_bytes,
        cap,
        sequences(document, choices) if "best_of" in document else choices,
        document.get("user") or "",  # type: ignore[arg-type]  # the forms have checked that it is a string
        0 if _LOGPROB_FIELDS.isdisjoint(names) else logprobs(document),
        size.token_ids,
        size.media,
        size.image_bytes,
        names,
        (prompt_start, prompt_start + len(prompt)),
        session,
        document.get("service_tier") == "flex",
        template,
        linked,
        cache,
        guards,
        document.get("metadata"),
        items,
    )


def _prompt_fields(endpoint: Endpoint, document: Mapping[str, object]) -> tuple[str, ...]:
    """The set of prompt fields that the document has, of those between which callers choose; the endpoint's first where it has none.

    Raises:
        Fault: INVALID_VALUE where it has fields of several sets, of which engines read one or the other.
    """
    sets = (endpoint.prompt_fields, *endpoint.alternatives)
    given = [(fields, sent) for fields in sets if (sent := [field for field in fields if document.get(field) is not None])]
    if len(given) > 1:
        either = ", or ".join([" and ".join([f"'{field}'" for field in fields[::-1]]) for fields in sets])
        refuse(f"Send either {either}, not both.", given[1][1][0])
    return given[0][0] if given else endpoint.prompt_fields


def _cut_out(field: str, parsed: dict[str, object], canonical: bytes, others: dict[str, object], rest: bytes) -> bytes | memoryview:
    """The encoding of a prompt, cut out of the body's: a long one is neither encoded twice nor copied. Empty where the body's first two
    members are not the prompt and the model, as clients write them, or others of its members were changed.

    Args:
        parsed: the body's object.
        canonical: the encoding of `parsed`.
        others: the checked object without prompt and model.
        rest: the encoding of `others`.
    """
    names = list(parsed)[:2]
    value = parsed.pop(field, None)
    model = parsed.pop("model", None)
    if model is None or parsed != others:
        return b""
    prompt_key, model_pair = b'"%b":' % field.encode(), b'"model":' + _encode(model)
    head, tail = b"{" + prompt_key, b"," + rest[1:] if others else b"}"
    if names == ["model", field]:
        head = b"{%b,%b" % (model_pair, prompt_key)
    elif names == [field, "model"]:
        tail = b",%b%b" % (model_pair, tail)
    else:
        return b""
    if value is None or not (canonical.startswith(head) and canonical.endswith(tail)):
        return b""
    return memoryview(canonical)[len(head) : len(canonical) - len(tail)]


def check_caps(ask: Ask, caps: RequestCaps) -> None:
    """Check a request again, under other caps than those that it was read with; the messages of a registry prompt count, too.

    Raises:
        Fault: INVALID_VALUE with the path of the field.
    """
    checks = forms_for(caps, links=bool(ask.image_links))[ask.endpoint].checks
    field = ask.prompt_field
    prompt, others = msgspec.json.decode(ask.prompt), behind_prompt(ask)
    if caps.depth < MAX_DEPTH:
        check_depth({field: prompt, **others}, caps.depth)
    checks[field](prompt, field)
    for name, value in others.items():
        if value is not None and (check := checks.get(name)) is not None:
            check(value, name)


def _no_model(model: object, *, required: bool) -> str:
    """The empty name for a model that is missing and not required; else the Fault for a `model` that names none."""
    if model is None and not required:
        return ""
    if model is None:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'model'.", param="model")
    if type(model) is not str:
        refuse_type("a string", model, "model")
    refuse(f"Invalid value for 'model': it must have 1 to {MAX_MODEL_CHARS} printable characters.", "model")


def _asks_for_usage(options: object, stream: bool) -> bool:
    """Whether `stream_options` asks for the usage event; None stands for no options.

    The caller's other options are dropped: they change no text. `include_obfuscation` is the vendor's own. `continuous_usage_stats`
    would put a running count on each event; a caller that asks for the whole count as well gets that one alone, as load tools do which
    ask for both in each request (guidellm), and one that asks for nothing else has to hear that there is none.
    """
    if options is None:
        return False
    if type(options) is not dict:
        refuse_type("an object", options, "stream_options")
    for name in ("include_usage", "continuous_usage_stats"):
        option = options.get(name)
        if option is not None and type(option) is not bool:
            refuse_type("a boolean", option, f"stream_options.{name}")
    if options.get("continuous_usage_stats") and not options.get("include_usage"):
        param = "stream_options.continuous_usage_stats"
        message = f"The parameter '{param}' is not supported: send 'include_usage', which puts one count at the end of the stream."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
    return stream and options.get("include_usage") is True
