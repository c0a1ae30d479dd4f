"""Text in one of OpenAI's four shapes: a string, strings, token ids, or arrays of token ids."""

from typing import Annotated, Final

import msgspec

from gateway.http.openai.checks import Check, refuse, refuse_type

MAX_TOKEN_ID: Final = 2**31 - 1
"""Engines keep ids in 32 bits, and refuse an id beyond the vocabulary themselves."""

_Tokens: Final = list[Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKEN_ID)]]


def inputs(most: int) -> Check:
    """A check for one input, or an array of 1 to `most` inputs."""

    def check(value: object, param: str) -> None:
        if type(value) is str:
            return
        if type(value) is not list:
            refuse_type("a string or an array", value, param)
        if not value:
            refuse(f"Invalid value for '{param}': it is empty.", param)
        if type(value[0]) is int:
            _check_tokens(value, param)
            return
        if len(value) > most:
            refuse(f"Invalid value for '{param}': {len(value)} items are too many, at most {most} are allowed.", param)
        item_type = type(value[0])
        if item_type is not str and item_type is not list:
            refuse_type("a string or an array of token ids", value[0], f"{param}[0]")
        for index, item in enumerate(value):
            item_param = f"{param}[{index}]"
            if type(item) is not item_type:
                refuse_type("a string" if item_type is str else "an array of token ids", item, item_param)
            if type(item) is list:
                if not item:
                    refuse(f"Invalid value for '{item_param}': it is empty.", item_param)
                _check_tokens(item, item_param)

    return check


def _check_tokens(values: list[object], param: str) -> None:
    try:
        msgspec.convert(values, _Tokens)
    except msgspec.ValidationError:
        for index, token in enumerate(values):  # find the token that the message names
            if type(token) is not int:
                refuse_type("a token id", token, f"{param}[{index}]")
            if not 0 <= token <= MAX_TOKEN_ID:
                refuse(f"Invalid value for '{param}[{index}]': {token} is not between 0 and {MAX_TOKEN_ID}.", f"{param}[{index}]")


def list_inputs(value: object) -> list[object]:
    """The inputs that a checked value holds, each a text or token ids."""
    return value if type(value) is list and type(value[0]) is not int else [value]


def count_inputs(value: object) -> int:
    """The number of inputs that a checked value holds."""
    return len(value) if type(value) is list and type(value[0]) is not int else 1


def count_token_ids(value: object) -> int | None:
    """The number of token ids that a checked value holds; None for text."""
    if type(value) is not list:
        return None
    if type(value[0]) is int:
        return len(value)
    return sum(map(len, value)) if type(value[0]) is list else None
