"""What pydantic found wrong with a value, in this project's words: files, the admin API, launch configurations and imports say the same.

The library's own messages name Python's types ("valid dictionary", "instance of RolloutDocument"), and begin with "Input should be" or
"Value error,". `words` makes the rest of the sentence that begins with the place: `workers: must be at most 64`. Pure.
"""

from collections.abc import Mapping
from typing import Any, Final

_MUST_BE: Final[Mapping[str, str]] = {
    "none_required": "null",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "string_not_ascii": "text in ASCII",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "iterable_type": "a list",
    "date_type": "a date such as 2026-01-31",
    "date_parsing": "a date such as 2026-01-31",
    "datetime_type": "a time such as 2026-01-31T12:00:00Z",
    "datetime_parsing": "a time such as 2026-01-31T12:00:00Z",
    "datetime_from_date_parsing": "a time such as 2026-01-31T12:00:00Z",
    "timezone_aware": "a time with its zone, such as 2026-01-31T12:00:00Z",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "multiple_of": "a multiple of {multiple_of}",
    "literal_error": "{expected}",
    "enum": "{expected}",
}
"""What the value must be, by pydantic's kind of error, with the members of its context."""

_MAPPINGS: Final = frozenset({"model_type", "model_attributes_type", "dict_type", "mapping_type", "dataclass_type", "frozen_dict_type"})

_OTHERS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is no known field",
    "invalid_key": "has a key that is no text",
    "json_invalid": "is no JSON",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "union_tag_not_found": "does not say of which kind it is",
    "union_tag_invalid": "must be of one of these kinds: {expected_tags}",
    "recursion_loop": "contains itself",
}

_LENGTHS: Final[Mapping[str, tuple[str, str, str]]] = {
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
    "too_short": ("at least", "min_length", "entry"),
    "too_long": ("at most", "max_length", "entry"),
}

UNKNOWN: Final = "cannot be used here"
"""For a kind of error that no model of the project has made so far."""


def words(detail: Mapping[str, Any], mapping: str = "a mapping") -> str:
    """One of pydantic's errors as the rest of a sentence about the value; a validator's own text where it raised one.

    Args:
        detail: an element of `ValidationError.errors()`.
        mapping: what the format of the document calls a mapping.
    """
    kind = detail["type"]
    # a bound of 2.0 reads 2
    context = {name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in (detail.get("ctx") or {}).items()}
    if kind in ("value_error", "assertion_error"):
        return str(context["error"]) or UNKNOWN
    if kind in _MUST_BE:
        return f"must be {_MUST_BE[kind].format(**context)}"
    if kind in _MAPPINGS:
        return f"must be {mapping}"
    if kind in _LENGTHS:
        bound, name, unit = _LENGTHS[kind]
        number = context[name]
        if bound == "at least" and number == 1:
            return "must not be empty"
        plural = unit if number == 1 else {"entry": "entries"}.get(unit, f"{unit}s")
        return f"must have {bound} {number} {plural}"
    return _OTHERS[kind].format(**context) if kind in _OTHERS else UNKNOWN
