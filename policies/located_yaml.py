"""YAML with positions: plain data, and for every value the line it was written on, so that errors can point at it.

Reads mappings with text keys, lists and scalars from the parser's events and builds nothing else: no tag makes an object.
Must not know what the data means; `policies.validated` does, through a model.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from policies.problems import ConfigError, Path_, Problem, dotted
from policies.yaml_scalars import Scalar, filled, resolved

MAX_FILE_BYTES: Final = 1024 * 1024
"""One file. A policy for a thousand models has about 34 kB."""

MAX_VALUES: Final = 50_000
"""Values in one file, aliases unfolded; the policy above has about 3,000. Ends an alias bomb before it grows."""

MAX_DEPTH: Final = 32
"""Nesting of one file; `tidegate.yaml` needs 6."""

# libyaml's parser took 16 ms where PyYAML's own took 336 (5,000 models); PyYAML's own one stands in where the wheel lacks it
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Located(msgspec.Struct, frozen=True):
    """Plain data with the position (line, column) of every path in it.

    `problems` are the mistakes that do not keep the rest from being read; who uses the data must report them too.
    """

    file: str
    data: dict[str, Any]
    positions: dict[Path_, tuple[int, int]]
    written: dict[Path_, str] = {}
    """Values that had variables in them, as written: what may be shown, since the environment may hold secrets."""
    problems: tuple[Problem, ...] = ()

    def problem(self, path: Path_, message: str, hint: str = "") -> Problem:
        """A problem at `path`, or at the nearest place above it that was written."""
        at = path
        while at and at not in self.positions:
            at = at[:-1]
        line, column = self.positions.get(at, (1, 1))
        return Problem(self.file, line, column, dotted(path), message, hint)

    def value(self, *path: str | int) -> Any:
        """What stands at `path`, or None; whatever the file looks like."""
        at: Any = self.data
        for step in path:
            if isinstance(step, str) and isinstance(at, dict):
                at = at.get(step)
            elif isinstance(step, int) and isinstance(at, list) and step < len(at):
                at = at[step]
            else:
                return None
        return at


def read_yaml(path: Path, environ: Mapping[str, str] | None) -> Located:
    """Read one file.

    Args:
        path: at most `MAX_FILE_BYTES` of UTF-8.
        environ: what `${NAME}` in values is replaced from; None where variables are not offered.

    Raises:
        ConfigError: it cannot be read, or is no YAML mapping.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name holds a null byte"
        raise ConfigError([Problem(str(path), 1, 1, "", f"cannot be read: {reason}", "name a file that this user may read")]) from None
    return parse_yaml(raw, str(path), environ)


def parse_yaml(raw: bytes, file: str, environ: Mapping[str, str] | None) -> Located:
    """`read_yaml` for bytes at hand; `file` is their name in messages."""
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([Problem(file, 1, 1, "", f"has more than {MAX_FILE_BYTES} bytes", "split it")])
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(file, raw[: error.start].count(b"\n") + 1, 1, "", "is not UTF-8", "save it as UTF-8")]) from None
    builder = _Builder(file, environ)
    try:
        builder.read(_LOADER(raw))
    except _TooMuch as error:
        raise ConfigError([*builder.problems, error.problem]) from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError([*builder.problems, _syntax_problem(file, error)]) from None
    except yaml.YAMLError as error:
        line = raw[: getattr(error, "position", 0)].count(b"\n") + 1
        reason = getattr(error, "reason", "unreadable")
        raise ConfigError([*builder.problems, Problem(file, line, 1, "", f"is not valid YAML: {reason}")]) from None
    data = {} if builder.root is None else builder.root
    if not isinstance(data, dict):
        builder.complain(builder.positions[()], (), "must be a mapping of settings", "write key: value lines")
        raise ConfigError(builder.problems)
    positions = {(): (1, 1)} | builder.positions  # an empty file has no event to take it from
    return Located(file, data, positions, builder.written, tuple(builder.problems))


def _syntax_problem(file: str, error: yaml.MarkedYAMLError) -> Problem:
    mark, began = error.problem_mark or error.context_mark, error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    said = ", ".join(filter(None, (error.context, error.problem)))
    hint = f"what is not finished there began on line {began.line + 1}" if began and began.line + 1 != line else ""
    return Problem(file, line, column, "", f"is not valid YAML: {said}", hint)


class _TooMuch(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Open:
    """A mapping or list that is not over; `key` waits for its value, whose path is `inner`; `lost`: that value will be dropped."""

    __slots__ = ("anchor", "inner", "is_list", "key", "lost", "out", "path")

    def __init__(self, out: dict[str, Any] | list[Any], path: Path_, anchor: str | None) -> None:
        self.out = out
        self.is_list = isinstance(out, list)
        self.path = self.inner = path
        self.anchor = anchor
        self.key: str | None = None
        self.lost = False


class _Builder:
    """Takes the parser's events one by one; an explicit stack, so that depth costs no recursion."""

    def __init__(self, file: str, environ: Mapping[str, str] | None) -> None:
        self._file = file
        self._environ = environ
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Path_, Any]] = {}
        self._texts: set[str] = set()  # keys that are known to be texts: most are written again and again
        self._values = self._documents = 0
        self.root: Any = None
        self.positions: dict[Path_, tuple[int, int]] = {}
        self.written: dict[Path_, str] = {}
        self.problems: list[Problem] = []

    def complain(self, at: tuple[int, int], path: Path_, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self._file, *at, dotted(path), message, hint))

    def read(self, parser: Any) -> None:
        """All of them; by their type, of which there are no kinds of kinds, since a thousand policies have half a million events."""
        takes: dict[type, Callable[[Any], None]] = {
            yaml.DocumentStartEvent: self._document,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.ScalarEvent: self._node,
            yaml.MappingStartEvent: self._node,
            yaml.SequenceStartEvent: self._node,
            yaml.AliasEvent: self._node,
        }
        following = parser.get_event
        try:
            while (event := following()) is not None:
                take = takes.get(type(event))
                if take is not None:
                    take(event)
        finally:
            parser.dispose()

    def _document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _TooMuch(Problem(self._file, *_at(event), "", "holds a second document", "remove the line ---, or use two files"))

    def _end(self, _event: yaml.CollectionEndEvent) -> None:
        done = self._stack.pop()
        self._place(done.out, done.path, done.anchor)

    def _node(self, event: Any) -> None:
        top = self._stack[-1] if self._stack else None
        if top is None:
            self._value(event, ())
        elif top.is_list:
            self._value(event, (*top.path, len(top.out)))
        elif top.key is None:
            self._key(event, top)
        else:
            self._value(event, top.inner)

    def _key(self, event: Any, top: _Open) -> None:
        at = _at(event)
        if type(event) is not yaml.ScalarEvent:
            self.complain(at, top.path, "a key must be plain text", "write key: value lines")
            top.key, top.inner, top.lost = "?", (*top.path, "?"), True
            if isinstance(event, yaml.CollectionStartEvent):
                raise _TooMuch(self.problems.pop())  # what follows cannot be told apart from the mapping around it
            return
        key = event.value
        path = (*top.path, key)
        top.key, top.inner, top.lost = key, path, False
        odd = key not in self._texts and ((event.implicit[0] and not isinstance(resolved(key), str)) or key == "<<")
        if odd or event.tag not in (None, "!"):
            self.complain(
                at, top.path, f"the key {key[:40]!r} is not text", "put it in quotes" if key != "<<" else "merge keys are not read here"
            )
            top.lost = True
        elif key in top.out:
            self.complain(at, path, "is written twice", "keep one")
            top.lost = True
        else:
            self.positions[path] = at
            if event.implicit[0]:  # without quotes
                self._texts.add(key)

    def _value(self, event: Any, path: Path_) -> None:
        at = _at(event)
        self._count(path, at)
        self.positions.setdefault(path, at)
        kind = type(event)
        if kind is yaml.AliasEvent:
            self._alias(event, path, at)
            return
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self.complain(at, path, f"has the tag {event.tag.removeprefix('tag:yaml.org,2002:')[:60]!r}", "write the value without a tag")
        if kind is yaml.ScalarEvent:
            plain = event.tag is None and event.implicit[0]
            self._place(self._scalar(event.value, plain, path, at), path, event.anchor)
        else:
            self._stack.append(_Open({} if kind is yaml.MappingStartEvent else [], path, event.anchor))

    def _place(self, value: Any, path: Path_, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (path, value)
        if not self._stack:
            self.root = value
            return
        top = self._stack[-1]
        if top.is_list:
            top.out.append(value)  # type: ignore[union-attr]  # it is one
            return
        if top.key is not None and not top.lost:
            top.out[top.key] = value  # type: ignore[call-overload]  # it is no list
        top.key = None

    def _alias(self, event: yaml.AliasEvent, path: Path_, at: tuple[int, int]) -> None:
        anchor = event.anchor or ""
        source, value = self._anchors.get(anchor, ((), None))
        if anchor not in self._anchors:
            self.complain(at, path, f"*{anchor} refers to nothing that ends above it", f"define &{anchor} first")
        self._place(self._copy(value, source, path, at), path, None)

    def _copy(self, value: Any, source: Path_, path: Path_, at: tuple[int, int]) -> Any:
        """A value again at `path`; its parts keep the position they were written at."""
        if source in self.written:
            self.written[path] = self.written[source]
        parts: list[tuple[str | int, Any]]
        if isinstance(value, dict):
            parts = list(value.items())
        elif isinstance(value, list):
            parts = list(enumerate(value))
        else:
            return value
        copies = []
        for step, part in parts:
            inner, origin = (*path, step), (*source, step)
            self._count(inner, at)
            self.positions.setdefault(inner, self.positions.get(origin, at))
            copies.append((step, self._copy(part, origin, inner, at)))
        return dict(copies) if isinstance(value, dict) else [copy for _, copy in copies]

    def _count(self, path: Path_, at: tuple[int, int]) -> None:
        self._values += 1
        if self._values > MAX_VALUES:
            raise _TooMuch(Problem(self._file, *at, "", f"has more than {MAX_VALUES} values", "split it, and use fewer aliases"))
        if len(path) > MAX_DEPTH:
            raise _TooMuch(Problem(self._file, *at, "", f"is nested more than {MAX_DEPTH} deep", "write it flatter"))

    def _scalar(self, text: str, plain: bool, path: Path_, at: tuple[int, int]) -> Scalar:
        if "${" in text:
            self.written[path] = text
            text = filled(text, self._environ, lambda message, hint: self.complain(at, path, message, hint))
        value = resolved(text) if plain else text
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            self.complain(at, path, "is too large a number", "write a smaller one")
            return None
        return value


def _at(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)


__all__ = ["ConfigError", "Located", "Path_", "Problem", "dotted", "parse_yaml", "read_yaml"]
