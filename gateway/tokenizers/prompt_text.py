"""The text that a model reads of a request: the rendering of the chat template, or the prompt itself. Pure.

A template is a program that came with the model's files, so it runs in a sandbox without access to files, network or the gateway.
"""

import json
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import jinja2
import jinja2.sandbox
import msgspec

from domain.ask import Ask
from gateway.http.openai.endpoints import FORMS
from gateway.tokenizers.chat_form import Unreadable, messages_of, takes_parts, tools_of

MAX_TEMPLATE_CHARS: Final = 256 * 1024
"""Longest chat template; those of published models have 1 to 20 KB."""


class ChatTemplate:
    """A model's chat template, compiled.

    Args:
        source: the Jinja source in `tokenizer_config.json` or `chat_template.jinja`.
        tokens: the model's special tokens by their names in templates (`bos_token`, `eos_token`, …).
        strftime: formats the current time; some templates write the date into the prompt.

    Raises:
        ValueError: the source is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], strftime: Callable[[str], str]) -> None:
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
        self._parts = takes_parts(tree)
        self._developer = '"developer"' in source or "'developer'" in source

    def render(self, document: Mapping[str, Any]) -> str:
        """The text of a chat request. Raises Unreadable."""
        if document.get("continue_final_message"):
            raise Unreadable("the last message goes on, where engines differ")
        effort = document.get("reasoning_effort")
        thinking = {} if effort is None else {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        try:
            return self._template.render(
                messages=messages_of(document, parts=self._parts, developer=self._developer),
                tools=tools_of(document),
                documents=document.get("documents"),
                add_generation_prompt=document.get("add_generation_prompt") is not False,
                **thinking,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise Unreadable(f"the chat template fails: {error}") from None

    def sample(self) -> str:
        """The rendering of a few turns; empty where the template refuses them."""
        turns = [{"role": role, "content": "1"} for role in ("user", "assistant") * 3]
        try:
            return self.render({"messages": turns[:-1]})
        except Unreadable:
            return ""


def texts_of(ask: Ask, template: ChatTemplate | None) -> tuple[list[str], list["array[int]"]]:
    """The prompts to be tokenised, and the prompts that the caller sent as token ids. Raises Unreadable."""
    prompts_of, document = FORMS[ask.endpoint].prompts, msgspec.json.decode(ask.fields)
    if prompts_of is None:
        if template is None:
            raise Unreadable("the tokenizer has no chat template")
        return [template.render(document)], []
    prompts = prompts_of(document)
    return [prompt for prompt in prompts if isinstance(prompt, str)], [array("I", prompt) for prompt in prompts if isinstance(prompt, list)]


def _to_json(value: object, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _refused(message: str) -> NoReturn:
    raise ValueError(message)
