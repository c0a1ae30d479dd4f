"""A prompt's file as a strict model: one version of one prompt."""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from domain.strict import Strict
from policies.parameters import Defaults
from policies.prompts.variables import MAX_VARIABLES, VariableField, VariableName

MAX_MESSAGES: Final = 32
MAX_SOURCE_CHARS: Final = 65_536
"""Characters of one message's template."""
MAX_VERSION: Final = 1_000_000

PromptId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
PromptVersion = Annotated[int, Field(ge=1, le=MAX_VERSION)]


class MessageField(Strict):
    """One message."""

    role: Literal["system", "developer", "user", "assistant"] = Field(description="The message's role.")
    content: str = Field(
        min_length=1,
        max_length=MAX_SOURCE_CHARS,
        description="The message's text, a template: docs/reference/prompts.md describes the syntax. Line ends at the end of the text are "
        "removed, and a message that renders to no text is left out.",
    )


class PromptDocument(Strict):
    """One file: one version of one prompt."""

    id: PromptId = Field(description="The prompt's id in requests: lower-case letters, digits, `_`, `-`.")
    version: PromptVersion = Field(description="Version of the prompt. The file is called `ID@VERSION.yaml`.")
    description: str = Field(default="", max_length=4000, description="A note for human readers.")
    model: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")] | None = Field(
        default=None, description="The model that answers a request that names none; null where every request must name one."
    )
    parameters: Defaults = Field(
        default=Defaults(), description="Values of parameters that a request does not set; they come before the defaults of policies."
    )
    variables: dict[VariableName, VariableField] = Field(
        default={},
        max_length=MAX_VARIABLES,
        description="Variables that requests fill in, by name; docs/reference/prompts.md lists their types.",
    )
    messages: list[MessageField] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The messages that are put in front of the request's own."
    )
