"""Prompts of the registry in requests: `prompt: {id, version, variables}` as OpenAI's Responses have it, or the header
`x-tidegate-prompt: ID` or `ID@VERSION` with `prompt: {variables}`. For chats alone.

`interpret` takes the reference out, so that no engine sees it; `with_prompt` puts the rendered messages in front once the tenant is known.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from domain.ask import Ask, Endpoint, PromptReference
from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.openai.sizes import behind_prompt
from policies.prompts.allowed import AllowedVersions
from policies.prompts.prompt import MAX_RENDERED_CHARS, RegisteredPrompt
from policies.prompts.template import TooLong
from policies.prompts.variables import VariableRefused

PROMPT_HEADER: Final = b"x-tidegate-prompt"
MAX_VERSION_DIGITS: Final = 9
_MEMBERS: Final = ("id", "version", "variables")
_HEADER: Final = re.compile(rb"\s*([a-z0-9][a-z0-9_-]{0,63})(?:@([0-9]{1,9}))?\s*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

SHOW_PROMPT: Final = frozenset({"echo", "prompt_logprobs", "return_prompt_text", "return_prompt_token_ids", "return_token_ids"})
"""Fields that put the prompt, or its tokens, into the answer: of vLLM, and `return_prompt_token_ids` of SGLang. The messages of the
registry belong to its owner."""

_WITH_MESSAGES: Final = ", ".join(endpoint.path for endpoint in Endpoint if endpoint.has_messages)

_encode = msgspec.json.Encoder().encode


def reference_taken(endpoint: Endpoint, document: dict[str, object], header: bytes | None) -> PromptReference | None:
    """Take `prompt` out of `document`, and an empty list of messages, which counts as none here.

    Raises:
        Fault: UNSUPPORTED_PARAMETER or INVALID_VALUE where `prompt` is no reference, or the endpoint takes no such header.
    """
    if not endpoint.has_messages:
        raise Fault(Kind.INVALID_VALUE, f"The header '{PROMPT_HEADER.decode()}' is for {_WITH_MESSAGES} alone.")
    from_body = document.pop("prompt", None)
    if from_body is None and header is None:
        return None
    if from_body is not None and type(from_body) is not dict:
        refuse_type("an object", from_body, "prompt")
    if document.get("messages") == []:
        del document["messages"]
    return _reference({} if from_body is None else from_body, *_parse_header(header))


def with_prompt(
    ask: Ask,
    prompts: Mapping[str, AllowedVersions],
    key: str,
    deal: Callable[[RegisteredPrompt, AllowedVersions], RegisteredPrompt] = lambda prompt, _: prompt,
) -> tuple[Ask, RegisteredPrompt]:
    """The Ask with the messages of its prompt in front of its own, and the version of the prompt that was rendered.

    Args:
        ask: an Ask with a reference to a prompt.
        prompts: the prompts that exist for the Ask's tenant, by id.
        key: the key by which a rollout deals requests out.
        deal: picks the version for a request that names none, from the version that its policy gives it.

    Raises:
        Fault: UNSUPPORTED_PARAMETER for a field that would show the prompt; PROMPT_NOT_FOUND in one wording for every prompt that does
            not exist for the tenant; INVALID_VALUE or MISSING_PARAMETER with the variable at fault; MISSING_PARAMETER where neither request
            nor prompt names a model, or there is no message at all.
    """
    reference = ask.template
    assert reference is not None
    if not SHOW_PROMPT.isdisjoint(ask.names):
        _check_hidden(ask, reference.id)
    allowed = prompts.get(reference.id)
    prompt = None if allowed is None else allowed.version(reference.version, key)
    if prompt is None:
        name = f"The prompt {shown(reference.id)}" + ("" if reference.version is None else f", version {reference.version},")
        raise Fault(Kind.PROMPT_NOT_FOUND, f"{name} does not exist or you do not have access to it.", param="prompt.id")
    if allowed is not None and reference.version is None:
        prompt = deal(prompt, allowed)
    try:
        messages = _encode(prompt.rendered(reference.variables))
    except VariableRefused as refused:
        _refuse_variable(refused, prompt)
    except TooLong:
        refuse(
            f"Invalid value for 'prompt.variables': the prompt would have more than {MAX_RENDERED_CHARS} characters.", "prompt.variables"
        )
    model = ask.model or prompt.model
    if not model:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'model'. The prompt names none.", param="model")
    start, end = ask.prompt_at
    callers_messages = ask.fields[start:end]
    if callers_messages != b"[]":
        messages = callers_messages if messages == b"[]" else b"%b,%b" % (messages[:-1], callers_messages[1:])
    elif messages == b"[]":
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'messages'. The prompt comes out empty.", param="messages")
    fields = b"%b%b%b" % (ask.fields[:start], messages, ask.fields[end:])
    rendered = msgspec.structs.replace(
        ask,
        model=model,
        fields=fields,
        prompt_bytes=ask.prompt_bytes + len(messages),
        prompt_at=(start, start + len(messages)),
        template=None,
    )
    return rendered, prompt


def _check_hidden(ask: Ask, prompt: str) -> None:
    """Refuse a field that would show the messages of the registry."""
    values = behind_prompt(ask)
    for name in sorted(SHOW_PROMPT & values.keys()):
        if values[name] is not None and values[name] is not False:
            message = f"The parameter '{name}' is not supported with the prompt {shown(prompt)}: it would show the prompt. Leave it out."
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=name)


def _parse_header(header: bytes | None) -> tuple[str | None, int | None]:
    """The id and the version that a header names."""
    if header is None:
        return None, None
    match = _HEADER.fullmatch(header)
    if match is None:
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for the header '{PROMPT_HEADER.decode()}': send ID or ID@VERSION.")
    return match[1].decode(), int(match[2]) if match[2] else None


def _reference(from_body: Mapping[str, object], id_: str | None, version: int | None) -> PromptReference:
    """The reference that body and header make together; a member may stand in either, or in both with the same value.

    Args:
        id_: the id that the header names.
        version: the version that the header names.
    """
    for name in from_body:
        if name not in _MEMBERS:
            param = f"prompt.{_shown_name(name)}"
            raise Fault(Kind.UNSUPPORTED_PARAMETER, f"Unknown parameter: '{param}'; send {', '.join(_MEMBERS)}.", param=param)
    body_id, body_version, variables = (from_body.get(name) for name in _MEMBERS)
    if body_id is not None and type(body_id) is not str:
        refuse_type("a string", body_id, "prompt.id")
    number = _version_number(body_version)
    if (id_ and body_id and id_ != body_id) or (version is not None and number is not None and version != number):
        refuse(f"The header '{PROMPT_HEADER.decode()}' and 'prompt' name different prompts. Send one of them.", "prompt.id")
    id_ = id_ or body_id
    if not id_:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'prompt.id'.", param="prompt.id")
    if variables is not None and type(variables) is not dict:
        refuse_type("an object", variables, "prompt.variables")
    return PromptReference(id_, version if number is None else number, {} if variables is None else variables)


def _version_number(version: object) -> int | None:
    """A version of the body, which OpenAI's client sends as text."""
    if version is None:
        return None
    if type(version) is str and version.isascii() and version.isdigit() and len(version) <= MAX_VERSION_DIGITS:
        return int(version)
    if type(version) is int:
        return version
    refuse("Invalid value for 'prompt.version': expected a whole number, such as 2 or '2'.", "prompt.version")


def _refuse_variable(refused: VariableRefused, prompt: RegisteredPrompt) -> NoReturn:
    param = f"prompt.variables.{_shown_name(refused.name)}"
    if refused.kind == "missing":
        message = f"Missing required parameter: '{param}'. The prompt {prompt.name} expects {refused.expected}."
        raise Fault(Kind.MISSING_PARAMETER, message, param=param)
    if refused.kind == "unknown":
        message = f"Unknown parameter: '{param}'. The variables of the prompt {prompt.name} are: {refused.expected}."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
    refuse(f"Invalid value for '{param}': expected {refused.expected}.", param)


def _shown_name(name: str) -> str:
    """A name that a caller chose, as part of a path."""
    return name if _NAME.fullmatch(name) else shown(name, 16)
