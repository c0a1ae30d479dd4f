"""YAML with positions: plain data, and for every value the line it was written on, so that errors can point at it.

Reads the safe subset only: mappings with string keys, lists and scalars. Knows nothing of what the data means.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import yaml
from pydantic import BaseModel, ValidationError

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_NODES: Final = 50_000
"""Values in one file; a policy for a thousand models has about 10,000. Bounds what an alias bomb could unfold to."""

M = TypeVar("M", bound=BaseModel)

Path_ = tuple[str | int, ...]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Problem(msgspec.Struct, frozen=True, order=True):
    """One mistake: where, what, and what to write instead."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}"
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class ConfigError(Exception):
    """A file, or several, that cannot be used; `problems` has every mistake found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, sorted(problems))))
        self.problems = tuple(sorted(problems))


class Located(msgspec.Struct, frozen=True):
    """Plain data with the position (line, column, both from 1) of every path in it."""

    file: str
    data: dict[str, Any]
    positions: dict[Path_, tuple[int, int]]

    def problem(self, path: Path_, message: str) -> Problem:
        """A problem at `path`, or at the nearest place above it that was written."""
        at = path
        while at and at not in self.positions:
            at = at[:-1]
        line, column = self.positions.get(at, (1, 1))
        return Problem(self.file, line, column, dotted(path), message)


def dotted(path: Path_) -> str:
    """`("pools", 0, "model")` as `pools[0].model`."""
    out = ""
    for step in path:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out


def read_yaml(path: Path, environ: Mapping[str, str]) -> Located:
    """Read one file; `${NAME}` in values is replaced from `environ`.

    Raises:
        ConfigError: it cannot be read, is no YAML mapping, repeats a key, or names an unset variable.
    """
    name = path.name
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError([Problem(str(path), 1, 1, "", f"cannot be read: {error.strerror}")]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([Problem(name, 1, 1, "", f"has {len(raw)} bytes; {MAX_FILE_BYTES} are allowed")])
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError([Problem(name, line, 1, "", "is not UTF-8; save it as UTF-8")]) from None
    return parse_yaml(text, name, environ)


def parse_yaml(text: str, file: str, environ: Mapping[str, str]) -> Located:
    """`read_yaml` for text at hand; `file` is its name in messages."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError([Problem(file, line, column, "", f"is not valid YAML: {error.problem or error.context}")]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError([Problem(file, 1, 1, "", f"is not valid YAML: {str(error).splitlines()[0]}")]) from None
    if node is None:
        return Located(file, {}, {(): (1, 1)})
    builder = _Builder(file, environ)
    data = builder.build(node, ())
    if not isinstance(data, dict):
        builder.complain(node, (), "must be a mapping of settings (key: value)")
    if builder.problems:
        raise ConfigError(builder.problems)
    return Located(file, data, builder.positions)


class _Builder:
    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self._file = file
        self._environ = environ
        self._constructor = yaml.constructor.SafeConstructor()
        self._nodes = 0
        self.positions: dict[Path_, tuple[int, int]] = {}
        self.problems: list[Problem] = []

    def complain(self, node: yaml.Node, path: Path_, message: str) -> None:
        mark = node.start_mark
        self.problems.append(Problem(self._file, mark.line + 1, mark.column + 1, dotted(path), message))

    def build(self, node: yaml.Node, path: Path_) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or len(path) > 32:
            if self._nodes == MAX_NODES + 1 or len(path) == 33:
                self.complain(node, path, "is too large or too deep")
            return None
        self.positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                self.complain(key_node, path, f"key {key_node.value!r} must be a string; put it in quotes")
                continue
            key = key_node.value
            if key in out:
                self.complain(key_node, (*path, key), "is written twice; keep one")
                continue
            self.positions[(*path, key)] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            out[key] = self.build(value_node, (*path, key))
        return out

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        if node.tag == "tag:yaml.org,2002:str":
            return self._filled_in(node, path)
        if node.tag not in {f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float")}:
            self.complain(node, path, f"has the type {node.tag.rpartition(':')[2]!r}, which is not allowed here; put it in quotes")
            return None
        try:
            return self._constructor.construct_object(node)  # type: ignore[no-untyped-call]  # PyYAML's constructor has no types
        except (yaml.YAMLError, ValueError, OverflowError):
            self.complain(node, path, f"{str(node.value)[:40]!r} is no usable number")
            return None

    def _filled_in(self, node: yaml.Node, path: Path_) -> str:
        text: str = node.value

        def value_of(match: re.Match[str]) -> str:
            name = match[1]
            if name not in self._environ:
                self.complain(node, path, f"the environment variable {name} is not set")
                return ""
            return self._environ[name]

        return _VARIABLE.sub(value_of, text) if "${" in text else text


def validated(model: type[M], located: Located) -> M:
    """The data as a strict model.

    Raises:
        ConfigError: with every mistake pydantic finds, each at its line.
    """
    try:
        return model.model_validate(located.data)
    except ValidationError as error:
        raise ConfigError([_as_problem(model, located, found) for found in error.errors(include_url=False)]) from None


def _as_problem(model: type[BaseModel], located: Located, found: Any) -> Problem:
    path: Path_ = tuple(found["loc"])
    kind, message = found["type"], found["msg"]
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _siblings(model, path[:-1]), n=1)
        message = "unknown key" + (f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(_siblings(model, path[:-1]))}")
    elif kind == "missing":
        message = "is missing"
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
    else:
        message = f"{message[0].lower()}{message[1:]}, not {_shown(found['input'])}"
    return located.problem(path, message)


def _siblings(model: type[BaseModel], path: Path_) -> list[str]:
    """The keys that may stand at `path`."""
    at: Any = model
    for step in path:
        if isinstance(step, int) or not (isinstance(at, type) and issubclass(at, BaseModel)):
            continue
        field = at.model_fields.get(step)
        at = next((t for t in _flat(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)), None) if field else None
    return sorted(at.model_fields) if isinstance(at, type) and issubclass(at, BaseModel) else []


def _flat(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", ())
    return [annotation] if not arguments else [inner for argument in arguments for inner in _flat(argument)]


def _shown(value: object) -> str:
    """A value for a message; long ones and mappings are not repeated, they might hold what should not be printed."""
    return repr(value)[:60] if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
