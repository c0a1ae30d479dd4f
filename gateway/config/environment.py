"""Environment variables that override keys of `tidegate.yaml`: `TIDEGATE__SECTION__KEY`, read by pydantic-settings.

`overridden` puts their values into the data of the file, so that the same model and the same checks apply to both; a mistake in such a
value names the variable where a mistake in the file names file and line. A mapping or a list is written as JSON. Variables that name no
setting are reported, and change nothing.

This module is imported only where such a variable is set: pydantic-settings takes longer to import than pydantic.
"""

import difflib
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict, SettingsError

from gateway.config.addresses import DOCS_VARIABLE
from gateway.config.settings import Settings
from policies.yaml.located import Located
from policies.yaml.problems import Path_

PREFIX: Final = "TIDEGATE__"
DELIMITER: Final = "__"


class SettingsOfEnvironment(Settings, BaseSettings):
    """The fields of `Settings` as pydantic-settings reads them. Never instantiated: the values go through `Settings`, with the file's."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=DELIMITER, env_ignore_empty=True)


class OneVariable(EnvSettingsSource):
    """The environment reduced to one variable, so that a value can be traced to its variable."""

    def __init__(self, name: str, text: str) -> None:
        self._variable = {name.lower(): text}
        super().__init__(SettingsOfEnvironment)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._variable


def overridden(located: Located, environ: Mapping[str, str]) -> tuple[Located, tuple[str, ...]]:
    """The file's data with the values of variables in it, and a sentence for each variable that names no setting. An empty variable is
    none, as pydantic-settings has it."""
    warnings = []
    if docs_url := environ.get(DOCS_VARIABLE):
        located = _with_value(located, ("docs_url",), docs_url, DOCS_VARIABLE)
    for name in sorted(name for name, text in environ.items() if name.upper().startswith(PREFIX) and text):
        path = tuple(name[len(PREFIX) :].lower().split(DELIMITER))
        if not _is_known(path):
            warnings.append(f"the environment variable {name[:120]} names no setting, so it changes nothing; {_remedy(path)}")
            continue
        try:
            value = _at(OneVariable(name, environ[name])(), path)
        except (SettingsError, KeyError, TypeError, RecursionError):  # the last ones: `null` for a section, brackets without end
            located = _with_problem(located, path, name)
        else:
            located = _with_value(located, path, value, name)
    return located, tuple(warnings)


def _at(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = values
    for step in path:
        value = value[step]
    return value


def _with_problem(located: Located, path: Path_, name: str) -> Located:
    """The data with a problem instead of the variable's value, which is not repeated: it may hold a secret."""
    marked = msgspec.structs.replace(located, positions=located.positions | {path: (0, 0)}, variables=located.variables | {path: name})
    problem = marked.problem(path, "is no JSON", 'write a mapping as {"key": "value"}, a list as ["a", "b"]')
    return msgspec.structs.replace(located, problems=(*located.problems, problem))


def _with_value(located: Located, path: tuple[str, ...], value: Any, name: str) -> Located:
    """The data with one more value. A mapping is merged with the file's key by key, as pydantic-settings merges its sources."""
    data = _put(located.data, path, value)
    keys = {path[:end] for end in range(1, len(path) + 1)} | {path + inner for inner, _ in _parts(value)}
    leaves = {path + inner: f"${{{name}}}" for inner, part in _parts(value) if not isinstance(part, dict | list)}
    # the file's values under a list or scalar that is replaced are gone, and with them their places
    gone = {key for key in located.positions if _is_replaced(key, path, value)}
    kept = {key: position for key, position in located.positions.items() if key not in gone}
    return msgspec.structs.replace(
        located,
        data=data,
        positions={key: (0, 0) for key in keys if key not in kept} | kept,
        written={key: text for key, text in located.written.items() if key not in gone} | leaves,
        variables={key: text for key, text in located.variables.items() if key not in gone}
        | {key: name for key in keys if key not in kept},
    )


def _is_replaced(key: Path_, path: tuple[str, ...], value: Any) -> bool:
    if key[: len(path)] != path:
        return False
    at = value
    for step in key[len(path) :]:
        if not isinstance(at, dict):
            return True
        if step not in at:
            return False
        at = at[step]
    return not isinstance(at, dict)


def _put(data: Any, path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of a mapping with `value` at `path`; whatever is no mapping on the way is replaced."""
    out = dict(data) if isinstance(data, dict) else {}
    step, *rest = path
    if rest:
        out[step] = _put(out.get(step), tuple(rest), value)
    elif isinstance(value, dict) and isinstance(out.get(step), dict):
        for key, part in value.items():
            out[step] = _put(out[step], (key,), part)
    else:
        out[step] = value
    return out


def _parts(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Every part of a value with its path, the value itself first."""
    yield path, value
    for step, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _parts(part, (*path, step))


def _is_known(path: tuple[str, ...]) -> bool:
    models: tuple[type[BaseModel], ...] = (Settings,)
    for step in path:
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        if not fields:
            return False
        models = tuple(_models_in(fields[0].annotation))
    return True


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold; those inside a list have no variable of their own."""
    if get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _models_in(member)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _names(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield prefix + name.upper()
        for inner in _models_in(field.annotation):
            yield from _names(inner, f"{prefix}{name.upper()}{DELIMITER}")


def _remedy(path: tuple[str, ...]) -> str:
    if path[0] in Settings.model_fields and get_origin(Settings.model_fields[path[0]].annotation) is list:
        return f"a list is set as a whole, in JSON, with {PREFIX}{path[0].upper()}"
    near = difflib.get_close_matches(DELIMITER.join(path).upper(), _names(Settings, ""), n=1)
    return f"did you mean {PREFIX}{near[0]}?" if near else f"names are {PREFIX}SECTION__KEY, as {PREFIX}DATA__BIND"
