"""Values that satisfy a JSON schema, and texts that match a regular expression: what a constrained answer of the simulated engine says.

`value_for` and `text_for` take a `Draw`, a deterministic source of choices: the same schema and seed give the same value. A value is
compared with its schema (`satisfies`) before it is used, so that a combination of keywords that the generator does not understand is
refused (`UnsupportedSchema`) and never answered wrongly.
"""

import contextlib
import hashlib
import importlib
import math
import re
from typing import Any, Final

MAX_DRAWS: Final = 100
"""Values made for one schema until one satisfies it; most need one, and `not` and `oneOf` a few."""
MAX_DEPTH: Final = 40
"""Nested schemas, references included; vLLM refuses deeper ones too."""
FULL_DEPTH: Final = 4
"""Nested schemas from which on optional members are left out, so that a schema that names itself ends."""
MAX_ITEMS: Final = 10_000
"""Longest array and longest text, so that a bound of a request does not decide how much memory the engine takes."""

_TYPES: Final = ("string", "integer", "number", "boolean", "object", "array", "null")
_REFUSED: Final = ("$dynamicRef", "$recursiveRef", "contains", "dependentSchemas", "if", "propertyNames", "unevaluatedProperties")
"""Keywords that restrict values and that neither the generator nor the check knows."""
_WORDS: Final = ("tide", "harbour", "gate", "pilot", "current", "stone", "morning", "signal")
_FORMATS: Final = {
    "date": "20[0-9]{2}-0[1-9]-1[0-9]",
    "time": "1[0-9]:[0-5][0-9]:[0-5][0-9]Z",
    "date-time": "20[0-9]{2}-0[1-9]-1[0-9]T1[0-9]:[0-5][0-9]:[0-5][0-9]Z",
    "duration": "P[1-9]D",
    "email": "[a-z]{6}@example\\.com",
    "hostname": "[a-z]{6}\\.example\\.com",
    "ipv4": "10\\.[1-9][0-9]\\.[1-9][0-9]\\.[1-9]",
    "ipv6": "2001:db8::[1-9a-f]{4}",
    "uri": "https://example\\.com/[a-z]{6}",
    "url": "https://example\\.com/[a-z]{6}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}",
}


class UnsupportedSchema(ValueError):
    """A schema or pattern that is invalid, contradictory, or beyond the generator."""


class Draw:
    """A deterministic source of choices."""

    def __init__(self, seed: bytes) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        """A number from 0 to `bound` - 1. Raises UnsupportedSchema where there is nothing to choose from."""
        if bound < 1:
            raise UnsupportedSchema("Grammar error: nothing to choose from")
        self._state = hashlib.blake2b(self._state, digest_size=16).digest()
        return int.from_bytes(self._state[:8]) % bound


def value_for(schema: Any, draw: Draw) -> Any:
    """A value that satisfies the schema. Raises UnsupportedSchema."""
    maker = _Maker(schema, draw)
    try:
        for _ in range(MAX_DRAWS):
            value = maker.value(schema, 0)
            if satisfies(value, schema, schema):
                return value
    except (TypeError, KeyError, AttributeError, re.error, OverflowError) as error:
        raise UnsupportedSchema(f"Grammar error: {error}") from None
    except RecursionError:
        raise UnsupportedSchema("Grammar error: the schema is nested too deeply") from None
    raise UnsupportedSchema("Grammar error: the simulated engine finds no value for this combination of keywords")


def text_for(pattern: str, draw: Draw) -> str:
    """A text that matches the whole pattern. Raises UnsupportedSchema."""
    try:
        text = _matching(importlib.import_module("re._parser").parse(pattern), draw, [])
        if re.fullmatch(pattern, text) is not None:
            return text
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedSchema(f"Grammar error: invalid pattern {pattern!r}: {error}") from None
    raise UnsupportedSchema(f"Grammar error: the simulated engine finds no text for the pattern {pattern!r}")


class _TooDeep(Exception):
    """A branch that does not end within `MAX_DEPTH`."""


class _Maker:
    """Makes values for one schema document."""

    def __init__(self, root: Any, draw: Draw) -> None:
        self._root = root
        self._draw = draw

    def value(self, schema: Any, depth: int) -> Any:
        try:
            return self._value(schema, depth)
        except _TooDeep:
            raise UnsupportedSchema("Grammar error: the schema has no value of finite depth") from None

    def _value(self, schema: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _TooDeep
        schema = _flat(schema, self._root, depth)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][self._draw.below(len(schema["enum"]))]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._branch({k: v for k, v in schema.items() if k != word}, schema[word], depth)
        return self._of_type(self._type_of(schema), schema, depth)

    def _branch(self, rest: dict[str, Any], branches: list[Any], depth: int) -> Any:
        first = self._draw.below(len(branches)) if depth < FULL_DEPTH else 0
        for i in range(len(branches)):
            branch = branches[(first + i) % len(branches)]
            with contextlib.suppress(_TooDeep):
                return self._value(_merged(rest, _flat(branch, self._root, depth)), depth + 1)
        raise _TooDeep

    def _type_of(self, schema: dict[str, Any]) -> str:
        named = schema.get("type")
        if isinstance(named, list):
            named = named[0] if len(named) == 1 else named[self._draw.below(len(named))]
        if named is None:
            words: dict[str, tuple[str, ...]] = {
                "object": ("properties", "required", "additionalProperties"),
                "array": ("items", "prefixItems", "minItems"),
                "integer": ("minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum"),
            }
            named = next((kind for kind, keys in words.items() if any(key in schema for key in keys)), "string")
        if named not in _TYPES:
            raise UnsupportedSchema(f"Grammar error: Invalid type: {named}")
        return str(named)

    def _of_type(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            return self._string(schema)
        if kind == "boolean":
            return bool(self._draw.below(2))
        return None if kind == "null" else self._number(schema, whole=kind == "integer")

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        names = [n for n in properties if n in required or depth < FULL_DEPTH]
        names += [n for n in required if n not in properties]
        more = schema.get("additionalProperties", True)
        value = {}
        for name in names:
            try:
                value[name] = self._value(properties.get(name, more), depth + 1)
            except _TooDeep:
                if name in required:
                    raise
        wanted = max(int(schema.get("minProperties", 0)), 0 if properties or more is True or more is False else 1)
        for i in range(wanted - len(value)):
            value[f"{_WORDS[i % len(_WORDS)]}{i}"] = self._value(more, depth + 1)
        return value

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        first = list(schema.get("prefixItems", []))
        least = int(schema.get("minItems", 0))
        most = int(schema.get("maxItems", max(least, len(first) + 2)))
        rest = schema.get("items", True)
        usual = len(first) if rest is False or (first and rest is True) else len(first) + 2
        count = max(least, min(most, usual if depth < FULL_DEPTH else least))
        if count > MAX_ITEMS:
            raise UnsupportedSchema(f"Grammar error: arrays of {count} items; the simulated engine makes at most {MAX_ITEMS}")
        items: list[Any] = []
        for i in range(count):
            try:
                item = self._value(first[i] if i < len(first) else rest, depth + 1)
                for _ in range(MAX_DRAWS if schema.get("uniqueItems") else 0):  # draw again until the item is a new one
                    if not any(_equal(item, other) for other in items):
                        break
                    item = self._value(first[i] if i < len(first) else rest, depth + 1)
                items.append(item)
            except _TooDeep:
                if len(items) < least:
                    raise
                break
        return items

    def _string(self, schema: dict[str, Any]) -> str:
        pattern = schema.get("pattern") or _FORMATS.get(schema.get("format", ""))
        if pattern is not None:
            return text_for(pattern, self._draw)
        least = int(schema.get("minLength", 0))
        most = int(schema.get("maxLength", MAX_ITEMS))
        if least > MAX_ITEMS:
            raise UnsupportedSchema(f"Grammar error: texts of {least} characters; the simulated engine makes at most {MAX_ITEMS}")
        words = [_WORDS[self._draw.below(len(_WORDS))] for _ in range(1 + self._draw.below(3))]
        text = " ".join(words)
        while len(text) < least:
            text += f" {_WORDS[self._draw.below(len(_WORDS))]}"
        return text[: max(least, min(most, len(text)))]

    def _number(self, schema: dict[str, Any], *, whole: bool) -> int | float:
        low, high = -math.inf, math.inf
        for bound in (schema.get("minimum"), schema.get("exclusiveMinimum")):
            low = max(low, bound) if bound is not None and not isinstance(bound, bool) else low
        for bound in (schema.get("maximum"), schema.get("exclusiveMaximum")):
            high = min(high, bound) if bound is not None and not isinstance(bound, bool) else high
        low = low if low > -math.inf else min(0, high - 100)
        high = high if high < math.inf else low + 100
        step = schema.get("multipleOf", 1 if whole else 0)
        if step:
            first = math.ceil(low / step) + (schema.get("exclusiveMinimum") is not None and math.ceil(low / step) * step <= low)
            last = math.floor(high / step) - (schema.get("exclusiveMaximum") is not None and math.floor(high / step) * step >= high)
            if last < first:
                raise UnsupportedSchema("Grammar error: no number lies within the bounds")
            value = (first + self._draw.below(int(last - first) + 1)) * step
            return int(value) if whole else value
        share = (1 + self._draw.below(97)) / 98  # never an end, which may be excluded
        value = low + (high - low) * share if high > low else low
        rounded = round(value, 2)
        return rounded if low < rounded < high else value


def satisfies(value: Any, schema: Any, root: Any) -> bool:
    """Whether the value satisfies the schema, whose references point into `root`, by every keyword that the generator knows."""
    if isinstance(schema, bool):
        return schema
    for word in _REFUSED:
        if word in schema:
            raise UnsupportedSchema(f"Grammar error: the simulated engine does not know the keyword {word}")
    if "$ref" in schema and not satisfies(value, _resolved(schema["$ref"], root), root):
        return False
    if "const" in schema and not _equal(value, schema["const"]):
        return False
    if "enum" in schema and not any(_equal(value, one) for one in schema["enum"]):
        return False
    kinds = schema.get("type", list(_TYPES))
    if not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    fits = [satisfies(value, one, root) for one in schema.get("allOf", [])]
    if not all(fits) or ("anyOf" in schema and not any(satisfies(value, one, root) for one in schema["anyOf"])):
        return False
    if "oneOf" in schema and sum(satisfies(value, one, root) for one in schema["oneOf"]) != 1:
        return False
    if "not" in schema and satisfies(value, schema["not"], root):
        return False
    if isinstance(value, dict):
        return _object_fits(value, schema, root)
    if isinstance(value, list):
        return _array_fits(value, schema, root)
    if isinstance(value, str):
        return _string_fits(value, schema)
    return _number_fits(value, schema) if _is(value, "number") else True


def _object_fits(value: dict[str, Any], schema: dict[str, Any], root: Any) -> bool:
    if any(name not in value for name in schema.get("required", [])):
        return False
    if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", math.inf):
        return False
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, member in value.items():
        known = [properties[name]] if name in properties else []
        known += [one for pattern, one in patterns.items() if re.search(pattern, name)]
        for one in known or [schema.get("additionalProperties", True)]:
            if not satisfies(member, one, root):
                return False
    return True


def _array_fits(value: list[Any], schema: dict[str, Any], root: Any) -> bool:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
        return False
    if schema.get("uniqueItems") and any(_equal(a, b) for i, a in enumerate(value) for b in value[:i]):
        return False
    first = schema.get("prefixItems", [])
    return all(satisfies(item, first[i] if i < len(first) else schema.get("items", True), root) for i, item in enumerate(value))


def _string_fits(value: str, schema: dict[str, Any]) -> bool:
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf):
        return False
    if "pattern" in schema and re.search(schema["pattern"], value) is None:
        return False
    shape = _FORMATS.get(schema.get("format", ""))
    return shape is None or "pattern" in schema or re.fullmatch(shape, value) is not None


def _number_fits(value: float, schema: dict[str, Any]) -> bool:
    if not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
        return False
    if not schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf):
        return False
    step = schema.get("multipleOf")
    return step is None or math.isclose(value / step, round(value / step), abs_tol=1e-9)


def _is(value: Any, kind: str) -> bool:
    if kind not in _TYPES:
        raise UnsupportedSchema(f"Grammar error: Invalid type: {kind}")
    if kind in ("integer", "number"):
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        return not isinstance(value, bool) and (whole or (kind == "number" and isinstance(value, float)))
    types = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    return isinstance(value, types[kind])


def _equal(a: Any, b: Any) -> bool:
    """Equality of JSON: `true` is not 1, at any depth."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return bool(a == b)


def _resolved(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        raise UnsupportedSchema(f"Grammar error: reference {reference!r} does not point into the schema")
    found = root
    for step in reference[1:].split("/")[1:]:
        found = found[step.replace("~1", "/").replace("~0", "~")]
    return found


def _flat(schema: Any, root: Any, depth: int) -> dict[str, Any]:
    """The schema with its references and `allOf` merged into it."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise UnsupportedSchema(f"Grammar error: no value satisfies {schema!r}")
    if depth > MAX_DEPTH:
        raise _TooDeep
    flat = {k: v for k, v in schema.items() if k not in ("$ref", "allOf")}
    if "$ref" in schema:
        flat = _merged(_flat(_resolved(schema["$ref"], root), root, depth + 1), flat)
    for part in schema.get("allOf", []):
        flat = _merged(flat, _flat(part, root, depth + 1))
    return flat


def _merged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """A schema whose values satisfy both, as far as its keywords can be joined; `satisfies` finds where they cannot."""
    merged = {**a, **b}
    for word in a.keys() & b.keys():
        if word == "properties":
            both = a[word].keys() & b[word].keys()
            merged[word] = {**a[word], **b[word], **{name: {"allOf": [a[word][name], b[word][name]]} for name in both}}
        elif word == "required":
            merged[word] = [*a[word], *(name for name in b[word] if name not in a[word])]
        elif word == "enum":
            merged[word] = [one for one in a[word] if any(_equal(one, other) for other in b[word])]
        elif word in ("minimum", "minLength", "minItems", "minProperties", "exclusiveMinimum"):
            merged[word] = max(a[word], b[word])
        elif word in ("maximum", "maxLength", "maxItems", "maxProperties", "exclusiveMaximum"):
            merged[word] = min(a[word], b[word])
        elif word == "type" and a[word] != b[word]:
            kinds = [[one] if isinstance(one, str) else one for one in (a[word], b[word])]
            merged[word] = [k for k in kinds[0] if k in kinds[1]] or (["integer"] if "integer" in (*kinds[0], *kinds[1]) else kinds[0])
    return merged


def _matching(parsed: Any, draw: Draw, groups: list[str]) -> str:
    """A text for a parsed regular expression; `groups` are the texts of the groups so far."""
    return "".join(_matching_one(str(code).lower(), value, draw, groups) for code, value in parsed)


def _matching_one(code: str, value: Any, draw: Draw, groups: list[str]) -> str:
    if code == "literal":
        return chr(value)
    if code == "any":
        return "abcdefgh"[draw.below(8)]
    if code in ("in", "not_literal"):
        letters = _letters([("negate", None), ("literal", value)] if code == "not_literal" else value)
        return letters[draw.below(len(letters))]
    if code == "branch":
        return _matching(value[1][draw.below(len(value[1]))], draw, groups)
    if code == "subpattern":
        groups.append(_matching(value[3], draw, groups))
        return groups[-1]
    if code in ("max_repeat", "min_repeat", "possessive_repeat"):
        low, high, inner = value
        if low > MAX_ITEMS:
            raise UnsupportedSchema(f"Grammar error: a pattern that repeats {low} times; at most {MAX_ITEMS}")
        return "".join(_matching(inner, draw, groups) for _ in range(low + draw.below(min(int(high) - low, 3) + 1)))
    if code == "at":
        return ""
    raise UnsupportedSchema(f"Grammar error: the simulated engine does not know the pattern element {code}")


_PRINTABLE: Final = [chr(code) for code in range(33, 127)]
_CATEGORIES: Final = {"digit": str.isdigit, "word": lambda c: c.isalnum() or c == "_", "space": str.isspace}


def _letters(members: Any) -> list[str]:
    """The characters of a character class, printable ones of ASCII where there are any."""
    negated = any(str(code).lower() == "negate" for code, _ in members)
    found: set[str] = set()
    for code, value in members:
        word = str(code).lower()
        if word == "literal":
            found.add(chr(value))
        elif word == "range":
            found |= {chr(c) for c in range(value[0], min(value[1], value[0] + 255) + 1)}
        elif word == "category":
            name = str(value).lower().removeprefix("category_")
            test = _CATEGORIES[name.removeprefix("not_")]
            found |= {c for c in [*_PRINTABLE, " "] if test(c) != name.startswith("not_")}
    letters = sorted(set(_PRINTABLE) - found if negated else found)
    if not letters:
        raise UnsupportedSchema("Grammar error: the simulated engine finds no character for a class of a pattern")
    return letters
