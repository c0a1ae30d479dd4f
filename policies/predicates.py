"""Conditions of rules as Python functions: the part of CEL that most conditions are written in, some twenty times cheaper than an
evaluation by the C++ implementation.

A condition that compiles as CEL is read again here. Comparisons (`==`, `!=`, `<`, `<=`, `>`, `>=`), `in`, `startsWith`, `endsWith`,
`contains`, `has`, `&&`, `||` and `!` over variables, literals and members of maps become one Python expression; any other part, such as
`matches` or an hour of the clock, stays CEL and is called from it. CEL gives the same answer for a part that reads only the model, say, as
long as that is the same, so such answers are kept.

The result is CEL's: True, False, or None for an error, which only a missing member of a map and a part in CEL make. As in CEL,
`false && error` is false and `true || error` is true, in either order (language definition, "Logical Operators").
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

MAX_NESTING: Final = 40
"""Brackets and operators inside one another; what is deeper stays CEL."""
MAX_KEPT: Final = 256
"""Answers of a part in CEL that are kept; at the bound all are dropped."""
CHUNK: Final = 32
"""Conditions in one function."""

Values = Mapping[str, Any]
Predicate = Callable[[Values], bool | None]
"""True, False, or None for an error, of the values of the variables."""
CelPart = Callable[[str], Predicate | None]
"""Compiles a part of a condition as CEL; None where it cannot stand alone."""

KEPT: Final = frozenset({"model", "endpoint", "project", "key", "stream", "tools"})
"""Variables with few values: a part in CEL that reads no other is evaluated once for each combination."""
MINUTE: Final = "now // 60"
"""Beside the variables: the minute of `now` since 1970, so that a part in CEL that is kept by it needs no time stamp."""
_BY_MINUTE: Final = re.compile(r"\bnow\s*\.\s*get(?:Hours|Minutes|DayOfWeek|DayOfMonth|Date|DayOfYear|Month|FullYear)\s*\(")
_NOW: Final = re.compile(r"\bnow\b")

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*)"""
    r"""|(?P<triple>\"\"\"|''')"""
    r"""|(?P<raw>(?:[rR][bB]?|[bB][rR])(?:"[^"\n]*"|'[^'\n]*')|[bB](?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))"""
    r"""|(?P<text>"[^"\\\n]*"|'[^'\\\n]*')"""
    r"""|(?P<escaped>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_]\w*)"""
    r"""|(?P<int>[0-9]+(?![\w.]))"""
    r"""|(?P<number>[0-9.]*[0-9][\w.]*)"""
    r"""|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}])"""
)
_RELATIONS: Final = {"==": "==", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_METHODS: Final = {"startsWith": "{0}.startswith({1})", "endsWith": "{0}.endswith({1})", "contains": "({1} in {0})"}
_ARITHMETIC: Final = frozenset("+-*/%")
_MAP: Final = "map(string, string)"


class _NotHere(Exception):
    """A part that stays CEL."""


class _CelToken(NamedTuple):
    kind: str
    text: str
    begin: int
    end: int


class _Expression(NamedTuple):
    """A Python expression of one value."""

    source: str
    kind: str
    """The CEL type of its value."""
    fails: bool
    """Whether its value may be None, for an error."""


class _ExpressionWriter:
    """Writes Python expressions of conditions that become one function."""

    def __init__(self, kinds: Mapping[str, str], cel: CelPart) -> None:
        self.names: dict[str, object] = {}
        """The constants, and parts in CEL, that the function refers to: no text of a condition becomes source code."""
        self.kinds = kinds
        self.cel = cel
        self._temporaries = 0

    def constant(self, value: object) -> str:
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def function(self, source: str) -> Predicate:
        made: Predicate = eval(compile(f"lambda v: {source}", "<condition>", "eval"), {"__builtins__": {}, **self.names})
        return made


class _ConditionReader:
    """Reads one condition."""

    def __init__(self, text: str, writer: _ExpressionWriter) -> None:
        self._text = text
        self._writer = writer
        self._tokens: list[_CelToken] = []
        self._close: dict[int, int] = {}
        """By the index of an open bracket, the index of the one that closes it."""
        self._scan()

    def _scan(self) -> None:
        at, brackets = 0, []
        while at < len(self._text):
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup == "triple":
                raise _NotHere
            if found.lastgroup != "space":
                if found[0] in ("(", "[", "{"):
                    brackets.append(len(self._tokens))
                elif found[0] in (")", "]", "}"):
                    if not brackets:
                        raise _NotHere
                    self._close[brackets.pop()] = len(self._tokens)
                self._tokens.append(_CelToken(str(found.lastgroup), found[0], at, found.end()))
            at = found.end()
        if brackets:
            raise _NotHere

    def condition(self) -> _Expression:
        return self._logic(0, len(self._tokens), 0)

    def _outer(self, begin: int, end: int) -> list[int]:
        """The indexes of the tokens that are in no bracket of this part."""
        outer, at = [], begin
        while at < end:
            outer.append(at)
            at = self._close.get(at, at) + 1
        return outer

    def _signs(self, begin: int, end: int, *signs: str) -> list[int]:
        return [at for at in self._outer(begin, end) if self._tokens[at].text in signs and self._tokens[at].kind in ("sign", "name")]

    def _logic(self, begin: int, end: int, depth: int) -> _Expression:
        if begin >= end or depth > MAX_NESTING:
            raise _NotHere
        if self._signs(begin, end, "?"):
            return self._in_cel(begin, end)
        for sign, join in (("||", self._any), ("&&", self._all)):
            if ats := self._signs(begin, end, sign):
                bounds = zip([begin, *(at + 1 for at in ats)], [*ats, end], strict=True)
                return join([self._logic(first, last, depth + 1) for first, last in bounds])
        if self._tokens[begin].text == "(" and self._close[begin] == end - 1:
            return self._logic(begin + 1, end - 1, depth + 1)
        if self._tokens[begin].text == "!" and not self._signs(begin + 1, end, *_RELATIONS, "in", *_ARITHMETIC):
            return self._negated(self._logic(begin + 1, end, depth + 1))
        try:
            part = self._atom(begin, end)
        except _NotHere:
            return self._in_cel(begin, end)
        if part.kind != "bool":
            raise _NotHere
        return part

    def _any(self, parts: list[_Expression]) -> _Expression:
        if not any(part.fails for part in parts):
            return _Expression(f"({' or '.join(part.source for part in parts)})", "bool", fails=False)
        names = [self._writer.temporary() for _ in parts]
        holds = " or ".join(f"({name} := {part.source})" for name, part in zip(names, parts, strict=True))
        failed = " or ".join(f"{name} is None" for name in names)
        return _Expression(f"(True if {holds} else None if {failed} else False)", "bool", fails=True)

    def _all(self, parts: list[_Expression]) -> _Expression:
        if not any(part.fails for part in parts):
            return _Expression(f"({' and '.join(part.source for part in parts)})", "bool", fails=False)
        names = [self._writer.temporary() for _ in parts]
        fails = " or ".join(f"({name} := {part.source}) is False" for name, part in zip(names, parts, strict=True))
        failed = " or ".join(f"{name} is None" for name in names)
        return _Expression(f"(False if {fails} else None if {failed} else True)", "bool", fails=True)

    def _negated(self, part: _Expression) -> _Expression:
        if not part.fails:
            return _Expression(f"(not {part.source})", "bool", fails=False)
        name = self._writer.temporary()
        return _Expression(f"(None if ({name} := {part.source}) is None else not {name})", "bool", fails=True)

    def _in_cel(self, begin: int, end: int) -> _Expression:
        part = self._writer.cel(self._text[self._tokens[begin].begin : self._tokens[end - 1].end])
        if part is None:
            raise _NotHere
        return _Expression(f"{self._writer.constant(part)}(v)", "bool", fails=True)

    def _atom(self, begin: int, end: int) -> _Expression:
        """A comparison, a membership, a call, or a value that is yes or no itself."""
        relations = self._signs(begin, end, *_RELATIONS, "in")
        if len(relations) > 1:
            raise _NotHere
        if relations:
            at = relations[0]
            sign = self._tokens[at].text
            if sign == "in":
                return self._membership(begin, at, end)
            left, right = self._operand(begin, at), self._operand(at + 1, end)
            if left.kind != right.kind:
                raise _NotHere
            return self._joined(f"({{0}} {_RELATIONS[sign]} {{1}})", left, right)
        if self._tokens[end - 1].text == ")":
            return self._call(begin, end)
        return self._operand(begin, end)

    def _membership(self, begin: int, at: int, end: int) -> _Expression:
        left = self._operand(begin, at)
        right = self._tokens[at + 1 : end]
        if len(right) == 1 and self._writer.kinds.get(right[0].text) == _MAP and left.kind == "string":
            return self._joined(f'(v["{right[0].text}"].get({{0}}) is not None)', left)
        if len(right) < 3 or right[0].text != "[" or self._close[at + 1] != end - 1:
            raise _NotHere
        literals = [self._literal(token) for token in right[1:-1:2]]
        if any(token.text != "," for token in right[2:-1:2]) or {_kind_of(value) for value in literals} != {left.kind}:
            raise _NotHere
        return self._joined(f"({{0}} in {self._writer.constant(frozenset(literals))})", left)

    def _call(self, begin: int, end: int) -> _Expression:
        """`has(map.member)`, or a test of a text: `operand.startsWith(operand)`."""
        tokens = self._tokens
        if tokens[begin].text == "has" and self._close.get(begin + 1) == end - 1:
            inner = self._operand(begin + 2, end - 1)
            if not inner.fails or tokens[end - 2].kind != "name":
                raise _NotHere
            return _Expression(f"({inner.source} is not None)", "bool", fails=False)
        opened = next((at for at in self._outer(begin, end) if self._close.get(at) == end - 1), begin)
        if opened - begin < 3 or tokens[opened - 2].text != "." or tokens[opened - 1].text not in _METHODS:
            raise _NotHere
        left, right = self._operand(begin, opened - 2), self._operand(opened + 1, end - 1)
        if left.kind != "string" or right.kind != "string":
            raise _NotHere
        return self._joined(_METHODS[tokens[opened - 1].text], left, right)

    def _joined(self, form: str, *operands: _Expression) -> _Expression:
        """A form of its operands, with an error where one of them is one."""
        missing, sources = [], []
        for operand in operands:
            if operand.fails:
                name = self._writer.temporary()
                missing.append(f"({name} := {operand.source}) is None")
                sources.append(name)
            else:
                sources.append(operand.source)
        source = form.format(*sources)
        return _Expression(f"(None if {' or '.join(missing)} else {source})" if missing else source, "bool", fails=bool(missing))

    def _operand(self, begin: int, end: int) -> _Expression:
        """A literal, a variable, or a member of a map: `headers["x"]`, `headers.x`."""
        tokens = self._tokens[begin:end]
        if not tokens:
            raise _NotHere
        if tokens[0].text == "-" and len(tokens) == 2 and tokens[1].kind == "int":
            return _Expression(self._writer.constant(-int(tokens[1].text)), "int", fails=False)
        first = tokens[0].text
        kind = self._writer.kinds.get(first) if tokens[0].kind == "name" else None
        if len(tokens) == 1 and kind is None:
            value = self._literal(tokens[0])
            return _Expression(self._writer.constant(value), _kind_of(value), fails=False)
        if len(tokens) == 1 and kind in ("string", "bool", "int"):
            return _Expression(f'v["{first}"]', kind, fails=False)
        if kind != _MAP:
            raise _NotHere
        if len(tokens) == 3 and tokens[1].text == "." and tokens[2].kind == "name":
            return _Expression(f'v["{first}"].get({self._writer.constant(tokens[2].text)})', "string", fails=True)
        if len(tokens) == 4 and (tokens[1].text, tokens[3].text) == ("[", "]") and tokens[2].kind == "text":
            return _Expression(f'v["{first}"].get({self._writer.constant(tokens[2].text[1:-1])})', "string", fails=True)
        raise _NotHere

    @staticmethod
    def _literal(token: _CelToken) -> str | int | bool:
        if token.kind == "text":
            return token.text[1:-1]
        if token.kind == "int":
            return int(token.text)
        if token.text in ("true", "false"):
            return token.text == "true"
        raise _NotHere


def _kind_of(value: object) -> str:
    return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"


def predicate(text: str, kinds: Mapping[str, str], cel: CelPart) -> Predicate | None:
    """The function of a condition that compiles as CEL; None for one that only CEL can evaluate.

    Args:
        kinds: the CEL type of each variable.
        cel: compiles a part of the condition as CEL.
    """
    writer = _ExpressionWriter(kinds, cel)
    try:
        return writer.function(_ConditionReader(text, writer).condition().source)
    except _NotHere:
        return None


def first_of(texts: Iterable[str], kinds: Mapping[str, str], cel: CelPart) -> list[Predicate]:
    """Functions, each of up to `CHUNK` of the conditions, that say whether any of these holds. Each condition must have a `predicate`."""
    written = list(texts)
    functions = []
    for begin in range(0, len(written), CHUNK):
        writer = _ExpressionWriter(kinds, cel)
        functions.append(
            writer.function(" or ".join(_ConditionReader(text, writer).condition().source for text in written[begin : begin + CHUNK]))
        )
    return functions


class KeptAnswers:
    """A part in CEL that reads only variables of few values: evaluated once for each combination of them.

    Args:
        by_minute: whether the part reads the clock in no smaller steps than minutes.
    """

    __slots__ = ("_answers", "_by_minute", "_evaluate", "_reads")

    def __init__(self, evaluate: Predicate, reads: Iterable[str], *, by_minute: bool) -> None:
        self._evaluate = evaluate
        self._reads = tuple(sorted(reads))
        self._by_minute = by_minute
        self._answers: dict[object, bool | None] = {}

    def __call__(self, values: Values) -> bool | None:
        """CEL's answer."""
        reads = self._reads
        combination: object = values[reads[0]] if len(reads) == 1 else tuple([values[name] for name in reads])
        if self._by_minute:
            minute = values.get(MINUTE)
            combination = combination, values["now"].timestamp() // 60 if minute is None else minute
        try:
            return self._answers[combination]
        except KeyError:
            if len(self._answers) >= MAX_KEPT:
                self._answers.clear()
            answer = self._answers[combination] = self._evaluate(values)
            return answer


def kept(text: str, reads: frozenset[str], evaluate: Predicate) -> Predicate:
    """`evaluate`, with its answers kept where the part reads only variables of few values.

    Args:
        text: the part in CEL.
        reads: the variables that it reads.
    """
    by_minute = "now" in reads
    if not reads - {"now"} <= KEPT or (by_minute and len(_NOW.findall(text)) != len(_BY_MINUTE.findall(text))):
        return evaluate
    return KeptAnswers(evaluate, reads - {"now"}, by_minute=by_minute)
