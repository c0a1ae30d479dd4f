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
from policies.prompts.allowed import AllowedVersions
from policies.prompts.prompt import MAX_RENDERED_CHARS, Prompt
from policies.prompts.template import TooLong
from policies.prompts.variables import VariableRefused

PROMPT_HEADER: Final = b"x-tidegate-prompt"
MAX_VERSION_DIGITS: Final = 9
_MEMBERS: Final = ("id", "version", "variables")
_HEADER: Final = re.compile(rb"\s*([a-z0-9][a-z0-9_-]{0,63})(?:@([0-9]{1,9}))?\s*")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

_WITH_MESSAGES: Final = ", ".join(endpoint.path for endpoint in Endpoint if endpoint.has_messages)

_encode = msgspec.json.Encoder().encode


def reference_taken(endpoint: Endpoint, document: dict[str, object], header: bytes | None) -> PromptReference | None:
    """Take `prompt` out of `document`, and an empty list of messages, which is as good as none here.

    Raises:
        Fault: UNSUPPORTED_PARAMETER or INVALID_VALUE where the reference is none, or the header is for another endpoint.
    """
    if not endpoint.has_messages:
        raise Fault(Kind.INVALID_VALUE, f"The header '{PROMPT_HEADER.decode()}' is for {_WITH_MESSAGES} alone.")
    given = document.pop("prompt", None)
    if given is None and header is None:
        return None
    if given is not None and type(given) is not dict:
        refuse_type("an object", given, "prompt")
    if document.get("messages") == []:
        del document["messages"]
    return _reference({} if given is None else given, *_of_header(header))


def with_prompt(
    ask: Ask,
    prompts: Mapping[str, AllowedVersions],
    key: str,
    deal: Callable[[Prompt, AllowedVersions], Prompt] = lambda prompt, _: prompt,
) -> tuple[Ask, Prompt]:
    """The Ask with the messages of its prompt in front of its own, and the version of the prompt that they are of.

    Args:
        ask: with a reference to a prompt.
        prompts: those that exist for its tenant.
        key: what the request is dealt out by.
        deal: which version a request gets that names none, from the one that its policy gives it.

    Raises:
        Fault: PROMPT_NOT_FOUND in one wording for whatever does not exist for the tenant; INVALID_VALUE or MISSING_PARAMETER with the
            variable that does not do; MISSING_PARAMETER where neither says what model answers, or there is no message at all.
    """
    wanted = ask.template
    assert wanted is not None
    allowed = prompts.get(wanted.id)
    prompt = None if allowed is None else allowed.version(wanted.version, key)
    if prompt is None:
        said = f"The prompt {shown(wanted.id)}" + ("" if wanted.version is None else f", version {wanted.version},")
        raise Fault(Kind.PROMPT_NOT_FOUND, f"{said} does not exist or you do not have access to it.", param="prompt.id")
    if allowed is not None and wanted.version is None:
        prompt = deal(prompt, allowed)
    try:
        messages = _encode(prompt.rendered(wanted.variables))
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
    own = ask.fields[start:end]
    if own != b"[]":
        messages = own if messages == b"[]" else b"%b,%b" % (messages[:-1], own[1:])
    elif messages == b"[]":
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'messages'. The prompt comes out empty.", param="messages")
    fields = b"%b%b%b" % (ask.fields[:start], messages, ask.fields[end:])
    made = msgspec.structs.replace(
        ask,
        model=model,
        fields=fields,
        prompt_bytes=ask.prompt_bytes + len(messages),
        prompt_at=(start, start + len(messages)),
        template=None,
    )
    return made, prompt


def _of_header(header: bytes | None) -> tuple[str | None, int | None]:
    if header is None:
        return None, None
    found = _HEADER.fullmatch(header)
    if found is None:
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for the header '{PROMPT_HEADER.decode()}': send ID or ID@VERSION.")
    return found[1].decode(), int(found[2]) if found[2] else None


def _reference(given: Mapping[str, object], id_: str | None, version: int | None) -> PromptReference:
    """What body and header say together; each may say what the other does not, and both the same."""
    for name in given:
        if name not in _MEMBERS:
            param = f"prompt.{_shown_name(name)}"
            raise Fault(Kind.UNSUPPORTED_PARAMETER, f"Unknown parameter: '{param}'; send {', '.join(_MEMBERS)}.", param=param)
    named, written, variables = (given.get(name) for name in _MEMBERS)
    if named is not None and type(named) is not str:
        refuse_type("a string", named, "prompt.id")
    number = _version(written)
    if (id_ and named and id_ != named) or (version is not None and number is not None and version != number):
        refuse(f"The header '{PROMPT_HEADER.decode()}' and 'prompt' name different prompts. Send one of them.", "prompt.id")
    id_ = id_ or named
    if not id_:
        raise Fault(Kind.MISSING_PARAMETER, "Missing required parameter: 'prompt.id'.", param="prompt.id")
    if variables is not None and type(variables) is not dict:
        refuse_type("an object", variables, "prompt.variables")
    return PromptReference(id_, version if number is None else number, {} if variables is None else variables)


def _version(written: object) -> int | None:
    """OpenAI's client sends versions as text."""
    if written is None:
        return None
    if type(written) is str and written.isascii() and written.isdigit() and len(written) <= MAX_VERSION_DIGITS:
        return int(written)
    if type(written) is int:
        return written
    refuse("Invalid value for 'prompt.version': expected a whole number, such as 2 or '2'.", "prompt.version")


def _refuse_variable(refused: VariableRefused, prompt: Prompt) -> NoReturn:
    param = f"prompt.variables.{_shown_name(refused.name)}"
    if refused.kind == "missing":
        message = f"Missing required parameter: '{param}'. The prompt {prompt.name} expects {refused.expected}."
        raise Fault(Kind.MISSING_PARAMETER, message, param=param)
    if refused.kind == "unknown":
        message = f"Unknown parameter: '{param}'. The variables of the prompt {prompt.name} are: {refused.expected}."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
    refuse(f"Invalid value for '{param}': expected {refused.expected}.", param)


def _shown_name(name: str) -> str:
    """A name that a caller chose, for a path."""
    return name if _NAME.fullmatch(name) else shown(name, 16)
