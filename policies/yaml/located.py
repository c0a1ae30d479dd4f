"""YAML with positions: plain data, and the line and column of every value, so that errors can point at it.

Reads mappings with text keys, lists and scalars from the parser's events and builds nothing else: no tag makes an object. A scalar's
meaning (a plain word, an environment variable in it) is decided here too. The meaning of the data is left to `policies.yaml.validate`,
which checks it against a model.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from policies.yaml.problems import ConfigError, Path_, Problem, dotted

MAX_FILLED_CHARS: Final = 65_536
"""Length of one value after its variables were replaced."""

MAX_NAME_CHARS: Final = 64
"""Characters of a variable's name that messages repeat."""

Scalar = str | int | float | bool | None

_DOLLAR: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,300}")
_BASED: Final = re.compile(r"0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]{1,300}|[0-9]{1,300}(?:\.[0-9]{0,300})?)(?:[eE][-+]?[0-9]{1,5})?")
_NUMERIC: Final = frozenset("0123456789+-.")
"""The characters that numbers begin with."""
_WORDS: Final[dict[str, bool | None]] = (
    dict[str, bool | None].fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
)
"""YAML 1.2's core words. 1.1's yes, no, on and off stay text: a tenant may be called `no`, and a number is never base 60."""


def resolved(text: str) -> Scalar:
    """A plain scalar as YAML 1.2's core schema reads it; `.inf` and `.nan` stay text, and 1e999 becomes infinity."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:  # most words; trying the three patterns takes four times as long
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def filled(text: str, environ: Mapping[str, str] | None, complain: Callable[[str, str], None]) -> str:
    """`text` with each `${NAME}` replaced from the environment, not recursively; `$${` stands for `${`.

    Args:
        environ: None when the file may not use variables.
        complain: called with (message, hint) for each variable that cannot be replaced; it is replaced with an empty text.
    """
    room = MAX_FILLED_CHARS

    def value_of(match: re.Match[str]) -> str:
        nonlocal room
        name = match[1]
        value = ""
        if match[0] == "$${":
            value = "${"
        elif name is None:
            complain("has a ${ that names no variable", "write ${NAME}, or $${ for the two characters")
        elif environ is None:
            complain(f"${{{name[:MAX_NAME_CHARS]}}} is not replaced in this file", "write the value")
        elif name not in environ:
            complain(f"the environment variable {name[:MAX_NAME_CHARS]} is not set", "set it, or write the value")
        else:
            value = environ[name]
        room -= len(value)
        return value if room >= 0 else ""

    out = _DOLLAR.sub(value_of, text)
    if room < 0:
        complain(f"has more than {MAX_FILLED_CHARS} characters once its variables are replaced", "name another variable")
    return out


MAX_FILE_BYTES: Final = 1024 * 1024
"""Size of one file. A policy for a thousand models has about 34 kB."""

MAX_VALUES: Final = 50_000
"""Values in one file, aliases unfolded; a policy for a thousand models has about 3,000. Stops an alias bomb before it grows."""

MAX_DEPTH: Final = 32
"""Nesting of one file; `tidegate.yaml` needs 6."""

# libyaml's parser took 16 ms where PyYAML's own took 336 (5,000 models); PyYAML's own is used where the wheel lacks libyaml
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Located(msgspec.Struct, frozen=True):
    """Plain data with the position (line, column) of every path in it.

    `problems` are the mistakes despite which the rest could be read; a user of the data must report them too.
    """

    file: str
    data: dict[str, Any]
    positions: dict[Path_, tuple[int, int]]
    written: dict[Path_, str] = {}
    """Values that had variables in them, as written. Messages show this text, since the environment may hold secrets."""
    problems: tuple[Problem, ...] = ()
    variables: dict[Path_, str] = {}
    """Values that an environment variable put in the place of the file's, with its name; they have no line."""

    def problem(self, path: Path_, message: str, hint: str = "") -> Problem:
        """A problem at `path`, or at its nearest ancestor that was written."""
        at = path
        while at and at not in self.positions:
            at = at[:-1]
        if at in self.variables:
            return Problem(f"environment variable {self.variables[at]}", 0, 0, dotted(path), message, hint)
        line, column = self.positions.get(at, (1, 1))
        return Problem(self.file, line, column, dotted(path), message, hint)

    def value(self, *path: str | int) -> Any:
        """The value at `path`; None when there is none, whatever the file looks like."""
        at: Any = self.data
        for step in path:
            if isinstance(step, str) and isinstance(at, dict):
                at = at.get(step)
            elif isinstance(step, int) and isinstance(at, list) and step < len(at):
                at = at[step]
            else:
                return None
        return at


def read_yaml(path: Path, environ: Mapping[str, str] | None, missing: str = "make the file, or mend the name") -> Located:
    """Read one file.

    Args:
        path: at most `MAX_FILE_BYTES` of UTF-8.
        environ: values for `${NAME}`; None when the file may not use variables.
        missing: what to do where there is no such file.

    Raises:
        ConfigError: the file cannot be read, or is no YAML mapping.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name holds a null byte"
        hint = "name a file that this user may read"
        if isinstance(error, FileNotFoundError):
            hint = missing
        raise ConfigError([Problem(str(path), 1, 1, "", f"cannot be read: {reason}", hint)]) from None
    return parse_yaml(raw, str(path), environ)


def parse_yaml(raw: bytes, file: str, environ: Mapping[str, str] | None) -> Located:
    """`read_yaml` for bytes in memory; `file` is their name in messages. Raises ConfigError."""
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError([Problem(file, 1, 1, "", f"has more than {MAX_FILE_BYTES} bytes", "split it")])
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(file, raw[: error.start].count(b"\n") + 1, 1, "", "is not UTF-8", "save it as UTF-8")]) from None
    builder = _Builder(file, environ)
    try:
        builder.read(_LOADER(raw))
    except _LimitExceeded as error:
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
    positions = {(): (1, 1)} | builder.positions  # an empty file has no event with a position
    return Located(file, data, positions, builder.written, tuple(builder.problems))


def _syntax_problem(file: str, error: yaml.MarkedYAMLError) -> Problem:
    context = error.context_mark
    mark = error.problem_mark or context
    line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    reason = ", ".join(filter(None, (error.context, error.problem)))
    hint = f"what is not finished there began on line {context.line + 1}" if context and context.line + 1 != line else ""
    for words, remedy in _SYNTAX_HINTS.items():
        if words in reason:
            hint = remedy
            # an alias has its star where it begins, and the error stands behind it
            line, column = (context.line + 1, context.column + 1) if context else (line, column)
    return Problem(file, line, column, "", f"is not valid YAML: {reason}", hint)


_SYNTAX_HINTS: Final = {
    "scanning an alias": 'a text that begins with * needs quotes, as "*"',
    "scanning an anchor": "a text that begins with & needs quotes",
    "character that cannot start any token": "a text that begins with @, % or ` needs quotes",
    "mapping values are not allowed here": "a text that holds a colon and a space needs quotes",
}
"""Remedies by words of the YAML parser's reason."""


class _LimitExceeded(Exception):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _OpenCollection:
    """A mapping or list whose end was not read yet. `key` is the mapping key whose value comes next, `inner` the path of that value, and
    `lost` whether that value will be dropped."""

    __slots__ = ("anchor", "inner", "is_list", "key", "lost", "out", "path")

    def __init__(self, out: dict[str, Any] | list[Any], path: Path_, anchor: str | None) -> None:
        self.out = out
        self.is_list = isinstance(out, list)
        self.path = path
        self.inner = path
        self.anchor = anchor
        self.key: str | None = None
        self.lost = False


class _Builder:
    """Builds plain data from the parser's events, one by one, with an explicit stack, so that depth costs no recursion."""

    def __init__(self, file: str, environ: Mapping[str, str] | None) -> None:
        self._file = file
        self._environ = environ
        self._stack: list[_OpenCollection] = []
        self._anchors: dict[str, tuple[Path_, Any]] = {}
        self._texts: set[str] = set()  # keys that are known to be text: most keys occur many times
        self._values = 0
        self._documents = 0
        self.root: Any = None
        self.positions: dict[Path_, tuple[int, int]] = {}
        self.written: dict[Path_, str] = {}
        self.problems: list[Problem] = []

    def complain(self, at: tuple[int, int], path: Path_, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self._file, *at, dotted(path), message, hint))

    def read(self, parser: Any) -> None:
        """Process all events. Dispatches on the exact event type, which is fast: a thousand policies have half a million events."""
        handlers: dict[type, Callable[[Any], None]] = {
            yaml.DocumentStartEvent: self._document,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.ScalarEvent: self._node,
            yaml.MappingStartEvent: self._node,
            yaml.SequenceStartEvent: self._node,
            yaml.AliasEvent: self._node,
        }
        next_event = parser.get_event
        try:
            while (event := next_event()) is not None:
                handler = handlers.get(type(event))
                if handler is not None:
                    handler(event)
        finally:
            parser.dispose()

    def _document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise _LimitExceeded(Problem(self._file, *_at(event), "", "holds a second document", "remove the line ---, or use two files"))

    def _end(self, _event: yaml.CollectionEndEvent) -> None:
        finished = self._stack.pop()
        self._place(finished.out, finished.path, finished.anchor)

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

    def _key(self, event: Any, top: _OpenCollection) -> None:
        at = _at(event)
        if type(event) is not yaml.ScalarEvent:
            self.complain(at, top.path, "a key must be plain text", "write key: value lines")
            top.key = "?"
            top.inner = (*top.path, "?")
            top.lost = True
            if isinstance(event, yaml.CollectionStartEvent):
                raise _LimitExceeded(self.problems.pop())  # the events that follow cannot be told apart from those of the mapping around it
            return
        key = event.value
        path = (*top.path, key)
        top.key = key
        top.inner = path
        top.lost = False
        not_text = key not in self._texts and ((event.implicit[0] and not isinstance(resolved(key), str)) or key == "<<")
        if not_text or event.tag not in (None, "!"):
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
            self._stack.append(_OpenCollection({} if kind is yaml.MappingStartEvent else [], path, event.anchor))

    def _place(self, value: Any, path: Path_, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = (path, value)
        if not self._stack:
            self.root = value
            return
        top = self._stack[-1]
        if top.is_list:
            top.out.append(value)  # type: ignore[union-attr]  # `out` is a list
            return
        if top.key is not None and not top.lost:
            top.out[top.key] = value  # type: ignore[call-overload]  # `out` is a mapping
        top.key = None

    def _alias(self, event: yaml.AliasEvent, path: Path_, at: tuple[int, int]) -> None:
        anchor = event.anchor or ""
        source, value = self._anchors.get(anchor, ((), None))
        if anchor not in self._anchors:
            self.complain(at, path, f"*{anchor} refers to nothing that ends above it", f"define &{anchor} first")
        self._place(self._copy(value, source, path, at), path, None)

    def _copy(self, value: Any, source: Path_, path: Path_, at: tuple[int, int]) -> Any:
        """A copy of an anchored value at `path`; its parts keep the positions of the original."""
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
            raise _LimitExceeded(Problem(self._file, *at, "", f"has more than {MAX_VALUES} values", "split it, and use fewer aliases"))
        if len(path) > MAX_DEPTH:
            raise _LimitExceeded(Problem(self._file, *at, "", f"is nested more than {MAX_DEPTH} deep", "write it flatter"))

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
