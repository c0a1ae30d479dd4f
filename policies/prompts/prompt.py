"""One version of a prompt, ready to be rendered into messages. Pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import msgspec

from policies.parameters import given_defaults
from policies.prompts.language import Mistake
from policies.prompts.schema import PromptDocument
from policies.prompts.template import Template, template_of
from policies.prompts.variables import Variable, checked
from policies.yaml.problems import Path_

MAX_RENDERED_CHARS: Final = 262_144
"""Characters of all messages of one rendering: 65,000 tokens, half of a large context."""


class RegisteredPrompt(msgspec.Struct, frozen=True):
    """One version of a prompt."""

    id: str
    version: int
    name: str
    """`id@version`: the prompt's name in logs and records."""
    model: str
    """The model for requests that name none; empty when requests have to name one."""
    parameters: tuple[tuple[str, bytes], ...]
    """Defaults of parameters that a request does not set: pairs of name and value as JSON."""
    variables: Mapping[str, Variable]
    messages: tuple[tuple[str, Template], ...]
    """Pairs of role and template."""
    digest: str
    """SHA-256 of the document as written, in hexadecimal."""

    def rendered(self, given: Mapping[str, object]) -> list[dict[str, str]]:
        """The rendered messages; messages without text are left out.

        Args:
            given: values of variables, unchecked.

        Raises:
            VariableRefused: a value is missing, unknown or not accepted by its variable.
            TooLong: the messages would have more than `MAX_RENDERED_CHARS`.
        """
        values = checked(self.variables, given)
        room = MAX_RENDERED_CHARS
        messages = []
        for role, template in self.messages:
            text = template.render(values, room)
            room -= len(text)
            text = text.rstrip("\n")  # line ends of the YAML block
            if text:
                messages.append({"role": role, "content": text})
        return messages


def prompt_of(document: PromptDocument) -> tuple[RegisteredPrompt | None, list[tuple[Path_, Mistake]]]:
    """The prompt of a validated document, and every mistake in its texts with its path; the prompt is None if there is one."""
    mistakes: list[tuple[Path_, Mistake]] = []
    used: set[str] = set()
    messages = []
    for i, message in enumerate(document.messages):
        template, named, text_mistakes = template_of(message.content, document.variables)
        used |= named
        mistakes += [(("messages", i, "content"), mistake) for mistake in text_mistakes]
        if template is not None:
            messages.append((message.role, template))
    if not mistakes:  # an unreadable text may name the variable
        for name in document.variables.keys() - used:
            mistakes.append((("variables", name), Mistake(0, "is used in no message", "use it, or remove it")))
    if mistakes:
        return None, mistakes
    name = f"{document.id}@{document.version}"
    parameters = tuple(given_defaults(document.parameters))
    model = document.model or ""
    digest = hashlib.sha256(json.dumps(document.model_dump(mode="json", exclude_unset=True), sort_keys=True).encode()).hexdigest()
    return RegisteredPrompt(document.id, document.version, name, model, parameters, document.variables, tuple(messages), digest), []
