"""Checks of one field's value: each check takes the value and its path and raises a Fault that names both.

A check gets values that JSON can hold, and never `null`: a field that is null counts as absent everywhere, so callers of this module
skip it. `json_guard` has made sure that numbers are finite and integers fit 64 bits. Knows no endpoint.
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NoReturn

import msgspec

from backends.forms import BadForm
from domain.faults import Fault, Kind

Check = Callable[[object, str], bool | None]
"""Raises a Fault for a value that it refuses; returns True where it has changed something inside the value, which only `messages` does."""

Accepted = tuple[type, Container[Any]]
"""The type and the values that a check lets pass."""

_ACCEPTED: Final[dict[Check, Accepted]] = {}
"""By check, for flags and whole numbers: such a value is looked up, and costs no call."""

_encode = msgspec.json.Encoder().encode
_KIND_NAMES: Final[dict[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
}


def refuse(message: str, param: str) -> NoReturn:
    """Raise INVALID_VALUE at `param`."""
    raise Fault(Kind.INVALID_VALUE, message, param=param)


def refuse_type(expected: str, value: object, param: str) -> NoReturn:
    """Raise INVALID_VALUE because `value` is of the wrong type."""
    refuse(f"Invalid type for '{param}': expected {expected}, got {_KIND_NAMES[type(value)]}.", param)


def form_fault(error: BadForm) -> Fault:
    """INVALID_VALUE because a body is no form that can be read, at the field that is why."""
    if error.name:
        return Fault(Kind.INVALID_VALUE, f"Invalid value for '{error.name}': {error}.", param=error.name)
    return Fault(Kind.INVALID_VALUE, f"The body is not a form that can be read: {error}.")


def shown(text: str, limit: int = 64) -> str:
    """A string of the caller for a message: printable ASCII, cut at `limit`, in quotes."""
    shortened = text if len(text) <= limit else text[:limit] + "..."
    return "'" + "".join(c if " " <= c <= "~" else "?" for c in shortened) + "'"


def set_by(cap: str) -> str:
    """The sentence behind a refusal that says who sets the bound; empty where no policy does.

    Args:
        cap: the name of a `policies.caps.RequestCaps`; empty for a fixed bound.
    """
    return f" The policy of your tenant sets this bound (caps.{cap})." if cap else ""


def integer(low: int, high: int, cap: str = "") -> Check:
    """A check for a whole number in [low, high]. Here and below, `cap` is the name of the policy's cap that sets the bound."""

    def check(value: object, param: str) -> None:
        if type(value) is not int:
            refuse_type("an integer", value, param)
        if not low <= value <= high:
            refuse(f"Invalid value for '{param}': {value} is not between {low} and {high}.{set_by(cap) if value > high else ''}", param)

    _ACCEPTED[check] = (int, range(low, high + 1))
    return check


def number(low: float, high: float, *, low_open: bool = False, cap: str = "") -> Check:
    """A check for a number in [low, high], or in (low, high].

    Args:
        cap: the cap of a policy that `high` is; empty for none.
    """
    above = "above" if low_open else "at least"

    def check(value: object, param: str) -> None:
        if type(value) is not float and type(value) is not int:
            refuse_type("a number", value, param)
        if not low <= value <= high or (low_open and value == low):
            why = set_by(cap) if value > high else ""
            refuse(f"Invalid value for '{param}': {value} is not {above} {low:g} and at most {high:g}.{why}", param)

    return check


def flag(value: object, param: str) -> None:
    """Check for true or false."""
    if value is not True and value is not False:
        refuse_type("a boolean", value, param)


_ACCEPTED[flag] = (bool, (False, True))


def accepted_values(checks: Mapping[str, Check]) -> dict[str, Accepted]:
    """The values that pass by a look-up, by field; only fields of flags and whole numbers are in it."""
    return {field: _ACCEPTED[check] for field, check in checks.items() if check in _ACCEPTED}


def text(longest: int, cap: str = "") -> Check:
    """A check for a string of at most `longest` characters."""

    def check(value: object, param: str) -> None:
        if type(value) is not str:
            refuse_type("a string", value, param)
        if len(value) > longest:
            refuse(f"Invalid value for '{param}': {len(value)} characters are too many, at most {longest} are allowed.{set_by(cap)}", param)

    return check


def one_of(*words: str) -> Check:
    """A check for one of a few strings."""
    allowed = frozenset(words)

    def check(value: object, param: str) -> None:
        if type(value) is not str:
            refuse_type("a string", value, param)
        if value not in allowed:
            refuse(f"Invalid value for '{param}': {shown(value)} is not one of {', '.join(words)}.", param)

    return check


def each(most: int, check_item: Check | None = None, *, least: int = 0, cap: str = "") -> Check:
    """A check for an array of `least` to `most` items, each of which passes `check_item`."""

    def check(value: object, param: str) -> None:
        if type(value) is not list:
            refuse_type("an array", value, param)
        if not least <= len(value) <= most:
            why = set_by(cap) if value else ""
            refuse(f"Invalid value for '{param}': {len(value)} items, where {least} to {most} are allowed.{why}", param)
        if check_item is not None:
            for index, item in enumerate(value):
                check_item(item, f"{param}[{index}]")

    return check


def either(first: Check, other: Check, kind: type) -> Check:
    """A check that applies `first` to values of `kind` and `other` to all others."""

    def check(value: object, param: str) -> None:
        (first if type(value) is kind else other)(value, param)

    return check


def weights(most: int, low: float, high: float, cap: str = "") -> Check:
    """A check for an object of at most `most` numbers in [low, high]."""
    check_weight = number(low, high)

    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        if len(value) > most:
            refuse(f"Invalid value for '{param}': {len(value)} entries are too many, at most {most} are allowed.{set_by(cap)}", param)
        for key, weight in value.items():
            check_weight(weight, f"{param}[{shown(key, 16)}]")

    return check


def check_depth(document: object, most_levels: int) -> None:
    """Check the levels of nested containers in a document that was read; the document itself is the first one. Raises Fault: INVALID_VALUE
    without a field, because every level belongs to several."""
    level = [document]
    for _ in range(most_levels):
        below: list[object] = []
        for container in level:
            values = container.values() if isinstance(container, dict) else container
            below += [value for value in values if type(value) is dict or type(value) is list]  # type: ignore[attr-defined]  # a list
        if not below:
            return
        level = below
    message = f"The request body is nested more than {most_levels} levels deep.{set_by('depth')}"
    raise Fault(Kind.INVALID_VALUE, message)


def schema(most_bytes: int, most_levels: int) -> Check:
    """A check for the size and depth of a JSON schema, or of an object that holds one. The engine judges its meaning."""

    def check(value: object, param: str) -> None:
        if type(value) is not dict:
            refuse_type("an object", value, param)
        encoded = _encode(value)
        if len(encoded) > most_bytes:
            message = f"Invalid value for '{param}': {len(encoded)} bytes are too many, at most {most_bytes} are allowed."
            refuse(message + set_by("schema_bytes"), param)
        if encoded.count(b"{") + encoded.count(b"[") <= most_levels:
            return  # too few containers to be nested too deep, as in most tools
        level: list[object] = [value]
        for _ in range(most_levels):
            below: list[object] = []
            for container in level:
                inner = list(container.values()) if type(container) is dict else container
                if type(inner) is list:
                    below += [item for item in inner if type(item) is dict or type(item) is list]
            if not below:
                return
            level = below
        refuse(f"Invalid value for '{param}': nested more than {most_levels} levels deep.{set_by('schema_depth')}", param)

    return check


def unsupported(why: str) -> Check:
    """A check that refuses a field, whatever its value."""

    def check(_value: object, param: str) -> None:
        raise Fault(Kind.UNSUPPORTED_PARAMETER, f"The parameter '{param}' is not supported: {why}.", param=param)

    return check
