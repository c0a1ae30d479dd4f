"""Tools: the flat forms of the Responses API to the functions of a chat, and what a call of each function is called on the way back.

A chat knows one kind of tool. So a custom tool, whose input is free text, becomes a function with one string, and the tools of a namespace,
which the caller runs itself as it does any function (Codex CLI puts its MCP servers there), become functions whose names begin with that of
the namespace. Tools that the vendor runs on its own servers are refused by name: to drop them silently would promise the model's user a
search that nobody makes.
"""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec

from domain.faults import Fault, Kind
from gateway.http.openai.checks import refuse, refuse_type, shown

INPUT: Final = "input"
"""The one parameter of the function that stands for a custom tool."""

_WEB: Final = 'leave it out; Codex CLI does so with web_search = "disabled" in its config.toml'
_SHELL: Final = "describe your own shell as a function tool, as Codex CLI does by default"
_HOSTED: Final[Mapping[str, str]] = {
    "web_search": _WEB,
    "file_search": "search your documents yourself and send what you find as input",
    "code_interpreter": "describe your own interpreter as a function tool",
    "image_generation": "leave it out; Codex CLI does so with image_generation = false under [features] in its config.toml",
    "mcp": "connect to the MCP server yourself and send its tools as function tools",
    "computer": "describe the actions as function tools",
    "local_shell": _SHELL,
    "shell": _SHELL,
    "apply_patch": "describe it as a function tool or a custom tool",
    "tool_search": "send all tools as function tools, without defer_loading",
    "programmatic_tool_calling": "leave it out; the model calls the tools itself",
}
"""By the beginning of the type: what to do instead. Types get suffixes, as in `web_search_preview_2025_03_11`."""

_KEPT: Final = ("description", "parameters", "strict")

MAX_TOOLS: Final = 4096
"""Most tools of one request, each of a namespace counted: the most that a policy can let through (`caps.tools`)."""

MAX_NAME: Final = 128
"""Most characters of a namespace's name together with that of a tool in it. Every tool of the namespace repeats its name, and OpenAI takes
names of functions up to 64."""


class CalledTool(msgspec.Struct, frozen=True, gc=False):
    """What the caller calls a function of the chat."""

    name: str
    namespace: str | None = None
    custom: bool = False


class ResponseTools(msgspec.Struct, eq=False):
    """The tools of one request in both forms."""

    functions: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """The tools of the chat."""
    called: dict[str, CalledTool] = msgspec.field(default_factory=dict)
    """The caller's names, by the name of the function."""
    echo: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """The tools as a reply lists them."""

    def add(self, tools: object, param: str) -> None:
        """Add the tools of a list.

        Raises:
            Fault: UNSUPPORTED_PARAMETER for a tool that the vendor runs; MISSING_PARAMETER or INVALID_VALUE for one that cannot be read,
                whose name is too long behind that of its namespace, or that is one too many.
        """
        if type(tools) is not list:
            refuse_type("an array", tools, param)
        for index, tool in enumerate(tools):
            where = f"{param}[{index}]"
            if _type_of(tool, where) == "namespace":
                self._add_namespace(tool, where)
                self.echo.append(tool)
            else:
                self._add_tool(tool, where, None)

    def _add_namespace(self, tool: dict[str, Any], where: str) -> None:
        namespace = _name_of(tool, where)
        inner = tool.get("tools")
        if type(inner) is not list:
            refuse_type("an array", inner, f"{where}.tools")
        for index, member in enumerate(inner):
            self._add_tool(member, f"{where}.tools[{index}]", namespace)

    def _add_tool(self, tool: Any, where: str, namespace: str | None) -> None:
        kind = _type_of(tool, where)
        if kind not in ("function", "custom"):
            _refuse_kind(kind, f"{where}.type")
        if len(self.called) == MAX_TOOLS:
            refuse(f"Invalid value for '{where}': a request has at most {MAX_TOOLS} tools, those of namespaces counted.", where)
        name = _name_of(tool, where)
        if namespace is not None:
            _check_length(namespace, name, where)
        function = function_name(name, namespace)
        if function in self.called:
            refuse(f"Invalid value for '{where}.name': a tool named {shown(function)} stands in the list already.", f"{where}.name")
        self.called[function] = CalledTool(name, namespace, kind == "custom")
        form = _custom(tool, function, where) if kind == "custom" else {"name": function, **_kept(tool)}
        self.functions.append({"type": "function", "function": form})
        if namespace is None:
            # the description of the API requires both members in a reply and lets a request leave them out
            self.echo.append(tool if kind == "custom" else {**tool, "parameters": tool.get("parameters"), "strict": tool.get("strict")})

    def choose(self, choice: object, param: str) -> object:
        """The `tool_choice` of the chat. A choice of `allowed_tools` leaves only those in the list.

        Raises:
            Fault: UNSUPPORTED_PARAMETER for a tool that the vendor runs, MISSING_PARAMETER or INVALID_VALUE for a choice without a tool.
        """
        if type(choice) is str:
            return choice
        if type(choice) is not dict:
            refuse_type("a string or an object", choice, param)
        if choice.get("type") == "allowed_tools":
            return self._allow(choice, param)
        return {"type": "function", "function": {"name": self._chosen(choice, param)}}

    def _chosen(self, choice: object, where: str) -> str:
        kind = _type_of(choice, where)
        if kind not in ("function", "custom"):
            _refuse_kind(kind, f"{where}.type")
        name = function_name(_name_of(choice, where), choice.get("namespace"))  # type: ignore[attr-defined]  # `_type_of` has seen a dict
        if name not in self.called:
            refuse(f"Invalid value for '{where}.name': no tool is named {shown(name)}.", f"{where}.name")
        return name

    def _allow(self, choice: dict[str, Any], param: str) -> object:
        allowed = choice.get("tools")
        if type(allowed) is not list:
            refuse_type("an array", allowed, f"{param}.tools")
        if not allowed:
            refuse(f"Invalid value for '{param}.tools': it is empty. Send tool_choice 'none' to allow no tool.", f"{param}.tools")
        names = {self._chosen(tool, f"{param}.tools[{index}]") for index, tool in enumerate(allowed)}
        self.functions = [tool for tool in self.functions if tool["function"]["name"] in names]
        mode = choice.get("mode", "auto")
        if mode not in ("auto", "required"):
            refuse(f"Invalid value for '{param}.mode': send 'auto' or 'required'.", f"{param}.mode")
        return mode


def function_name(name: str, namespace: object) -> str:
    """The name of the function that stands for a tool of a namespace, or of none."""
    if type(namespace) is not str or not namespace:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


def _check_length(namespace: str, name: str, where: str) -> None:
    """Check the length of a tool's name behind that of its namespace.

    Args:
        where: the path of the tool.
    """
    if len(namespace) + len("__") + len(name) > MAX_NAME:
        param = f"{where[: where.rindex('.tools[')]}.name"
        refuse(
            f"Invalid value for '{param}': with the name of its tool {shown(name)} it is longer than {MAX_NAME} characters, '__' between "
            "them counted.",
            param,
        )


def _type_of(tool: object, where: str) -> str:
    if type(tool) is not dict:
        refuse_type("an object", tool, where)
    kind = tool.get("type")
    if kind is None:
        raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{where}.type'.", param=f"{where}.type")
    if type(kind) is not str:
        refuse_type("a string", kind, f"{where}.type")
    return kind


def _name_of(tool: object, where: str) -> str:
    name = tool.get("name")  # type: ignore[attr-defined]  # `_type_of` has seen that it is a dict
    if name is None:
        message = f"Missing required parameter: '{where}.name'. Tools are flat here: the name stands beside the type."
        raise Fault(Kind.MISSING_PARAMETER, message, param=f"{where}.name")
    if type(name) is not str:
        refuse_type("a string", name, f"{where}.name")
    return name


def _refuse_kind(kind: str, param: str) -> NoReturn:
    """Refuse a tool that is neither a function nor a custom tool.

    Raises:
        Fault: UNSUPPORTED_PARAMETER where the vendor runs such tools, INVALID_VALUE where nobody does.
    """
    for beginning, instead in _HOSTED.items():
        if kind.startswith(beginning):
            message = f"The tool {shown(kind)} is not supported, because only OpenAI's own servers run it: {instead}."
            raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
    refuse(f"Invalid value for '{param}': {shown(kind)} is not one of function, custom, namespace.", param)


def _kept(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in _KEPT if tool.get(key) is not None}


def _custom(tool: Mapping[str, Any], function: str, where: str) -> dict[str, Any]:
    """The function that stands for a custom tool. A grammar is described to the model, because no engine takes one for one tool alone."""
    description = tool.get("description") or ""
    if type(description) is not str:
        refuse_type("a string", description, f"{where}.description")
    about = "The whole input of the tool, as free text."
    form = tool.get("format")
    if form is not None:
        if type(form) is not dict:
            refuse_type("an object", form, f"{where}.format")
        if form.get("type") == "grammar":
            definition, syntax = form.get("definition"), form.get("syntax")
            if type(definition) is not str:
                refuse_type("a string", definition, f"{where}.format.definition")
            if syntax not in ("lark", "regex"):
                refuse(f"Invalid value for '{where}.format.syntax': send 'lark' or 'regex'.", f"{where}.format.syntax")
            words = "this Lark grammar" if syntax == "lark" else "this regular expression"
            description = f"{description}\n\nThe text in `{INPUT}` must follow {words}:\n{definition}".lstrip()
            about = f"The whole input of the tool: free text that follows {words.replace('this', 'the')} in the description."
        elif form.get("type") != "text":
            refuse(f"Invalid value for '{where}.format.type': send 'text' or 'grammar'.", f"{where}.format.type")
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": about}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return {"name": function, **({"description": description} if description else {}), "parameters": parameters}
