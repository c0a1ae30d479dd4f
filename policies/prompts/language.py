"""The language of prompt templates: a small subset of Jinja2's. Walks over a template's tree and reports everything outside the subset.

Allowed are output, `if`, `for` over lists, comparisons, `and`, `or`, `not`, `a if b else c`, six filters, and the position of `loop`.
Every expression has a kind and a maximum length. So it is known before rendering that no rendering can fail, and how much work the
longest one takes. Pure.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from jinja2 import nodes

from policies.prompts.variables import MAX_WHOLE, NUMBER_CHARS, EnumVariable, ListVariable, StringVariable, Variable

MAX_NESTED: Final = 8
"""Nesting of `if` and `for`. Python compiles at most 20 nested blocks."""
MAX_DEPTH: Final = 32
"""Nesting of one expression."""
STEP_CHARS: Final = 32
"""Work of one step of a rendering, in characters, besides the characters that it touches."""
LOOP_CHARS: Final = 320
"""Work of reading a loop's position, in characters: it takes ten times as long as another step."""
GROWTH: Final = 3
"""Characters that one character can become in upper or lower case, at most."""
ESCAPED: Final = 6
"""Characters that one character can become in JSON, at most."""
DOCS: Final = "docs/reference/prompts.md says what templates can do"

_Kind = Literal["text", "number", "boolean", "list", "json", "mixed"]


FILTERS: Final[Mapping[str, Any]] = {
    "join": lambda value, between: between.join(value),
    "length": len,
    "lower": str.lower,
    "tojson": lambda value: json.dumps(value, ensure_ascii=False),
    "trim": str.strip,
    "upper": str.upper,
}
_FILTER_INPUTS: Final[Mapping[str, tuple[_Kind, ...]]] = {
    "join": ("list",),
    "length": ("text", "list"),
    "lower": ("text",),
    "tojson": ("text", "number", "boolean", "list"),
    "trim": ("text",),
    "upper": ("text",),
}


class Mistake(msgspec.Struct, frozen=True):
    """A mistake in a template; `line` counts from 1 within the template."""

    line: int
    message: str
    hint: str = DOCS


class _ValueBounds(msgspec.Struct, frozen=True):
    """Static bounds on an expression's value: its kind, the maximum of its characters, and for a list the maximum of its items."""

    kind: _Kind
    chars: int
    items: int = 1


_INVALID: Final = _ValueBounds("mixed", 0)
_BOOLEAN: Final = _ValueBounds("boolean", 5)
_NUMBER: Final = _ValueBounds("number", NUMBER_CHARS)
_LOOP: Final = {"index": _NUMBER, "index0": _NUMBER, "length": _NUMBER, "first": _BOOLEAN, "last": _BOOLEAN}
_ORDER: Final = frozenset({"lt", "lteq", "gt", "gteq"})


class TemplateReader:
    """Walks over a tree and records the mistakes (`mistakes`), the variables that are named (`used`), and the characters that one
    rendering can touch at most (`work`)."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self.mistakes: list[Mistake] = []
        self.used: set[str] = set()
        self.work = 0
        self._times = 1
        self._names = {name: _of_variable(variable) for name, variable in variables.items()}
        self._targets: dict[str, _ValueBounds] = {}

    def read(self, tree: nodes.Template) -> None:
        """Walk over the whole tree; to be called once."""
        self._body(tree.body, 0)

    def _complain(self, node: nodes.Node, message: str, hint: str = DOCS) -> _ValueBounds:
        self.mistakes.append(Mistake(node.lineno or 1, message, hint))
        return _INVALID

    def _body(self, body: list[nodes.Node], depth: int) -> None:
        for node in body:
            if depth > MAX_NESTED:
                self._complain(node, f"has more than {MAX_NESTED} blocks within each other")
            elif isinstance(node, nodes.Output):
                for part in node.nodes:
                    self._printed(part)
            elif isinstance(node, nodes.If):
                for branch in (node, *node.elif_):
                    self._count(self._value(branch.test).chars)
                    self._body(branch.body, depth + 1)
                self._body(node.else_, depth + 1)
            elif isinstance(node, nodes.For):
                self._loop(node, depth)
            else:
                self._complain(node, f"{_in_words(node)} is not allowed")

    def _printed(self, node: nodes.Expr) -> None:
        if isinstance(node, nodes.TemplateData):
            self._count(len(node.data))
            return
        value = self._value(node)
        self._count(value.chars)
        if value.kind == "list":
            self._complain(node, "prints a list", "write | join(', '), or {% for … %}")
        elif value.kind == "boolean":
            self._complain(node, "prints true or false", "write {% if … %}")
        elif value is not _INVALID and value.kind == "mixed":
            self._complain(node, "prints values of different kinds", "make both of one kind")

    def _loop(self, node: nodes.For, depth: int) -> None:
        iterated = self._value(node.iter)
        if iterated.kind != "list" and iterated is not _INVALID:
            self._complain(node, "goes through something other than a list", "declare a variable with type: list")
        if node.test is not None or node.recursive:
            self._complain(node, "a loop with a condition or recursion is not allowed", "write {% if … %} inside it")
        target = node.target
        if not isinstance(target, nodes.Name) or target.name in self._names or target.name in self._targets or target.name == "loop":
            self._complain(node, "needs one new name for what it goes through", "write {% for item in … %}")
            return
        before = self._times
        self._times *= max(1, iterated.items)
        self._targets[target.name] = _ValueBounds("text", -(-iterated.chars // max(1, iterated.items)))
        self._count(0)
        self._body(node.body, depth + 1)
        del self._targets[target.name]
        self._times = before
        self._body(node.else_, depth + 1)

    def _count(self, chars: int) -> None:
        self.work += (STEP_CHARS + chars) * self._times

    def _value(self, node: nodes.Node, depth: int = 0) -> _ValueBounds:
        if depth > MAX_DEPTH:
            return self._complain(node, f"has an expression more than {MAX_DEPTH} deep")
        simple = self._simple(node)
        if simple is not None:
            return simple
        if isinstance(node, nodes.Filter):
            return self._filter(node, depth)
        if isinstance(node, nodes.Compare):
            return self._compare(node, depth)
        if isinstance(node, nodes.Not):
            self._value(node.node, depth + 1)
            return _BOOLEAN
        if isinstance(node, nodes.And | nodes.Or):
            return _either(self._value(node.left, depth + 1), self._value(node.right, depth + 1))
        if isinstance(node, nodes.CondExpr) and node.expr2 is not None:
            self._value(node.test, depth + 1)
            return _either(self._value(node.expr1, depth + 1), self._value(node.expr2, depth + 1))
        if isinstance(node, nodes.Neg) and isinstance(node.node, nodes.Const):
            return self._value(node.node, depth + 1)
        return self._complain(node, f"{_in_words(node)} is not allowed")

    def _simple(self, node: nodes.Node) -> _ValueBounds | None:
        """The bounds of a name, a literal, a list of literals or a `loop` attribute; None for every other expression."""
        if isinstance(node, nodes.Name):
            if node.name in self._names:
                self.used.add(node.name)
            bounds = self._names.get(node.name) or self._targets.get(node.name)
            hint = f"declared are: {', '.join(self._names)}" if self._names else "declare it under variables"
            return bounds or self._complain(node, f"there is no variable {node.name!a:.70}", hint)
        if isinstance(node, nodes.Const):
            value = node.value
            if isinstance(value, bool):
                return _BOOLEAN
            if isinstance(value, int | float):
                if not abs(value) <= MAX_WHOLE:
                    return self._complain(node, "has a number that is too large")
                return _ValueBounds("number", len(str(value)))
            return _ValueBounds("text", len(value)) if isinstance(value, str) else self._complain(node, "none is no value here")
        if isinstance(node, nodes.List) and node.items and all(isinstance(item, nodes.Const) for item in node.items):
            texts = [item.value for item in node.items if isinstance(item, nodes.Const) and isinstance(item.value, str)]
            return _ValueBounds("list", sum(map(len, texts)), len(texts)) if len(texts) == len(node.items) else None
        if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "loop" and self._targets:
            self._count(LOOP_CHARS)
            return _LOOP.get(node.attr)
        return None

    def _filter(self, node: nodes.Filter, depth: int) -> _ValueBounds:
        if node.node is None or node.name not in FILTERS:
            return self._complain(node, f"there is no filter {node.name!a:.70}", f"there are: {', '.join(FILTERS)}")
        value = self._value(node.node, depth + 1)
        self._count(value.chars)
        arguments = [argument.value if isinstance(argument, nodes.Const) else None for argument in node.args]
        joins = node.name == "join"
        if (
            node.kwargs
            or node.dyn_args
            or node.dyn_kwargs
            or (arguments if not joins else len(arguments) != 1 or not isinstance(arguments[0], str))
        ):
            expected = "one text in quotes" if joins else "nothing"
            return self._complain(node, f"the filter {node.name} takes {expected} in brackets")
        if value is _INVALID:
            return _INVALID
        if value.kind not in _FILTER_INPUTS[node.name]:
            return self._complain(
                node, f"the filter {node.name} is not for a {value.kind}", f"it is for a {' or '.join(_FILTER_INPUTS[node.name])}"
            )
        if joins:
            return _ValueBounds("text", value.chars + value.items * len(str(arguments[0])))
        if node.name == "length":
            return _NUMBER
        if node.name == "tojson":
            return _ValueBounds("json", ESCAPED * value.chars + 4 * value.items)
        return _ValueBounds("text", value.chars if node.name == "trim" else GROWTH * value.chars)

    def _compare(self, node: nodes.Compare, depth: int) -> _ValueBounds:
        left = self._value(node.expr, depth + 1)
        for operand in node.ops:
            right = self._value(operand.expr, depth + 1)
            self._count(left.chars + right.chars)
            kinds = left.kind, right.kind
            if operand.op in ("in", "notin"):
                fits = kinds in (("text", "text"), ("text", "list"))
            elif operand.op in _ORDER:
                fits = kinds in (("number", "number"), ("text", "text"))
            else:
                fits = kinds[0] == kinds[1] and kinds[0] in ("text", "number", "boolean", "list")
            if not fits and left is not _INVALID and right is not _INVALID:
                self._complain(node, f"compares a {left.kind} with a {right.kind}", "compare what is of one kind")
            left = right
        return _BOOLEAN


def _either(left: _ValueBounds, right: _ValueBounds) -> _ValueBounds:
    if left is _INVALID or right is _INVALID:
        return _INVALID
    same = left.kind if left.kind == right.kind else "mixed"
    return _ValueBounds(same, max(left.chars, right.chars), max(left.items, right.items))


def _of_variable(variable: Variable) -> _ValueBounds:
    if isinstance(variable, StringVariable):
        return _ValueBounds("text", variable.max_length)
    if isinstance(variable, EnumVariable):
        return _ValueBounds("text", max(map(len, variable.values)))
    if isinstance(variable, ListVariable):
        return _ValueBounds("list", variable.max_items * variable.max_length, variable.max_items)
    return _BOOLEAN if variable.type == "boolean" else _NUMBER


_WORDS: Final[Mapping[type[nodes.Node], str]] = {
    nodes.Call: "a call",
    nodes.Getattr: "looking into a value",
    nodes.Getitem: "looking into a value",
    nodes.Include: "an include",
    nodes.Import: "an import",
    nodes.FromImport: "an import",
    nodes.Extends: "extending another template",
    nodes.Macro: "a macro",
    nodes.Assign: "an assignment",
    nodes.AssignBlock: "an assignment",
    nodes.Test: "a test with `is`",
    nodes.Concat: "joining with ~",
}


def _in_words(node: nodes.Node) -> str:
    if isinstance(node, nodes.BinExpr | nodes.UnaryExpr):
        return "arithmetic"
    return _WORDS.get(type(node), type(node).__name__.lower())
