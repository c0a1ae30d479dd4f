"""Structured output: the spellings of one constraint on an answer's form, and how each kind of engine takes it. Pure.

Callers write for one engine, and the pool may run another. vLLM before 0.12 had `guided_json`, `guided_regex`, `guided_choice` and
`guided_grammar`; later releases have `structured_outputs` and ignore the old names. SGLang has `regex` and `ebnf`, llama.cpp has
`json_schema` and `grammar`. Each engine answers 200 with free text where it does not know a name: SGLang 0.5.23 reads `json_schema` in
completions alone, llama.cpp reads `response_format` in chats alone, and `json_schema` only as an object (read in the sources of vLLM 0.32
and SGLang 0.5.23; tried on llama.cpp's server).

Grammars are GBNF, which llama.cpp defines and the two others read. A grammar in vLLM's second language (Lark) is refused by the others.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

import msgspec

from domain.ask import Endpoint
from domain.faults import Fault, Kind

FORMAT: Final = "response_format"
OBJECT: Final = "structured_outputs"

SPELLINGS: Final[Mapping[str, str]] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structural_tag": "structural_tag",
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "grammar": "grammar",
}
"""Engines' own fields, each with the kind of its constraint. `whitespace_pattern` is an option of a JSON schema."""

STRUCTURE: Final = frozenset({*SPELLINGS, OBJECT})
"""Engines' own fields for structured output, besides `response_format`."""

KINDS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
OPTIONS: Final = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")

MAX_GRAMMAR_CHARS: Final = 64 * 1024
"""Longest grammar that is made of choices: as much as a schema may have."""

_ANY_OBJECT: Final = {"type": "object"}
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}


class Constraint(msgspec.Struct, frozen=True):
    """The form that an answer must have."""

    kind: str
    value: Any
    param: str
    """The path at which the caller wrote it."""


class StructureFields(msgspec.Struct, frozen=True):
    """The fields in which one kind of engine takes a constraint."""

    native: Mapping[Endpoint, frozenset[str]]
    """The fields that go to the engine as the caller wrote them."""
    written_as: Mapping[str, str]
    """The engine's field for each kind and option that it knows."""
    advice: str
    """The fields to send instead of a constraint that the engine does not know."""

    def foreign(self, names: frozenset[str], endpoint: Endpoint) -> bool:
        """Whether a request with these names has a field that the engine would ignore or refuse."""
        constraints = (names & STRUCTURE) | (names & {FORMAT})
        return not constraints <= self.native.get(endpoint, frozenset())


_BOTH: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)

VLLM: Final = StructureFields(
    dict.fromkeys(_BOTH, frozenset({OBJECT, FORMAT})),
    dict.fromkeys((*KINDS, *OPTIONS), OBJECT),
    "send 'response_format' or 'structured_outputs'",
)
SGLANG: Final = StructureFields(
    dict.fromkeys(_BOTH, frozenset({"regex", "ebnf", FORMAT})),
    {"json": FORMAT, "json_object": FORMAT, "structural_tag": FORMAT, "regex": "regex", "grammar": "ebnf"},
    "send 'response_format', 'regex' or 'ebnf'",
)
LLAMACPP: Final = StructureFields(
    {Endpoint.CHAT: frozenset({"grammar", FORMAT}), Endpoint.COMPLETIONS: frozenset({"grammar"})},
    {"json": "json_schema", "json_object": "json_schema", "grammar": "grammar"},
    "send 'response_format', 'json_schema' or 'grammar'",
)
_GUIDED: Final = frozenset({"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_whitespace_pattern"})
DYNAMO: Final = StructureFields(
    {Endpoint.CHAT: _GUIDED | {FORMAT}, Endpoint.COMPLETIONS: _GUIDED},
    {SPELLINGS[name]: name for name in _GUIDED} | {"json_object": "guided_json"},
    "send 'guided_json', 'guided_regex', 'guided_choice' or 'guided_grammar'",
)


def translate_structure(document: dict[str, msgspec.Raw], rules: StructureFields) -> None:
    """Write the constraint of a request in the engine's own field, in place of the caller's.

    Raises:
        Fault: INVALID_VALUE for several constraints, or a schema that is no JSON object; UNSUPPORTED_PARAMETER with the path of a
            constraint or option that the engine does not know.
    """
    options: dict[str, Constraint] = {}
    constraints: list[Constraint] = []
    for name in [name for name in document if name in STRUCTURE or name == FORMAT]:
        for constraint in _read(name, msgspec.json.decode(document.pop(name))):
            if constraint.kind in OPTIONS:
                options[constraint.kind] = constraint
            else:
                constraints.append(constraint)
    for option in options.values():
        if option.kind not in rules.written_as:
            _refuse(option, rules)
    if len(constraints) > 1:
        first, second = constraints[0].param, constraints[1].param
        raise Fault(Kind.INVALID_VALUE, f"Send either '{first}' or '{second}': an answer has one form.", param=second)
    if constraints:
        written = _written(constraints[0], rules)
        if OBJECT in written:
            written[OBJECT] |= {name: option.value for name, option in options.items()}
        else:
            written |= {rules.written_as[name]: option.value for name, option in options.items()}
        document |= {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in written.items()}


def _read(name: str, value: Any) -> Iterator[Constraint]:
    """The constraints and options that a field holds; none where it is null or at its default."""
    if value is None:
        return
    if name == FORMAT:
        yield from _read_format(value)
    elif name == OBJECT:
        for kind, inner in value.items():
            if inner is not None and inner is not False:
                yield Constraint(kind, inner, f"{OBJECT}.{kind}")
    else:
        yield Constraint(SPELLINGS[name], value, name)


def _read_format(value: Mapping[str, Any]) -> Iterator[Constraint]:
    kind = value.get("type")
    if kind == "json_schema":
        # without a schema any object will do, as in the engines
        yield Constraint("json", value["json_schema"].get("schema") or _ANY_OBJECT, f"{FORMAT}.json_schema.schema")
    elif kind == "json_object":
        schema = value.get("schema")  # llama.cpp's and SGLang's extension
        yield Constraint("json_object", True, FORMAT) if schema is None else Constraint("json", schema, f"{FORMAT}.schema")
    elif kind != "text":
        yield Constraint(str(kind), value, FORMAT)


def _written(constraint: Constraint, rules: StructureFields) -> dict[str, Any]:
    """The engine's fields for a constraint."""
    kind, value = constraint.kind, constraint.value
    field = rules.written_as.get(kind)
    if kind == "choice" and field is None:
        field, value = rules.written_as.get("grammar"), _grammar_of(constraint)
    if field is None:
        _refuse(constraint, rules)
    if field == OBJECT:
        if kind == "structural_tag" and not isinstance(value, str):
            value = msgspec.json.encode(value).decode()
        return {OBJECT: {kind: value}}
    if kind == "json":
        value = _object_of(constraint)
    elif kind == "json_object":
        value = _ANY_OBJECT
    if field != FORMAT:
        return {field: value}
    if kind == "json_object":
        return {FORMAT: {"type": "json_object"}}
    if kind == "structural_tag":
        return {FORMAT: {**_object_of(constraint), "type": "structural_tag"}}
    return {FORMAT: {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}}


def _object_of(constraint: Constraint) -> dict[str, Any]:
    """A JSON schema or tag, which vLLM takes as a text, too."""
    value = constraint.value
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for '{constraint.param}': it is no JSON object.", param=constraint.param)
    return value


def _grammar_of(constraint: Constraint) -> str:
    """The grammar that allows exactly the choices."""
    choices = constraint.value
    if not (isinstance(choices, list) and choices and all(isinstance(choice, str) for choice in choices)):
        raise Fault(Kind.INVALID_VALUE, f"Invalid value for '{constraint.param}': expected an array of strings.", param=constraint.param)
    grammar = "root ::= " + " | ".join(f'"{_escaped(choice)}"' for choice in choices)
    if len(grammar) > MAX_GRAMMAR_CHARS:
        message = f"Invalid value for '{constraint.param}': together the choices may have {MAX_GRAMMAR_CHARS} characters here."
        raise Fault(Kind.INVALID_VALUE, message, param=constraint.param)
    return grammar


def _escaped(choice: str) -> str:
    """A choice inside quotes. Engines agree on four digits after `\\u` and differ in how many they read after `\\x`."""
    return "".join(_ESCAPES.get(char) or (char if char.isprintable() else _code_point(char)) for char in choice)


def _code_point(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _refuse(constraint: Constraint, rules: StructureFields) -> NoReturn:
    message = f"The parameter '{constraint.param}' is not supported by the engine serving this model: {rules.advice}."
    raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=constraint.param)
