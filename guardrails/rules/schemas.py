"""JSON texts and JSON Schemas, both bounded: what a rule says of answers and of a tool's arguments. Pure.

The library `jsonschema` does the checking (extra `guards`; imported where a schema is made ready). What it must not do here is done
differently: `pattern` and `patternProperties` are RE2's, because a schema comes from a tenant; a `$ref` leads into the schema itself and
nowhere else; `uniqueItems` takes one pass; and keywords are counted, because a small schema can make a check exponential. `format` is not
checked. JSON that two readers may read differently (a key that stands twice, NaN, a number out of range) is no JSON.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

import re2

from guardrails.rules.pattern import MAX_CHARS, MAX_MEMORY_BYTES, MAX_PROGRAM

MAX_SCHEMA_BYTES: Final = 32 * 1024
"""The most bytes of a schema, written without spaces."""
MAX_SCHEMA_DEPTH: Final = 32
MAX_DEPTH: Final = 64
"""Levels of a JSON text; one that is deeper does not fit any schema."""
LEAST_STEPS: Final = 10_000
STEPS_PER_CHAR: Final = 16
"""Keywords that a check may evaluate, for each character of a JSON text. A value with its key has eight characters and more, and meets some
ten keywords in a plain schema; what is left is for `anyOf` and its like."""

_DRAFTS: Final = ("https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema")
_REFUSED: Final = {
    "$dynamicRef": "write $ref",
    "$recursiveRef": "write $ref",
    "unevaluatedProperties": "write additionalProperties",
    "unevaluatedItems": "write items",
}
_SUBSCHEMA: Final = frozenset(
    ("additionalProperties", "additionalItems", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then")
)
_LISTS: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_MAPS: Final = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions", "dependencies"))

Value = Any
"""A JSON value."""


class NotJson(ValueError):
    """A text that is no JSON."""


class TooMuchWork(RuntimeError):
    """A check that takes more steps than its text may cost."""


class _Steps:
    """How many steps a check has left."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


_steps: ContextVar[_Steps] = ContextVar("steps")


def parsed(text: str) -> Value:
    """The value of a JSON text.

    Raises:
        NotJson: the text is none, or readers may differ about it.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise NotJson(str(error)) from None


class Schema:
    """A schema made ready.

    Args:
        written: the schema; draft 2020-12, or draft 7 where `$schema` says so.

    Raises:
        ValueError: the schema is too large or none, an expression is none of RE2's, a `$ref` leads elsewhere or nowhere, or the package is
            not installed.
    """

    def __init__(self, written: Mapping[str, Value]) -> None:
        try:
            size = len(json.dumps(written, separators=(",", ":"), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the schema cannot be written as JSON: {error}") from None
        if size > MAX_SCHEMA_BYTES:
            raise ValueError(f"the schema has {size} bytes; at most {MAX_SCHEMA_BYTES} can stand here")
        draft = written.get("$schema", _DRAFTS[0])
        if not isinstance(draft, str) or draft.rstrip("#") not in _DRAFTS:
            raise ValueError(f"$schema is {draft!r}; known are {' and '.join(_DRAFTS)}")
        schema = {key: value for key, value in written.items() if key not in ("$id", "$schema")}
        _check(schema, schema, "", 1)
        self._is_valid = _validator(draft.rstrip("#") == _DRAFTS[1], schema)
        try:
            trials: tuple[Value, ...] = (None, {}, [], "", 0)
            for value in trials:
                self.fits(value, 2)
        except (RecursionError, TooMuchWork):
            raise ValueError("the schema refers to itself without end; a $ref to itself has to stand below properties or items") from None

    def fits(self, value: Value, chars: int) -> bool:
        """Whether a value fits.

        Args:
            chars: the length of its JSON text, which bounds the steps.

        Raises:
            TooMuchWork: the check takes too many steps.
        """
        if _is_deeper(value, MAX_DEPTH):
            return False
        token = _steps.set(_Steps(LEAST_STEPS + STEPS_PER_CHAR * chars))
        try:
            return self._is_valid(value)
        finally:
            _steps.reset(token)


def _object(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _constant(name: str) -> Value:
    raise ValueError(f"{name} is no number of JSON")


def _number(written: str) -> float:
    number = float(written)
    if number in (float("inf"), float("-inf")):
        raise ValueError("a number is out of range")
    return number


def _is_deeper(value: Value, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner for outer in layer if isinstance(outer, dict | list) for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return any(isinstance(inner, dict | list) for inner in layer)


def _check(schema: Value, root: Mapping[str, Value], place: str, depth: int) -> None:
    """Refuse what is not checked here, or not within bounds. Only where a schema stands: a `const` may hold anything."""
    if not isinstance(schema, dict):
        return
    if depth > MAX_SCHEMA_DEPTH:
        raise ValueError(f"the schema is deeper than {MAX_SCHEMA_DEPTH} levels at {place}")
    for key, value in schema.items():
        at = f"{place}/{key}"
        if key in _REFUSED:
            raise ValueError(f"the schema has {key} at {at}, which is not supported; {_REFUSED[key]}")
        if key == "$id":
            raise ValueError(f"the schema has a $id at {at}; only the whole schema may have one")
        if key == "$ref":
            _check_ref(value, root, at)
        elif key == "pattern" and isinstance(value, str):
            _expression(value)
        elif key in _MAPS and isinstance(value, dict):
            for name, inner in value.items():
                if key == "patternProperties":
                    _expression(name)
                _check(inner, root, f"{at}/{name}", depth + 1)
        elif key in _LISTS and isinstance(value, list):
            for index, inner in enumerate(value):
                _check(inner, root, f"{at}/{index}", depth + 1)
        elif key in _SUBSCHEMA:
            _check(value, root, at, depth + 1)


def _check_ref(ref: Value, root: Mapping[str, Value], place: str) -> None:
    if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
        raise ValueError(f"the $ref at {place} is {ref!r}; a $ref leads into the schema itself, as '#/$defs/NAME', and nothing is fetched")
    at: Value = root
    for step in ref.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        at = (
            at.get(step)
            if isinstance(at, dict)
            else at[int(step)]
            if isinstance(at, list) and step.isdecimal() and int(step) < len(at)
            else None
        )
    if not isinstance(at, dict | bool):
        raise ValueError(f"the $ref at {place} leads to {ref}, where no schema stands")


@lru_cache(maxsize=1000)
def _expression(pattern: str) -> Callable[[str], object]:
    """What searches an expression in a text. Raises ValueError."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY_BYTES
    if len(pattern) > MAX_CHARS:
        raise ValueError(f"a pattern has {len(pattern)} characters; at most {MAX_CHARS} can stand here")
    try:
        expression = re2.compile(pattern.encode(), options=options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"RE2 refuses the pattern {pattern!r}: {error}; RE2 has no look-ahead, look-behind or back-references") from None
    if expression.programsize > MAX_PROGRAM:
        raise ValueError(f"the pattern {pattern!r} is too large ({expression.programsize} instructions; at most {MAX_PROGRAM})")
    return lambda text: expression.search(text.encode("utf-8", "replace"))


def _validator(is_draft7: bool, schema: Mapping[str, Value]) -> Callable[[Value], bool]:
    """What says whether a value fits a schema. Raises ValueError."""
    try:
        from jsonschema import Draft7Validator, Draft202012Validator, FormatChecker
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import extend
        from referencing import Registry
    except ImportError:
        raise ValueError("a JSON Schema needs a package that is not installed: pip install 'tidegate[guards]'") from None
    draft = Draft7Validator if is_draft7 else Draft202012Validator
    try:
        draft.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError as error:
        raise ValueError(f"the schema is none: {error.message}, at /{'/'.join(map(str, error.absolute_path))}") from None
    keywords = {
        **draft.VALIDATORS,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    made: Any = extend  # the library's types leave it out
    is_valid: Callable[[Value], bool] = made(draft, {name: _counted(keyword) for name, keyword in keywords.items()})(
        schema, registry=Registry()
    ).is_valid
    return is_valid


Keyword = Callable[[Any, Any, Any, Any], Any]
"""A keyword of a schema, as the library calls it: validator, the keyword's value, the value that is checked, the schema around it."""


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spend(1)
        return keyword(validator, value, instance, schema)

    return counted


def _spend(count: int) -> None:
    steps = _steps.get()
    steps.left -= count
    if steps.left < 0:
        raise TooMuchWork("the check of a schema takes too many steps")


def _wrong(message: str) -> Any:
    from jsonschema import ValidationError

    return ValidationError(message)


def _pattern(_validator: Any, pattern: str, instance: Value, _schema: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _expression(pattern)(instance):
        yield _wrong("does not match a pattern")


def _pattern_properties(validator: Any, patterns: Mapping[str, Value], instance: Value, _schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    _spend(len(patterns) * len(instance))
    for pattern, inner in patterns.items():
        search = _expression(pattern)
        for name, value in instance.items():
            if search(name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, rest: Value, instance: Value, schema: Mapping[str, Value]) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    patterns = [_expression(pattern) for pattern in schema.get("patternProperties", ())]
    _spend(len(patterns) * len(instance))
    known = schema.get("properties", {})
    for name, value in instance.items():
        if name not in known and not any(search(name) for search in patterns):
            yield from validator.descend(value, rest, path=name)


def _unique_items(_validator: Any, is_unique: Value, instance: Value, _schema: Any) -> Iterator[Any]:
    if is_unique and isinstance(instance, list) and len({_canonical(item) for item in instance}) < len(instance):
        yield _wrong("has an item twice")


def _canonical(value: Value) -> str:
    """Values that are equal in JSON Schema have one form: 1 and 1.0 do, 1 and true do not."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: Value) -> Value:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(inner) for key, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
