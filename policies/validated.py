"""Validates located data against a strict model: pydantic's errors become Problems with file, line, key and a hint.

Messages show values only when they cannot be secret: not below keys that name secrets, and never as filled from the environment.
"""

import difflib
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from policies.literal_secrets import names_a_secret
from policies.located_yaml import Located
from policies.problems import ConfigError, Path_, Problem

MAX_SHOWN_CHARS: Final = 60

M = TypeVar("M", bound=BaseModel)

_HINTS: Final = {
    "missing": "write it",
    "float_type": "write a number without quotes or unit",
    "int_type": "write a whole number without quotes or unit",
    "int_from_float": "write a whole number",
    "finite_number": "write a number",
    "bool_type": "write true or false",
    "list_type": "write a list: [a, b] or lines that begin with a dash",
    "model_type": "write key: value lines",
    "string_pattern_mismatch": "use the characters that docs/configuration.md allows here",
}


def checked(model: type[M], located: Located) -> tuple[M | None, list[Problem]]:
    """The data as a strict model, and every problem in it; the model is None as soon as there is one.

    A problem that the YAML reader has reported already is not reported again.
    """
    problems = list(located.problems)
    try:
        value = model.model_validate(located.data)
    except ValidationError as error:
        # by line as well: of a key that is written twice, the first value is the one that was validated
        known = {(problem.path, problem.line) for problem in problems}
        for detail in error.errors(include_url=False):
            path = _written_path(located, tuple(detail["loc"]), missing=detail["type"] == "missing")
            problem = located.problem(path, *_message_and_hint(model, located, path, detail))
            if (problem.path, problem.line) not in known:
                problems.append(problem)
        return None, problems
    return (None if problems else value), problems


def validated(model: type[M], located: Located) -> M:
    """The data as a strict model.

    Raises:
        ConfigError: with every mistake, each at its line.
    """
    value, problems = checked(model, located)
    if value is None:
        raise ConfigError(problems)
    return value


def _message_and_hint(model: type[BaseModel], located: Located, path: Path_, detail: Any) -> tuple[str, str]:
    """Message and hint of one of pydantic's errors."""
    kind = detail["type"]
    message = detail["msg"]
    if kind == "extra_forbidden":
        known = _known_keys(model, located, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return "is no known key", f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    if kind == "value_error":
        text, _, hint = message.removeprefix("Value error, ").partition("; ")
        return text, hint
    if kind == "missing":
        return "is missing", _HINTS[kind]
    if kind in ("too_short", "too_long"):
        too_short = kind == "too_short"
        bound = detail["ctx"]["min_length" if too_short else "max_length"]
        return f"has {detail['ctx']['actual_length']} entries; {'at least' if too_short else 'at most'} {bound} can stand here", ""
    hint = _HINTS.get(kind, "")
    if kind == "string_type" and isinstance(detail["input"], bool | int | float):
        hint = "put it in quotes"
    return f"{message[0].lower()}{message[1:]}, not {_shown(located, path, detail['input'])}", hint


def _written_path(located: Located, loc: Path_, *, missing: bool) -> Path_:
    """Pydantic's location without the names of union members, which are not part of the file.

    Args:
        missing: keep the last step although it was not written, since the error is that it is missing.
    """
    path: Path_ = ()
    for i, step in enumerate(loc):
        if isinstance(step, int) or (*path, step) in located.positions or (missing and i == len(loc) - 1):
            path = (*path, step)
    return path


def _shown(located: Located, path: Path_, value: object) -> str:
    if names_a_secret(path):
        return "what was written"
    if path in located.written:
        value = located.written[path]
    # mappings and lists are not repeated: they might hold secrets
    return ascii(value)[:MAX_SHOWN_CHARS] if isinstance(value, str | int | float | bool | None) else f"a {_KIND.get(type(value), 'value')}"


_KIND: Final[dict[type, str]] = {dict: "mapping", list: "list"}


def _known_keys(model: type[BaseModel], located: Located, path: Path_) -> list[str]:
    """The keys that may stand at `path`."""
    at: type[BaseModel] | None = model
    named = False  # the previous step was a field of type dict, so this one is a free name
    for depth, step in enumerate(path):
        if isinstance(step, int) or at is None or named:
            named = False
            continue
        field = at.model_fields.get(step)
        named = field is not None and get_origin(field.annotation) is dict
        at = _discriminated(_models_in(field.annotation), located, path[: depth + 1]) if field else None
    return sorted(field.alias or name for name, field in at.model_fields.items()) if at else []


def _discriminated(models: list[type[BaseModel]], located: Located, path: Path_) -> type[BaseModel] | None:
    """The model whose discriminating literal field has the written value; the first model when none has."""
    for model in models:
        for name, field in model.model_fields.items():
            if get_origin(field.annotation) is Literal and get_args(field.annotation) == (located.value(*path, name),):
                return model
    return models[0] if models else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    arguments = getattr(annotation, "__args__", ())
    if arguments:
        return [model for argument in arguments for model in _models_in(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
