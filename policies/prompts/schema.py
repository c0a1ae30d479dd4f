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

    role: Literal["system", "developer", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(
        min_length=1,
        max_length=MAX_SOURCE_CHARS,
        description="Its text, a template: docs/prompts.md says what can stand in it. Line ends at its end are left out, and so is a "
        "message without any text.",
    )


class PromptDocument(Strict):
    """One file: one version of one prompt."""

    id: PromptId = Field(description="What requests call it: lower-case letters, digits, `_`, `-`.")
    version: PromptVersion = Field(description="Which version of it this is. The file is called `ID@VERSION.yaml`.")
    description: str = Field(default="", max_length=4000, description="For people.")
    model: Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,256}$")] | None = Field(
        default=None, description="The model that answers where a request names none; null where requests have to."
    )
    parameters: Defaults = Field(
        default=Defaults(), description="What holds where a request sets nothing; it comes before the defaults of policies."
    )
    variables: dict[VariableName, VariableField] = Field(
        default={}, max_length=MAX_VARIABLES, description="What requests fill in, by name; docs/prompts.md has their types."
    )
    messages: list[MessageField] = Field(
        min_length=1, max_length=MAX_MESSAGES, description="The messages that stand in front of the request's own."
    )
