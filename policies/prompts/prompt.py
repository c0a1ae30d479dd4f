"""One version of a prompt, ready to be rendered into messages. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import msgspec

from policies.parameters import given_defaults
from policies.problems import Path_
from policies.prompts.language import Mistake
from policies.prompts.schema import PromptDocument
from policies.prompts.template import Template, template_of
from policies.prompts.variables import Variable, checked

MAX_RENDERED_CHARS: Final = 262_144
"""Of all messages of one rendering: 65,000 tokens, half of a large context."""


class Prompt(msgspec.Struct, frozen=True):
    """One version of a prompt."""

    id: str
    version: int
    name: str
    """`id@version`: what logs and records call it."""
    model: str
    """Where a request names none; empty where it has to."""
    parameters: tuple[tuple[str, bytes], ...]
    """What holds where a request sets nothing: name, and value as JSON."""
    variables: Mapping[str, Variable]
    messages: tuple[tuple[str, Template], ...]
    """Role and text."""
    digest: str
    """Of everything that was written."""

    def rendered(self, given: Mapping[str, object]) -> list[dict[str, str]]:
        """The messages, without those that came out empty.

        Args:
            given: values of variables, as somebody wrote them.

        Raises:
            VariableRefused: a value is missing, unknown or not what the prompt takes.
            TooLong: it would have more than `MAX_RENDERED_CHARS`.
        """
        values, room, messages = checked(self.variables, given), MAX_RENDERED_CHARS, []
        for role, template in self.messages:
            text = template.render(values, room)
            room -= len(text)
            text = text.rstrip("\n")  # of the block that it was written in
            if text:
                messages.append({"role": role, "content": text})
        return messages


def prompt_of(document: PromptDocument) -> tuple[Prompt | None, list[tuple[Path_, Mistake]]]:
    """A prompt as it was written, and every mistake in its texts with the place; no prompt as soon as there is one."""
    mistakes: list[tuple[Path_, Mistake]] = []
    used: set[str] = set()
    messages = []
    for i, message in enumerate(document.messages):
        template, named, text_mistakes = template_of(message.content, document.variables)
        used |= named
        mistakes += [(("messages", i, "content"), mistake) for mistake in text_mistakes]
        if template is not None:
            messages.append((message.role, template))
    if not mistakes:  # a variable may be named where a text could not be read
        for name in document.variables.keys() - used:
            mistakes.append((("variables", name), Mistake(0, "is used in no message", "use it, or remove it")))
    if mistakes:
        return None, mistakes
    name = f"{document.id}@{document.version}"
    parameters = tuple(given_defaults(document.parameters))
    model = document.model or ""
    digest = hashlib.sha256(json.dumps(document.model_dump(mode="json", exclude_unset=True), sort_keys=True).encode()).hexdigest()
    return Prompt(document.id, document.version, name, model, parameters, document.variables, tuple(messages), digest), []
