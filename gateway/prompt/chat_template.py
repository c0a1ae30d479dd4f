"""The text that a model reads of a request: the rendering of the chat template, or the prompt itself. Pure.

`ChatTemplate` is a program that came with the model's files, so it runs in a sandbox without access to files, network or the gateway.

`messages_of` and `tools_of` bring a chat into the form in which engines hand it to the template. The form is vLLM's: content is one text,
or parts where the template loops over parts; the arguments of a tool call are an object and no text; a tool has all of its members. Other
engines differ in details of tools. `without_images` counts images apart from the text: their bytes say nothing of the tokens that a model
makes of them.
"""

import json
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import jinja2
import jinja2.sandbox
import msgspec
from jinja2 import nodes

from backends.dialects.thinking import Efforts, template_variables
from domain.ask import Ask
from domain.faults import Fault
from gateway.http.openai.endpoints import FORMS
from gateway.http.openai.messages import media_of

KEYS: Final = ("image_url", "input_image")
"""Keys of a part in which engines look for an image, some of them whatever the part's type is."""


def without_images(ask: Ask) -> tuple[Ask, int]:
    """The request with an empty text in place of each image that was sent as a `data:` URL, and the number of these images."""
    if not ask.endpoint.has_messages or not any(b'"%b"' % key.encode() in ask.fields for key in KEYS):
        return ask, 0
    document = msgspec.json.decode(ask.fields)
    images = 0
    for message in document["messages"]:
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [_without_images(part) for part in content]
            images += sum(_count_images(part) for part in content)
    if not images:
        return ask, 0
    fields, (start, _) = msgspec.json.encode(document), ask.prompt_at
    size = max(0, ask.prompt_bytes - len(ask.fields) + len(fields))
    end = start + len(msgspec.json.encode(document["messages"]))
    media = media_of(document)[0]
    return msgspec.structs.replace(ask, fields=fields, prompt_bytes=size, prompt_at=(start, end), media=media, image_bytes=0), images


def _is_image(link: object) -> bool:
    link = link.get("url") if isinstance(link, dict) else link
    return isinstance(link, str) and link.startswith("data:image/")


def _count_images(part: dict[str, Any]) -> int:
    return sum(_is_image(part.get(key)) for key in KEYS)


def _without_images(part: dict[str, Any]) -> dict[str, Any]:
    """The part without its images: its text, or other media that an engine may find in it."""
    if not _count_images(part):
        return part
    rest = {key: value for key, value in part.items() if key != "type" and not (key in KEYS and _is_image(value))}
    rest.pop("detail", None)
    return {"text": "", **rest, "type": "text" if rest.keys() <= {"text"} else "media"}


TEXT_PARTS: Final = ("text", "input_text")


class NotText(Exception):
    """The prompt holds more than text, or its template refuses it: only the engine can count it."""


def takes_parts(tree: nodes.Template) -> bool:
    """Whether a template loops over the parts of a message's content, and so gets parts where it could get a text."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def messages_of(document: Mapping[str, Any], *, parts: bool, developer: bool) -> list[dict[str, Any]]:
    """The messages of a checked request.

    Args:
        parts: whether the template takes parts (`takes_parts`).
        developer: whether the template knows the role `developer`; without it these messages get the role `system`.

    Raises:
        Unreadable: a message holds media.
    """
    messages = [_message(message, parts=parts) for message in document["messages"]]
    if not developer and any(message["role"] == "developer" for message in messages):
        if any(message["role"] in ("system", "developer") for message in messages[1:]):
            raise NotText("several messages of system and developer, which engines join in different ways")
        messages[0]["role"] = "system"
    return messages


def tools_of(document: Mapping[str, Any]) -> list[Any] | None:
    """The tools of a checked request."""
    tools = document.get("tools")
    return None if tools is None else [_tool(tool) for tool in tools]


def _is_content(node: nodes.Node | None) -> bool:
    while isinstance(node, nodes.Filter | nodes.Test) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return (isinstance(node, nodes.Getattr) and node.attr == "content") or (isinstance(node, nodes.Name) and node.name == "content")


def _message(message: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    texts = _texts(message.get("content"))
    content: Any = [{"type": "text", "text": text} for text in texts] if parts and message["role"] != "tool" else "\n".join(texts)
    formed = {**message, "content": content}
    if message["role"] == "assistant" and "tool_calls" in message:
        formed["tool_calls"] = [_call(call) for call in message["tool_calls"] or ()]
        if not formed["tool_calls"]:
            del formed["tool_calls"]
    return formed


def _texts(content: object) -> list[str]:
    if content is None or isinstance(content, str):
        return [content] if content is not None else []
    texts = []
    for part in content if isinstance(content, list) else (None,):
        if isinstance(part, dict) and part.get("type") in TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise NotText("a message has parts that are no text")
    return texts


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        raise NotText("a tool call is no function")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        raise NotText("a tool is no function")
    members = {name: function.get(name) for name in ("name", "description", "parameters")}
    members |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": members}


MAX_TEMPLATE_CHARS: Final = 256 * 1024
"""Longest chat template; those of published models have 1 to 20 KB."""


class ChatTemplate:
    """A model's chat template, compiled.

    Args:
        source: the Jinja source in `tokenizer_config.json` or `chat_template.jinja`.
        tokens: the model's special tokens by their names in templates (`bos_token`, `eos_token`, …).
        strftime: formats the current time; some templates write the date into the prompt.
        efforts: the efforts that engines get in place of the switch for thinking, where the pool has them.

    Raises:
        ValueError: the source is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], strftime: Callable[[str], str], efforts: Efforts | None = None) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ValueError(f"the chat template has {len(source)} characters; at most {MAX_TEMPLATE_CHARS} are taken")
        # published templates are written for these settings
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refused
        environment.globals["strftime_now"] = strftime
        try:
            tree = environment.parse(source)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template cannot be compiled: {error}") from None
        self._tokens = dict(tokens)
        self._efforts = efforts
        self._parts = takes_parts(tree)
        self._developer = '"developer"' in source or "'developer'" in source

    def render(self, document: Mapping[str, Any]) -> str:
        """The text of a chat request. Raises Unreadable."""
        if document.get("continue_final_message"):
            raise NotText("the last message goes on, where engines differ")
        try:
            variables = {
                **self._tokens,
                **template_variables(document, self._efforts),
                "messages": messages_of(document, parts=self._parts, developer=self._developer),
                "tools": tools_of(document),
                "documents": document.get("documents"),
                "add_generation_prompt": document.get("add_generation_prompt") is not False,
            }
            return self._template.render(variables)
        except Fault as fault:
            raise NotText(fault.message) from None
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise NotText(f"the chat template fails: {error}") from None

    def sample(self) -> str:
        """The rendering of a few turns; empty where the template refuses them."""
        turns = [{"role": role, "content": "1"} for role in ("user", "assistant") * 3]
        try:
            return self.render({"messages": turns[:-1]})
        except NotText:
            return ""


def texts_of(ask: Ask, template: ChatTemplate | None) -> tuple[list[str], list["array[int]"]]:
    """The prompts to be tokenised, and the prompts that the caller sent as token ids. Raises Unreadable."""
    prompts_of, document = FORMS[ask.endpoint].prompts, msgspec.json.decode(ask.fields)
    if prompts_of is None:
        if template is None:
            raise NotText("the tokenizer has no chat template")
        return [template.render(document)], []
    prompts = prompts_of(document)
    if prompts is None:
        raise NotText("how engines make tokens of this endpoint's texts is theirs alone")
    return [prompt for prompt in prompts if isinstance(prompt, str)], [array("I", prompt) for prompt in prompts if isinstance(prompt, list)]


def _to_json(value: object, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refused(message: str) -> NoReturn:
    raise ValueError(message)
