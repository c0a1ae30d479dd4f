"""Variables of a prompt: their types as a strict model, and the check of a request's values against them. Values are never converted."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, model_validator
from pydantic.json_schema import SkipJsonSchema

from domain.strict import Strict

MAX_VARIABLES: Final = 64
"""Variables of one prompt."""
MAX_CHARS: Final = 65_536
"""Characters of one text: a document of about 16,000 tokens. A longer one belongs in a message of the request's own."""
DEFAULT_CHARS: Final = 4096
MAX_ITEMS: Final = 256
MAX_ITEM_CHARS: Final = 4096
MAX_WHOLE: Final = 2**53
"""The largest whole number that every JSON reader keeps exactly."""
NUMBER_CHARS: Final = 25
"""Characters of a number, at most: `-2.2250738585072014e-308` has 24."""

_MAX_LISTED: Final = 20
"""Values of an enum that a message lists."""

RESERVED: Final = frozenset(
    {"loop", "self", "super", "true", "false", "none", "and", "or", "not", "in", "is", "if", "else", "elif", "for", "recursive"}
)
"""Reserved words of the template language."""


def _not_reserved(name: str) -> str:
    if name in RESERVED:
        raise ValueError(f"means something else in templates; call it {name}_ or otherwise")
    return name


VariableName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$"), AfterValidator(_not_reserved)]


class VariableRefused(Exception):
    """The value of a prompt's variable is missing or not accepted, or the prompt has no such variable.

    Args:
        name: of the variable.
        expected: the values that the variable accepts; for an unknown variable, the names of the prompt's variables.
        kind: the reason.
    """

    def __init__(self, name: str, expected: str, kind: Literal["missing", "unknown", "wrong"]) -> None:
        super().__init__(f"{name}: {kind}, expected {expected}")
        self.name = name
        self.expected = expected
        self.kind = kind


class _Variable(Strict):
    description: str = Field(default="", max_length=1000, description="A note for human readers.")

    @property
    def required(self) -> bool:
        """Whether requests have to give a value, because the variable has no default."""
        return self.default is None  # type: ignore[attr-defined]  # every kind has one, of its own type

    @model_validator(mode="after")
    def _default_fits(self) -> Self:
        value = self.default  # type: ignore[attr-defined]  # as above
        if value is not None and not self.accepts(value):
            raise ValueError(f"has a default that is not {self.expected}; write one that is")
        return self

    def accepts(self, value: object) -> bool:
        """Whether the variable accepts a value."""
        raise NotImplementedError

    @property
    def expected(self) -> str:
        """The values that the variable accepts, as text."""
        raise NotImplementedError


class StringVariable(_Variable):
    """A text."""

    type: Literal["string"] = Field(description="A text.")
    default: str | None = Field(default=None, description="Value when a request gives none; without a default, requests must give one.")
    max_length: int = Field(default=DEFAULT_CHARS, ge=1, le=MAX_CHARS, description="Most characters of the text.")

    def accepts(self, value: object) -> bool:
        return type(value) is str and len(value) <= self.max_length

    @property
    def expected(self) -> str:
        return f"a string of at most {self.max_length} characters"


class _Bounded(_Variable):
    minimum: float = 0.0
    maximum: float = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError(f"has a minimum of {self.minimum:g} above its maximum of {self.maximum:g}; swap them")
        return self


class IntegerVariable(_Bounded):
    """A whole number."""

    type: Literal["integer"] = Field(description="A whole number.")
    default: int | None = Field(default=None, description="Value when a request gives none; without a default, requests must give one.")
    minimum: int = Field(default=-MAX_WHOLE, ge=-MAX_WHOLE, le=MAX_WHOLE, description="Smallest value.")
    maximum: int = Field(default=MAX_WHOLE, ge=-MAX_WHOLE, le=MAX_WHOLE, description="Largest value.")

    def accepts(self, value: object) -> bool:
        return type(value) is int and self.minimum <= value <= self.maximum

    @property
    def expected(self) -> str:
        return f"an integer between {self.minimum} and {self.maximum}"


class NumberVariable(_Bounded):
    """A number."""

    type: Literal["number"] = Field(description="A number.")
    default: float | None = Field(
        default=None, allow_inf_nan=False, description="Value when a request gives none; without a default, requests must give one."
    )
    minimum: float = Field(default=-1e15, ge=-1e15, le=1e15, description="Smallest value.")
    maximum: float = Field(default=1e15, ge=-1e15, le=1e15, description="Largest value.")

    def accepts(self, value: object) -> bool:
        return (type(value) is int or (type(value) is float and math.isfinite(value))) and self.minimum <= value <= self.maximum

    @property
    def expected(self) -> str:
        return f"a number between {self.minimum:g} and {self.maximum:g}"


class BooleanVariable(_Variable):
    """True or false."""

    type: Literal["boolean"] = Field(description="True or false.")
    default: bool | None = Field(default=None, description="Value when a request gives none; without a default, requests must give one.")

    def accepts(self, value: object) -> bool:
        return type(value) is bool

    @property
    def expected(self) -> str:
        return "true or false"


class EnumVariable(_Variable):
    """One of a few texts."""

    type: Literal["enum"] = Field(description="One of a fixed list of texts.")
    values: list[Annotated[str, StringConstraints(min_length=1, max_length=256)]] = Field(
        min_length=1, max_length=MAX_ITEMS, description="The texts that are accepted."
    )
    default: str | None = Field(default=None, description="Value when a request gives none; without a default, requests must give one.")

    def accepts(self, value: object) -> bool:
        return type(value) is str and value in self.values

    @property
    def expected(self) -> str:
        more = ", …" if len(self.values) > _MAX_LISTED else ""
        return f"one of {', '.join(map(ascii, self.values[:_MAX_LISTED]))}{more}"


class ListVariable(_Variable):
    """Several texts."""

    type: Literal["list"] = Field(description="A list of texts.")
    default: list[str] | None = Field(
        default=None, description="Value when a request gives none; without a default, requests must give one."
    )
    max_items: int = Field(default=16, ge=1, le=MAX_ITEMS, description="Most texts of the list.")
    max_length: int = Field(default=1024, ge=1, le=MAX_ITEM_CHARS, description="Most characters of each text.")

    def accepts(self, value: object) -> bool:
        return (
            isinstance(value, list)
            and len(value) <= self.max_items
            and all(type(item) is str and len(item) <= self.max_length for item in value)
        )

    @property
    def expected(self) -> str:
        return f"an array of at most {self.max_items} strings of at most {self.max_length} characters each"


KINDS: Final[Mapping[str, type[_Variable]]] = {
    "string": StringVariable,
    "integer": IntegerVariable,
    "number": NumberVariable,
    "boolean": BooleanVariable,
    "enum": EnumVariable,
    "list": ListVariable,
}


class _Typeless(_Variable):
    """A variable of an unknown type: reports a problem at `type` and ignores all other keys."""

    model_config = Strict.model_config | {"extra": "ignore"}

    type: Literal["string", "integer", "number", "boolean", "enum", "list"]
    default: Any = None

    def accepts(self, value: object) -> bool:
        return True


def _kind(value: object) -> str:
    type_name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return type_name if isinstance(type_name, str) and type_name in KINDS else "typeless"


Variable = StringVariable | IntegerVariable | NumberVariable | BooleanVariable | EnumVariable | ListVariable

VariableField: Any = Annotated[
    Annotated[StringVariable, Tag("string")]
    | Annotated[IntegerVariable, Tag("integer")]
    | Annotated[NumberVariable, Tag("number")]
    | Annotated[BooleanVariable, Tag("boolean")]
    | Annotated[EnumVariable, Tag("enum")]
    | Annotated[ListVariable, Tag("list")]
    | Annotated[_Typeless, Tag("typeless"), SkipJsonSchema()],  # type: ignore[type-arg]  # an annotation here, not a type
    Discriminator(_kind),
]


def checked(variables: Mapping[str, Variable], given: Mapping[str, object]) -> dict[str, Any]:
    """A value for every variable: the given value, else the default. A null counts as not given.

    Raises:
        VariableRefused: for the first name that is unknown, else the first value that is missing or not accepted.
    """
    for name in given:
        if name not in variables:
            raise VariableRefused(name, ", ".join(variables) or "none", "unknown")
    values: dict[str, Any] = {}
    for name, variable in variables.items():
        value = given.get(name)
        if value is None:
            if variable.required:
                raise VariableRefused(name, variable.expected, "missing")
            value = variable.default
        elif not variable.accepts(value):
            raise VariableRefused(name, variable.expected, "wrong")
        values[name] = value
    return values
