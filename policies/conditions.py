"""Conditions of rules, in CEL, the common expression language (github.com/google/cel-spec): typed, and bounded in time.

They are compiled and checked when policies are read, by the C++ implementation. It counts the steps of `all`, `exists` and their like
(loops) and gives up after 10,000, and its regular expressions (RE2) take linear time; so no condition can hold a request up.
`Alternatives` bounds the steps of all conditions of a request together, and evaluates most conditions without CEL (`policies.predicates`).
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache, reduce
from heapq import merge
from typing import Any, Final

import msgspec

from policies.predicates import Predicate, first_of, kept, predicate

MAX_CHARS: Final = 2_000
"""Length of one condition."""

MAX_STEPS: Final = 10_000
"""Steps of one evaluation; the default of the C++ implementation, which counts them itself."""

MAX_REQUEST_STEPS: Final = 50_000
"""Steps that the dear conditions of one request may take together, by their estimates: about 2.5 ms."""

USUAL_ENTRIES: Final = 64
"""Entries of a map in an estimate that knows no request: as many as `data.limits.max_headers`."""

DEAR_STEPS: Final = 200
"""Estimated steps from which a condition is dear: two nested loops, or more than three loops."""

VARIABLES: Final[Mapping[str, tuple[str, str]]] = {
    "model": ("string", "The model that was asked for; of an alias, the one it stands for."),
    "endpoint": (
        "string",
        "`chat`, `completions`, `embeddings`, `rerank`, `score`, `classify`, `pooling`, `tokenize`, `detokenize`, `transcriptions`, "
        "`translations` or `speech`.",
    ),
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
"""The variables of conditions by name: CEL type, meaning."""

KINDS: Final = {name: kind for name, (kind, _) in VARIABLES.items()}
"""The CEL type of each variable."""

_SAMPLE: Final[Mapping[str, Any]] = {
    "string": "",
    "bool": False,
    "int": 1,
    "map(string, string)": {},
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
}
_ALWAYS_WRONG: Final = ("invalid regular expression", "Invalid timezone")
_POSITION: Final = re.compile(r"<input>:(\d+):(\d+): ([^\n]*)")
_HEADERS: Final = re.compile(r"\bheaders\b")
_HEADER: Final = re.compile(
    r"""\bheaders\[(?:"([^"\\]+)"|'([^'\\]+)')\]|(?:"([^"\\]+)"|'([^'\\]+)')\s+in\s+headers\b|\bheaders\.([A-Za-z_]\w*)(?!\w*\()"""
)
"""The ways to name a header: `headers["x"]`, `"x" in headers`, `headers.x`."""
_TAGS: Final = re.compile(r"\bkey_tags\b")
_TAG: Final = re.compile(_HEADER.pattern.replace("headers", "key_tags"))
_ONE_VALUE: Final = re.compile(r'\s*headers\["([^"\\]+)"\]\s*==\s*"([^"\\]*)"\s*(?:&&[^|?]*)?')
"""A condition that holds only for one value of a header: `headers["x"] == "y"`, with any further terms joined by `&&` alone."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
FUNCTIONS: Final = (
    *("startsWith", "endsWith", "contains", "matches", "size", "has", "all", "exists", "exists_one", "in"),
    *("getHours", "getMinutes", "getDayOfWeek", "getDayOfMonth", "getDayOfYear", "getMonth", "getFullYear", "timestamp", "duration"),
)
"""Functions and macros of CEL that conditions are written with, for hints."""
OPERATORS: Final = {"and": "&&", "or": "||", "not": "!", "<>": "!=", "=": "=="}
"""CEL's operators by the words and signs of other languages."""
_UNKNOWN: Final = re.compile(r"undeclared reference to '([^']*)'")
_OVERLOAD: Final = re.compile(r"found no matching overload for '_?([^_']+)_?' applied to '\(([^)]*)\)'")
_WORD_OPERATOR: Final = re.compile(r"(and|or|not|AND|OR|NOT|<>)(?![\w])")
_EXPECTED: Final = re.compile(r" expecting \{[^}]*\}+.*")


def tags_read(text: str) -> frozenset[str] | None:
    """The names of the key tags that a condition reads; None when it reads one by a name that is not written out."""
    named = _TAG.findall(text)
    return frozenset(map("".join, named)) if len(named) == len(_TAGS.findall(text)) else None


class ConditionError(ValueError):
    """A condition that cannot be used; the message gives the reason and the position in it."""


class ConditionNeeds(msgspec.Struct, frozen=True):
    """The variables and headers that conditions may read."""

    variables: frozenset[str] = frozenset()
    headers: frozenset[str] | None = frozenset()
    """Names of headers; None for all headers, when one is not read by a literal name."""

    def joined(self, other: "ConditionNeeds") -> "ConditionNeeds":
        """The variables and headers that either needs."""
        headers = None if self.headers is None or other.headers is None else self.headers | other.headers
        return ConditionNeeds(self.variables | other.variables, headers)

    def taken(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """These variables out of `values`, as CEL takes them: of the headers those that are named."""
        taken = {name: values[name] for name in self.variables if name != "headers"}
        if "headers" in self.variables:
            headers = values["headers"]
            names = headers if self.headers is None else self.headers
            taken["headers"] = {name: value for name in names if (value := headers.get(name)) is not None}
        return taken


class Condition:
    """One compiled and checked condition."""

    __slots__ = ("_program", "text")

    def __init__(self, text: str, program: Any) -> None:
        self.text = text
        self._program = program

    @property
    def needs(self) -> ConditionNeeds:
        """The variables and headers that the condition reads. Parsed from the text at each call: most conditions are loaded and never
        evaluated before the next load."""
        named = _HEADER.findall(self.text)
        all_named = len(named) == len(_HEADERS.findall(self.text))
        return ConditionNeeds(frozenset(_WORD.findall(self.text)) & VARIABLES.keys(), frozenset(map("".join, named)) if all_named else None)

    def holds(self, facts: Any) -> bool | None:
        """Whether the condition holds; None when evaluation fails: it reads a header that the request lacks, or takes too many steps."""
        try:
            result = self._program.eval(facts).value()
        except RuntimeError:
            return None
        return result if isinstance(result, bool) else None


def activation(values: Mapping[str, Any]) -> Any:
    """The values of variables as a CEL activation, for `Condition.holds`; variables that no condition needs may be left out."""
    return _environment().Activation(values)


@lru_cache(maxsize=65_536)
def condition(text: str) -> Condition:
    """Compile and check a condition; equal texts are compiled once.

    Raises:
        ConditionError: it is too long, cannot be parsed, reads an unknown variable, compares different types, is no boolean, or holds
            an invalid regular expression or time zone.
    """
    if len(text) > MAX_CHARS:
        raise ConditionError(f"has {len(text)} characters; {MAX_CHARS} are allowed")
    compiled = Condition(text, _compiled(text))
    try:
        trial = compiled._program.eval(_sample()).value()
    except RuntimeError:
        return compiled  # too many steps, even on an empty request: it matches no request, and `explained` reports so for each
    reason = str(trial)
    if any(wrong in reason for wrong in _ALWAYS_WRONG):
        raise ConditionError(reason.partition(": ")[2] or reason)
    return compiled


def _compiled(text: str) -> Any:
    try:
        program = _environment().compile(text)
    except RuntimeError as error:
        position = _POSITION.search(str(error))
        if position is None:
            raise ConditionError(str(error).partition("\n")[0]) from None
        line, column, why = position.groups()
        why, hint = _explained(why.removesuffix(" (in container '')"), text.split("\n")[int(line) - 1][int(column) - 1 :])
        raise ConditionError(f"{why}, at line {line}, column {column} of the condition" + (f"; {hint}" if hint else "")) from None
    kind = program.return_type().name()
    if kind != "BOOL":
        raise ConditionError(f"is a {kind.lower()}, no yes or no")
    return program


def _explained(why: str, rest: str) -> tuple[str, str]:
    """What the parser or the type checker says, in words for people who write conditions, and what to write instead.

    Args:
        rest: the line of the condition from the place of the mistake on.
    """
    if (name := _UNKNOWN.fullmatch(why)) is not None:
        known = (*VARIABLES, *FUNCTIONS)
        near = difflib.get_close_matches(name[1], known, n=1)
        function = rest.startswith("(") or f"{name[1]}(" in rest
        return why, f"did you mean {near[0]}?" if near else f"there are: {', '.join(FUNCTIONS if function else VARIABLES)}"
    if (types := _OVERLOAD.fullmatch(why)) is not None and types[1] in ("==", "!=", "<", "<=", ">", ">=", "&&", "||", "+", "-"):
        hint = (
            "combine conditions that are yes or no, with && and ||"
            if types[1] in ("&&", "||")
            else "write texts in quotes, and numbers without"
        )
        return f"{why}: {types[1]} does not take {types[2].replace(', ', ' and ')}", hint
    if not why.startswith("Syntax error"):
        return why, ""
    if (word := _WORD_OPERATOR.match(rest)) is not None:
        return f"Syntax error at {word[1]!r}", f"write {OPERATORS[word[1].lower()]}"
    if "'<EOF>'" in why and "missing" not in why:
        return "Syntax error: the condition ends too early", "write what is compared, and close every bracket and quote"
    if "token recognition error at: '= " in why:
        return "Syntax error at '='", "write == to compare"
    if why.endswith("expecting <EOF>") and (first := _WORD.match(rest)) is not None:
        return f"Syntax error at {first[0]!r}", "join conditions with && or ||, and write ! for not"
    return _EXPECTED.sub("", why), ""


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
    return activation({name: _SAMPLE[kind] for name, (kind, _) in VARIABLES.items()})


_NO_CODE: Final = re.compile(
    r"""//[^\n]*"""
    r"""|(?:[rR][bB]?|[bB][rR])(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|"[^"\n]*"|'[^'\n]*')"""
    r"""|\"\"\"(?:[^\\]|\\[\s\S])*?\"\"\"|'''(?:[^\\]|\\[\s\S])*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
)
"""Comments and texts of CEL; texts with the prefix `r` have no escapes."""
_LOOP: Final = re.compile(r"\.\s*(?:all|exists|exists_one|existsOne|map|filter)\s*\(|\(|\)")


class ConditionLoops(msgspec.Struct, frozen=True):
    """The loops of a condition, for an estimate of its steps."""

    depths: tuple[int, ...] = ()
    """How many loops each loop is in, itself included."""
    listed: int = 0
    """Entries of all lists that the condition itself writes, or more."""
    joined: int = 1
    """How many lists one loop may go over, joined by `+`; or more."""

    @classmethod
    def of(cls, text: str) -> "ConditionLoops":
        """The loops in the text of a condition that compiles."""
        code = _NO_CODE.sub('""', text)
        depths = []
        brackets: list[bool] = []  # for each open one, whether it is a loop's
        for found in _LOOP.finditer(code):
            if found[0] == ")":
                if brackets:
                    brackets.pop()
                continue
            brackets.append(found[0] != "(")
            if brackets[-1]:
                depths.append(sum(brackets))
        return cls(tuple(depths), code.count(",") + 1, code.count("+") + 1) if depths else cls()

    def most_steps(self, entries: int) -> int:
        """The most steps of an evaluation for a request whose maps have at most so many entries."""
        each = max(entries, self.listed) * self.joined
        return min(MAX_STEPS, sum(int(each**depth) for depth in self.depths))


def _cel_part(text: str) -> Predicate | None:
    """A part of a condition as CEL: None where it is none by itself, and for loops, whose steps are counted for whole conditions."""
    if ConditionLoops.of(text).depths:
        return None
    try:
        part = Condition(text, _compiled(text))
    except ConditionError:
        return None
    needs = part.needs
    return kept(text, needs.variables, lambda values: part.holds(activation(needs.taken(values))))


@lru_cache(maxsize=65_536)
def compiled_predicate(text: str) -> Predicate | None:
    """A condition as a Python function; None where only CEL evaluates it. Equal texts are compiled once.

    Args:
        text: the text of a condition that compiles.
    """
    return predicate(text, KINDS, _cel_part)


class Alternatives:
    """Several conditions, evaluated together: which hold, in order.

    Those that begin with `headers["x"] == "y"` are indexed by the header's value. Of the others most are Python functions, and one function
    of all of them shows for most requests that none holds. Where one is not, CEL evaluates the disjunction of all that are cheap, and the
    holding ones are found by bisection. Disjunctions are compiled at their first evaluation. Dear ones are evaluated one by one, and those
    behind `MAX_REQUEST_STEPS` do not hold."""

    __slots__ = ("_all", "_by_header", "_dear", "_disjunctions", "_first", "_in_python", "_loops", "_predicates", "_unindexed", "needs")

    def __init__(self, texts: Sequence[str]) -> None:
        self._all = tuple(condition(text) for text in texts)
        self._predicates = tuple(compiled_predicate(text) for text in texts)
        self._disjunctions: dict[tuple[int, int], Condition | None] = {}
        self._by_header: dict[str, dict[str, list[int]]] = {}
        self._in_python: list[int] = []
        self._unindexed: list[int] = []
        self._dear: list[int] = []
        self._loops = tuple(ConditionLoops.of(text) for text in texts)
        for at, text in enumerate(texts):
            named = _ONE_VALUE.fullmatch(text)
            if named is not None:
                self._by_header.setdefault(named[1], {}).setdefault(named[2], []).append(at)
            elif self._predicates[at] is not None:
                self._in_python.append(at)
            else:
                dear = self._loops[at].most_steps(USUAL_ENTRIES) > DEAR_STEPS
                (self._dear if dear else self._unindexed).append(at)
        self._first = first_of([texts[at] for at in self._in_python], KINDS, _cel_part)
        self.needs = reduce(ConditionNeeds.joined, (alternative.needs for alternative in self._all), ConditionNeeds())

    def holding(self, values: Mapping[str, Any]) -> Iterable[int]:
        """Indexes of the conditions that hold, in ascending order.

        Args:
            values: the variables' values, at least for those in `needs`; one that is dear to find may be found when it is asked for.
        """
        alone = list(self._dear)
        for name, by_value in self._by_header.items():
            alone += by_value.get(values["headers"].get(name), ())
        holding: list[Iterable[int]] = []
        for any_holds in self._first:
            if any_holds(values):
                holding.append(at for at in self._in_python if self._predicates[at](values))  # type: ignore[misc]  # those are not None
                break
        if not alone and not self._unindexed:
            return holding[0] if holding else ()
        taken = self.needs.taken(values)
        facts = activation(taken)
        if self._unindexed and self._may_hold(0, len(self._unindexed), facts):
            holding.append(self._holding_within(0, len(self._unindexed), facts))
        if alone:
            holding.append(self._holding_alone(sorted(alone), facts, taken))
        return merge(*holding)

    def _holding_alone(self, indexes: list[int], facts: Any, values: Mapping[str, Any]) -> Iterator[int]:
        """Indexes of the conditions that hold, evaluated one by one, until their steps are used up."""
        entries = max((len(value) for value in values.values() if isinstance(value, Mapping)), default=0)
        steps_left = MAX_REQUEST_STEPS
        for at in indexes:
            steps_left -= self._loops[at].most_steps(entries)
            if (steps_left >= 0 or not self._loops[at].depths) and self._all[at].holds(facts):
                yield at

    def _holding_within(self, begin: int, end: int, facts: Any) -> Iterator[int]:
        """Indexes of the conditions that hold among `_unindexed[begin:end]`."""
        if end - begin == 1:
            if self._all[self._unindexed[begin]].holds(facts):
                yield self._unindexed[begin]
        elif self._may_hold(begin, end, facts):
            middle = (begin + end) // 2
            yield from self._holding_within(begin, middle, facts)
            yield from self._holding_within(middle, end, facts)

    def _may_hold(self, begin: int, end: int, facts: Any) -> bool:
        """Whether a condition of `_unindexed[begin:end]` may hold; True when that cannot be decided."""
        disjunction = self._disjunction(begin, end)
        return disjunction is None or disjunction.holds(facts) is not False

    def _disjunction(self, begin: int, end: int) -> Condition | None:
        """The disjunction of `_unindexed[begin:end]`; None when it is too large for one expression."""
        if (begin, end) not in self._disjunctions:
            text = " || ".join(f"({self._all[at].text}\n)" for at in self._unindexed[begin:end])
            try:
                self._disjunctions[begin, end] = Condition(text, _compiled(text))
            except ConditionError:
                self._disjunctions[begin, end] = None
        return self._disjunctions[begin, end]
