"""Rights on the command line: the allowlists and caps of an organisation, tenant, project or key, as options of `create` and `set`."""

from dataclasses import dataclass, fields
from typing import Annotated, Any, Final

import typer

from gateway.cli.groups import Options
from gateway.cli.printing import fail

PANEL: Final = "Rights"
ANY: Final = "any"
"""The word that lifts a list or a cap, so that the levels above decide."""
CLASSES: Final = ("critical", "interactive", "default", "batch")


@dataclass
class RightsOptions(Options):
    """The options for rights. An option that is left out changes nothing; the tightest of all levels counts."""

    models: Annotated[
        str | None,
        typer.Option(metavar="NAME,…", help=f"Models it may use, with commas; {ANY} lifts the list.", rich_help_panel=PANEL),
    ] = None
    adapters: Annotated[
        str | None, typer.Option(metavar="NAME,…", help=f"Adapters it may use, with commas; {ANY} lifts the list.", rich_help_panel=PANEL)
    ] = None
    endpoints: Annotated[
        str | None,
        typer.Option(
            metavar="PATH,…", help=f"Paths of the data port it may use, as /v1/embeddings; {ANY} lifts the list.", rich_help_panel=PANEL
        ),
    ] = None
    max_input_tokens: Annotated[
        str | None, typer.Option(metavar="NUMBER", help=f"Most tokens of a prompt; {ANY} lifts the cap.", rich_help_panel=PANEL)
    ] = None
    max_output_tokens: Annotated[
        str | None, typer.Option(metavar="NUMBER", help=f"Most output tokens per choice; {ANY} lifts the cap.", rich_help_panel=PANEL)
    ] = None
    max_choices: Annotated[str | None, typer.Option(metavar="NUMBER", help=f"Largest `n`; {ANY} lifts the cap.", rich_help_panel=PANEL)] = (
        None
    )
    max_logprobs: Annotated[
        str | None,
        typer.Option(metavar="NUMBER", help=f"Largest `top_logprobs`; {ANY} lifts the cap.", rich_help_panel=PANEL),
    ] = None
    tools: Annotated[bool | None, typer.Option("--tools/--no-tools", help="Whether requests may carry tools.", rich_help_panel=PANEL)] = (
        None
    )
    highest: Annotated[
        str | None,
        typer.Option(
            "--class",
            metavar="CLASS",
            help=f"The highest priority class of its requests: {', '.join(CLASSES)}; {ANY} leaves it to the policy.",
            rich_help_panel=PANEL,
        ),
    ] = None

    @property
    def given(self) -> bool:
        """Whether any option was written."""
        return any(getattr(self, option.name) is not None for option in fields(self))

    def applied(self, rights: dict[str, Any] | None = None) -> dict[str, Any]:
        """The rights of an object, as the admin API takes them, with the options that were written; ends the command for a bad value."""
        changed = {"caps": {}, **(rights or {})}
        caps = dict(changed["caps"])
        for option, name in (("models", "models"), ("adapters", "loras"), ("endpoints", "endpoints")):
            if (text := getattr(self, option)) is not None:
                changed[name] = None if text == ANY else [part for part in map(str.strip, text.split(",")) if part]
        for name in ("max_input_tokens", "max_output_tokens", "max_choices", "max_logprobs"):
            if (text := getattr(self, name)) is not None:
                caps[name] = None if text == ANY else _cap(f"--{name.replace('_', '-')}", text)
        if self.tools is not None:
            caps["tools"] = self.tools
        if self.highest is not None:
            if self.highest not in (*CLASSES, ANY):
                fail(f"--class {self.highest!r} is no class; write one of {', '.join(CLASSES)}, or {ANY}", code=2)
            changed["priority_class"] = None if self.highest == ANY else self.highest
        return {**changed, "caps": caps}


def shown_rights(rights: dict[str, Any]) -> dict[str, Any]:
    """Rights as fields for people: those that bound something."""
    lists = {label: rights[name] for label, name in (("models", "models"), ("adapters", "loras"), ("endpoints", "endpoints"))}
    fields_of = {label: (names or "none") for label, names in lists.items() if names is not None}
    caps = {name: value for name, value in rights["caps"].items() if value is not None and name != "tools"}
    tools = {} if rights["caps"]["tools"] else {"tools": "not allowed"}
    highest = {} if rights["priority_class"] is None else {"class": rights["priority_class"]}
    return {**fields_of, **caps, **tools, **highest}


def _cap(option: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        fail(f"{option} {text!r} is no whole number; write one, or {ANY} to lift the cap", code=2)
    return int(text)
