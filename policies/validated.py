"""Located data to a strict model: what pydantic finds, as Problems with file, line, key and what to write instead.

Values are shown only where they cannot be secret: not below keys that name secrets, and never as filled from the environment.
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
    """The data as a strict model, and every mistake in it; the model is None as soon as there is one.

    What the reader has complained about already is not complained about again.
    """
    problems = list(located.problems)
    try:
        value = model.model_validate(located.data)
    except ValidationError as error:
        # by line as well: a key written twice has its value checked where it was written first
        known = {(problem.path, problem.line) for problem in problems}
        for found in error.errors(include_url=False):
            path = _written_path(located, tuple(found["loc"]), missing=found["type"] == "missing")
            problem = located.problem(path, *_said(model, located, path, found))
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


def _said(model: type[BaseModel], located: Located, path: Path_, found: Any) -> tuple[str, str]:
    """Message and hint of one of pydantic's errors."""
    kind, message = found["type"], found["msg"]
    if kind == "extra_forbidden":
        known = _known_keys(model, located, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return "is no known key", f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    if kind == "value_error":
        said, _, hint = message.removeprefix("Value error, ").partition("; ")
        return said, hint
    if kind == "missing":
        return "is missing", _HINTS[kind]
    if kind in ("too_short", "too_long"):
        least = kind == "too_short"
        bound = found["ctx"]["min_length" if least else "max_length"]
        return f"has {found['ctx']['actual_length']} entries; {'at least' if least else 'at most'} {bound} can stand here", ""
    hint = _HINTS.get(kind, "")
    if kind == "string_type" and isinstance(found["input"], bool | int | float):
        hint = "put it in quotes"
    return f"{message[0].lower()}{message[1:]}, not {_shown(located, path, found['input'])}", hint


def _written_path(located: Located, loc: Path_, *, missing: bool) -> Path_:
    """Pydantic's location without the names of union members, which were not written by anybody.

    Args:
        missing: the last step was not written either, and should have been.
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
    # mappings and lists are not repeated: they might hold what should not be printed
    return ascii(value)[:MAX_SHOWN_CHARS] if isinstance(value, str | int | float | bool | None) else f"a {_KIND.get(type(value), 'value')}"


_KIND: Final[dict[type, str]] = {dict: "mapping", list: "list"}


def _known_keys(model: type[BaseModel], located: Located, path: Path_) -> list[str]:
    """The keys that may stand at `path`."""
    at: type[BaseModel] | None = model
    named = False  # the step before was a mapping's field, so this one is a name that somebody chose
    for depth, step in enumerate(path):
        if isinstance(step, int) or at is None or named:
            named = False
            continue
        field = at.model_fields.get(step)
        named = field is not None and get_origin(field.annotation) is dict
        at = _meant(_models_in(field.annotation), located, path[: depth + 1]) if field else None
    return sorted(field.alias or name for name, field in at.model_fields.items()) if at else []


def _meant(models: list[type[BaseModel]], located: Located, path: Path_) -> type[BaseModel] | None:
    """Of models that are told apart by a fixed value, the one whose value was written; the first of others."""
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
