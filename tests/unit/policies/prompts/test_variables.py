import pytest
from pydantic import TypeAdapter, ValidationError

from policies.prompts.variables import KINDS, VariableField, VariableRefused, checked

READ = TypeAdapter(VariableField)
DECLARED = {
    "string": ({"max_length": 3}, ["", "abc"], ["abcd", 1, True, ["a"], {"a": "b"}], "a string of at most 3 characters"),
    "integer": ({"minimum": 1, "maximum": 9}, [1, 9], [0, 10, 1.0, "1", True], "an integer between 1 and 9"),
    "number": ({"minimum": 0}, [0, 1.5, 10**15], [-1, float("nan"), float("inf"), "1", False], "a number between 0 and 1e+15"),
    "boolean": ({}, [True, False], [0, "true"], "true or false"),
    "enum": ({"values": ["a", "b"]}, ["a"], ["c", "A", 1, ["a"]], "one of 'a', 'b'"),
    "list": (
        {"max_items": 2, "max_length": 1},
        [[], ["a", ""]],
        [["a", "b", "c"], ["ab"], [1], "ab", {"a": "b"}],
        "an array of at most 2 strings of at most 1 characters each",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_checked_and_never_converted(kind):
    more, good, bad, words = DECLARED[kind]
    variables = {"v": READ.validate_python({"type": kind, **more})}
    for value in good:
        assert checked(variables, {"v": value}) == {"v": value}
    for value in bad:
        with pytest.raises(VariableRefused) as caught:
            checked(variables, {"v": value})
        assert (caught.value.name, caught.value.expected, caught.value.kind) == ("v", words, "wrong")


def test_what_has_a_default_may_be_left_out_or_null_and_all_else_may_not():
    variables = {"a": READ.validate_python({"type": "integer"}), "b": READ.validate_python({"type": "boolean", "default": False})}
    assert checked(variables, {"a": 1}) == checked(variables, {"a": 1, "b": None}) == {"a": 1, "b": False}
    for given in ({}, {"a": None, "b": True}):
        with pytest.raises(VariableRefused) as caught:
            checked(variables, given)
        assert (caught.value.name, caught.value.kind) == ("a", "missing")


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(VariableRefused) as caught:
        checked({"a": READ.validate_python({"type": "integer"})}, {"a": 1, "c": 1})
    assert (caught.value.name, caught.value.expected, caught.value.kind) == ("c", "a", "unknown")
    with pytest.raises(VariableRefused, match="expected none"):
        checked({}, {"c": None})


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"type": "text"},
        {"type": "string", "max_length": 70_000},
        {"type": "string", "default": 1},
        {"type": "string", "default": "x" * 5000},
        {"type": "integer", "minimum": 2, "maximum": 1},
        {"type": "enum", "values": []},
        {"type": "list", "default": ["x" * 2000]},
        {"type": "boolean", "minimum": 1},
    ],
)
def test_declarations_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        READ.validate_python(wrong)
