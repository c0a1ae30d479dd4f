"""Tools and their choice, and what is refused by name."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.responses.tools import MAX_NAME, MAX_TOOLS, CalledTool, ResponseTools
from policies.caps import RequestCaps
from tests.responses_wire import CUSTOM, FUNCTION, chat_for

NAMESPACE = {"type": "namespace", "name": "files", "description": "d", "tools": [FUNCTION, CUSTOM]}

HOSTED = [
    *("web_search", "web_search_preview", "web_search_preview_2025_03_11", "web_search_2025_08_26", "file_search", "code_interpreter"),
    *("image_generation", "mcp", "computer", "computer_use_preview", "local_shell", "shell", "apply_patch", "tool_search"),
    "programmatic_tool_calling",
]
"""The types of tools in the description of the API that the vendor runs, or that change what the model is told."""


def made(*tools: dict[str, Any]) -> ResponseTools:
    found = ResponseTools()
    found.add(list(tools), "tools")
    return found


def test_a_function_is_nested_and_keeps_what_engines_read() -> None:
    (tool,) = made({**FUNCTION, "description": "d", "defer_loading": True, "output_schema": {}}).functions
    parameters = {"type": "object"}
    assert tool == {"type": "function", "function": {"name": "look", "description": "d", "parameters": parameters, "strict": True}}


def test_a_function_says_nothing_that_its_caller_did_not_say() -> None:
    found = made({"type": "function", "name": "f", "parameters": None})
    assert found.functions == [{"type": "function", "function": {"name": "f"}}]
    assert found.echo == [{"type": "function", "name": "f", "parameters": None, "strict": None}]


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    found = made(CUSTOM)
    (tool,) = found.functions
    parameters = tool["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == (["input"], ["input"])
    assert found.called == {"patch": CalledTool("patch", None, custom=True)}
    assert found.echo == [CUSTOM]


@pytest.mark.parametrize(("syntax", "words"), [("lark", "Lark grammar"), ("regex", "regular expression")])
def test_a_grammar_stands_in_the_description(syntax: str, words: str) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": "start: WORD"}
    (tool,) = made({**CUSTOM, "description": "Patches files.", "format": form}).functions
    description = tool["function"]["description"]
    assert description.startswith("Patches files.\n\n")
    assert words in description
    assert description.endswith("start: WORD")


def test_the_tools_of_a_namespace_are_functions_with_its_name_before_theirs() -> None:
    found = made(FUNCTION, NAMESPACE, {**NAMESPACE, "name": "mcp__git__"})
    names = ["look", "files__look", "files__patch", "mcp__git__look", "mcp__git__patch"]
    assert [tool["function"]["name"] for tool in found.functions] == names
    assert found.called["mcp__git__patch"] == CalledTool("patch", "mcp__git__", custom=True)
    assert [tool["type"] for tool in found.echo] == ["function", "namespace", "namespace"]


def test_a_namespace_has_no_long_name_because_every_tool_repeats_it() -> None:
    longest = MAX_NAME - len("__look")
    assert len(made({**NAMESPACE, "name": "n" * longest, "tools": [FUNCTION]}).functions[0]["function"]["name"]) == MAX_NAME
    for namespace in ({"name": "n" * (longest + 1), "tools": [FUNCTION]}, {"name": "n", "tools": [{**FUNCTION, "name": "f" * MAX_NAME}]}):
        with pytest.raises(Fault) as caught:
            made(FUNCTION, {**NAMESPACE, **namespace})
        assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, "tools[1].name")
        assert "'tools[1].name'" in caught.value.message


def test_a_request_has_no_more_tools_than_any_policy_lets_through() -> None:
    tools = [{"type": "function", "name": f"f{number}"} for number in range(MAX_TOOLS)]
    assert len(made(*tools).functions) == MAX_TOOLS
    assert [bound.le for bound in RequestCaps.model_fields["tools"].metadata if hasattr(bound, "le")] == [MAX_TOOLS]
    with pytest.raises(Fault) as caught:
        made(*tools, {**NAMESPACE, "tools": [FUNCTION]})
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID_VALUE, f"tools[{MAX_TOOLS}].tools[0]")


@pytest.mark.parametrize("kind", HOSTED)
def test_what_the_vendor_runs_is_refused_by_name(kind: str) -> None:
    with pytest.raises(Fault) as caught:
        made(FUNCTION, {"type": kind})
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, "tools[1].type")
    assert f"'{kind}'" in caught.value.message
    with pytest.raises(Fault) as caught:
        made(FUNCTION).choose({"type": kind}, "tool_choice")
    assert (caught.value.kind, caught.value.param) == (Kind.UNSUPPORTED_PARAMETER, "tool_choice.type")


def test_codex_is_told_how_to_leave_out_its_search() -> None:
    with pytest.raises(Fault, match='web_search = "disabled"'):
        made({"type": "web_search", "external_web_access": False})


@pytest.mark.parametrize(
    ("tool", "param", "kind"),
    [
        (5, "tools[0]", Kind.INVALID_VALUE),
        ({}, "tools[0].type", Kind.MISSING_PARAMETER),
        ({"type": 5}, "tools[0].type", Kind.INVALID_VALUE),
        ({"type": "hammer"}, "tools[0].type", Kind.INVALID_VALUE),
        ({"type": "function"}, "tools[0].name", Kind.MISSING_PARAMETER),
        ({"type": "function", "function": {"name": "f"}}, "tools[0].name", Kind.MISSING_PARAMETER),
        ({"type": "custom", "name": 5}, "tools[0].name", Kind.INVALID_VALUE),
        ({**CUSTOM, "description": 5}, "tools[0].description", Kind.INVALID_VALUE),
        ({**CUSTOM, "format": 5}, "tools[0].format", Kind.INVALID_VALUE),
        ({**CUSTOM, "format": {"type": "json"}}, "tools[0].format.type", Kind.INVALID_VALUE),
        ({**CUSTOM, "format": {"type": "grammar", "syntax": "lark"}}, "tools[0].format.definition", Kind.INVALID_VALUE),
        ({**CUSTOM, "format": {"type": "grammar", "syntax": "gbnf", "definition": "x"}}, "tools[0].format.syntax", Kind.INVALID_VALUE),
        ({"type": "namespace", "name": "n"}, "tools[0].tools", Kind.INVALID_VALUE),
        ({"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}, "tools[0].tools[0].type", Kind.UNSUPPORTED_PARAMETER),
    ],
)
def test_a_tool_that_cannot_be_read_is_refused_with_its_place(tool: Any, param: str, kind: Kind) -> None:
    with pytest.raises(Fault) as caught:
        made(tool)
    assert (caught.value.kind, caught.value.param) == (kind, param)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Fault) as caught:
        made(FUNCTION, {**CUSTOM, "name": "look"})
    assert caught.value.param == "tools[1].name"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}),
    ],
)
def test_a_choice_names_the_function(choice: Any, expected: Any) -> None:
    assert made(FUNCTION, CUSTOM).choose(choice, "tool_choice") == expected


def test_allowed_tools_leave_only_these() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}
    chat = chat_for(input="x", tools=[FUNCTION, CUSTOM], tool_choice=allowed)
    assert chat["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["patch"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (5, "tool_choice"),
        ({"type": "function", "name": "other"}, "tool_choice.name"),
        ({"type": "function"}, "tool_choice.name"),
        ({"type": "allowed_tools"}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": []}, "tool_choice.tools"),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "other"}]}, "tool_choice.tools[0].name"),
        ({"type": "allowed_tools", "mode": "some", "tools": [{"type": "function", "name": "look"}]}, "tool_choice.mode"),
    ],
)
def test_a_choice_of_no_tool_is_refused_with_its_place(choice: Any, param: str) -> None:
    with pytest.raises(Fault) as caught:
        made(FUNCTION).choose(choice, "tool_choice")
    assert caught.value.param == param
