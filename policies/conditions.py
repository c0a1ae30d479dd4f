"""Conditions of rules, in CEL, the common expression language (github.com/google/cel-spec): typed, and bounded in time.

They are compiled and checked when policies are read, by the C++ implementation. It counts the steps of `all`, `exists` and their like and
gives up after 10,000, and its regular expressions (RE2) take linear time; nothing that is written here can hold a request up.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache, reduce
from heapq import merge
from typing import Any, Final

import msgspec

MAX_CHARS: Final = 2_000
"""Of one condition."""

VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("string", "The model that was asked for; of an alias, the one it stands for."),
    "endpoint": ("string", "`chat`, `completions` or `embeddings`."),
    "project": ("string", "The project of the caller's key or token."),
    "key": ("string", "The key's id; empty for a token."),
    "key_tags": ("map(string, string)", "The [tags](keys.md#tags) of the key; empty for a token."),
    "user": ("string", "The end user: of the token, else as the request says; may be empty."),
    "session": ("string", "The conversation, as the request names it; may be empty."),
    "stream": ("bool", "Whether the answer is streamed."),
    "prompt_tokens": ("int", "Tokens of the prompt, estimated from its bytes where nobody counted them."),
    "max_output_tokens": ("int", "The request's own cap on its output; 0 for none."),
    "choices": ("int", "How many answers it asks for."),
    "media": ("int", "Parts of its messages that are no text."),
    "tools": ("bool", "Whether it carries tools."),
    "headers": ("map(string, string)", "Its headers, names in lower case; credentials and cookies are not among them."),
    "metadata": ("map(string, string)", "Its `metadata`, as far as that is text."),
    "now": ("timestamp", 'The time: `now.getHours("Europe/Berlin") >= 22`, `now.getDayOfWeek() == 0` on Sundays.'),
}
"""What a condition can ask about: type, meaning."""

_SAMPLE: Final[Mapping[str, Any]] = {
    "string": "", "bool": False, "int": 1, "map(string, string)": {}, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)
}  # fmt: skip
_ALWAYS_WRONG: Final = ("invalid regular expression", "Invalid timezone")
_POSITION: Final = re.compile(r"<input>:(\d+):(\d+): ([^\n]*)")
_HEADERS: Final = re.compile(r"\bheaders\b")
_HEADER: Final = re.compile(
    r"""\bheaders\[(?:"([^"\\]+)"|'([^'\\]+)')\]|(?:"([^"\\]+)"|'([^'\\]+)')\s+in\s+headers\b|\bheaders\.([A-Za-z_]\w*)(?!\w*\()"""
)
"""The ways to name a header: `headers["x"]`, `"x" in headers`, `headers.x`."""
_ONE_VALUE: Final = re.compile(r'\s*headers\["([^"\\]+)"\]\s*==\s*"([^"\\]*)"\s*(?:&&[^|?]*)?')
"""What cannot hold unless a header has one value: `headers["x"] == "y"`, and whatever is said besides with `&&` alone."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


class ConditionError(ValueError):
    """A condition that says nothing; the message says why and where in it."""


class Needs(msgspec.Struct, frozen=True):
    """What conditions may ask for."""

    variables: frozenset[str] = frozenset()
    headers: frozenset[str] | None = frozenset()
    """Names of headers; None for all, where one is not told by name."""

    def joined(self, other: "Needs") -> "Needs":
        """Of both."""
        headers = None if self.headers is None or other.headers is None else self.headers | other.headers
        return Needs(self.variables | other.variables, headers)


class Condition:
    """One checked condition."""

    __slots__ = ("_program", "text")

    def __init__(self, text: str, program: Any) -> None:
        self.text = text
        self._program = program

    @property
    def needs(self) -> Needs:
        """What it asks for. Looked for in its text each time: most conditions are read and not asked before they are read anew."""
        named = _HEADER.findall(self.text)
        all_told = len(named) == len(_HEADERS.findall(self.text))
        return Needs(frozenset(_WORD.findall(self.text)) & VARIABLES.keys(), frozenset(map("".join, named)) if all_told else None)

    def holds(self, facts: Any) -> bool | None:
        """Whether it holds; None where it cannot be said: it asks for a header that is not there, or takes too many steps."""
        try:
            found = self._program.eval(facts).value()
        except RuntimeError:
            return None
        return found if isinstance(found, bool) else None


def given(values: Mapping[str, Any]) -> Any:
    """Values of variables in the form that conditions are asked with; those that no condition needs may be left out."""
    return _environment().Activation(values)


@lru_cache(maxsize=65_536)
def condition(text: str) -> Condition:
    """Compile and check a condition; equal ones are compiled once.

    Raises:
        ConditionError: it cannot be parsed, asks for what there is not, compares what cannot be compared, is no yes or no, or holds
            a regular expression or a time zone that there is not.
    """
    if len(text) > MAX_CHARS:
        raise ConditionError(f"has {len(text)} characters; {MAX_CHARS} are allowed")
    made = Condition(text, _compiled(text))
    try:
        trial = made._program.eval(_sample()).value()
    except RuntimeError:
        return made  # too many steps, on an empty request: no request will match it, and each is told so
    said = str(trial)
    if any(wrong in said for wrong in _ALWAYS_WRONG):
        raise ConditionError(said.partition(": ")[2] or said)
    return made


def _compiled(text: str) -> Any:
    try:
        program = _environment().compile(text)
    except RuntimeError as error:
        found = _POSITION.search(str(error))
        if found is None:
            raise ConditionError(str(error).partition("\n")[0]) from None
        line, column, why = found.groups()
        why = why.removesuffix(" (in container '')")
        raise ConditionError(f"{why}, at line {line}, column {column} of the condition") from None
    kind = program.return_type().name()
    if kind != "BOOL":
        raise ConditionError(f"is a {kind.lower()}, no yes or no")
    return program


@cache
def _environment() -> Any:
    # imported only here: a gateway without conditions does not carry the 6 MiB of it
    from cel_expr_python import cel

    types = {
        "string": cel.Type.STRING,
        "bool": cel.Type.BOOL,
        "int": cel.Type.INT,
        "map(string, string)": cel.Type.Map(cel.Type.STRING, cel.Type.STRING),
        "timestamp": cel.Type.TIMESTAMP,
    }
    return cel.NewEnv(variables={name: types[kind] for name, (kind, _) in VARIABLES.items()})


@cache
def _sample() -> Any:
    return given({name: _SAMPLE[kind] for name, (kind, _) in VARIABLES.items()})


class Alternatives:
    """Several conditions: which hold, in their order. Those that begin with `headers["x"] == "y"` are looked up by what the header is.
    One look at the disjunction of all others says that none does, which is what most requests find; else it is looked for by halves.
    Disjunctions are compiled when they are first asked for."""

    __slots__ = ("_all", "_any", "_by_header", "_others", "needs")

    def __init__(self, texts: Sequence[str]) -> None:
        self._all = tuple(condition(text) for text in texts)
        self._any: dict[tuple[int, int], Condition | None] = {}
        self._by_header: dict[str, dict[str, list[int]]] = {}
        self._others: list[int] = []
        for at, text in enumerate(texts):
            named = _ONE_VALUE.fullmatch(text)
            if named is None:
                self._others.append(at)
            else:
                self._by_header.setdefault(named[1], {}).setdefault(named[2], []).append(at)
        self.needs = reduce(Needs.joined, (one.needs for one in self._all), Needs())

    def holding(self, values: Mapping[str, Any]) -> Iterable[int]:
        """Indexes of the conditions that hold, the first one first.

        Args:
            values: of variables, at least of those that are needed.
        """
        facts = given(values)
        named: list[int] = []
        for name, by_value in self._by_header.items():
            named += by_value.get(values["headers"].get(name), ())
        others = self._within(0, len(self._others), facts) if self._others and self._may_hold(0, len(self._others), facts) else ()
        return merge(others, (at for at in sorted(named) if self._all[at].holds(facts))) if named else others

    def _within(self, begin: int, end: int, facts: Any) -> Iterator[int]:
        """Of the others."""
        if end - begin == 1:
            if self._all[self._others[begin]].holds(facts):
                yield self._others[begin]
        elif self._may_hold(begin, end, facts):
            middle = (begin + end) // 2
            yield from self._within(begin, middle, facts)
            yield from self._within(middle, end, facts)

    def _may_hold(self, begin: int, end: int, facts: Any) -> bool:
        """Whether one of a part of the others may."""
        either = self._either(begin, end)
        return either is None or either.holds(facts) is not False

    def _either(self, begin: int, end: int) -> Condition | None:
        """The disjunction of a part of the others; None where it is too large to be one expression."""
        if (begin, end) not in self._any:
            text = " || ".join(f"({self._all[at].text}\n)" for at in self._others[begin:end])
            try:
                self._any[begin, end] = Condition(text, _compiled(text))
            except ConditionError:
                self._any[begin, end] = None
        return self._any[begin, end]
