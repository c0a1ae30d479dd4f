"""The reference of the commands: the generated part of docs/reference/cli.md, made from the commands themselves.

Options that many commands share (the gateway, output, rights) have one table each; a command names the tables that it takes.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gateway.cli.connection import PANEL as GATEWAY_PANEL
from gateway.cli.groups import Options, RootEntry, loaded, single_command
from gateway.cli.printing import PANEL as OUTPUT_PANEL
from gateway.cli.rights import PANEL as RIGHTS_PANEL

SHARED: Final = {
    "--admin": (GATEWAY_PANEL, "[the gateway](#the-gateway)"),
    "--models": (RIGHTS_PANEL, "[rights](#rights)"),
    "--csv": (OUTPUT_PANEL, "[output](#output)"),
}
"""By an option that only the whole bundle has: its panel, and the link to its table."""

TYPES: Final = {"str": "TEXT", "Path": "PATH", "int": "NUMBER", "float": "NUMBER"}


def command_reference(entries: Mapping[str, RootEntry]) -> str:
    """Every command with its arguments and options, as Markdown."""
    parts = []
    for name in sorted(entries):
        command = loaded(name, entries[name])
        own = getattr(command, "commands", None)
        parts.append(f"### tidegate {name}\n\n{command_text(command)}\n")
        if own is None:
            parts.append("".join(_described(f"tidegate {name}", command)))
            continue
        for sub in sorted(own):
            parts.append(f"#### tidegate {name} {sub}\n\n{command_text(own[sub])}\n")
            parts.append("".join(_described(f"tidegate {name} {sub}", own[sub])))
    return "\n".join(parts)


def shared_options(bundle: type[Options]) -> str:
    """The table of a bundle of options."""

    def command(options: Options) -> None:
        """Take the options."""

    command.__annotations__["options"] = bundle
    return _table(single_command(command).params)


def command_text(command: Any) -> str:
    """A command's help text; single line breaks are none."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _described(path: str, command: Any) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and not param.hidden]
    names = {name for option in options for name in option.opts}
    bundles = [bundle for name, bundle in SHARED.items() if name in names]
    own = [option for option in options if option.rich_help_panel not in {panel for panel, _ in bundles}]
    usage = " ".join([path, *(placeholder(argument) for argument in arguments), *(["[OPTIONS]"] if options else [])])
    yield f"```text\n{usage}\n```\n"
    if arguments or own:
        yield f"\n{_table([*arguments, *own])}"
    links = [link for _, link in bundles]
    if "--admin" in names and "--offline" not in names:
        links[0] += ", which has to run (no `--offline`)"
    if links:
        yield f"\n{'Also' if own else 'Options'}: {'; '.join(links)}.\n"


def _table(params: Sequence[Any]) -> str:
    return "| option | meaning |\n|---|---|\n" + "".join(f"| {_name(param)} | {_meaning(param)} |\n" for param in params)


def placeholder(argument: Any) -> str:
    """An argument as a usage line names it; in brackets where it may be left out."""
    name = argument.metavar or argument.name.upper().strip("_")
    name += "..." if argument.nargs != 1 else ""
    return name if argument.required else f"[{name}]"


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{placeholder(param)}`"
    names, kind = option_names(param)
    # in a table of Markdown a bar needs a backslash, inside of code too
    value = " `" + kind.replace("|", "\\|") + "`" if kind else ""
    return ", ".join(f"`{name}`" for name in names) + value


def option_names(param: Any) -> tuple[list[str], str]:
    """The names of an option, long ones first, and the word for its value, which is empty for a flag."""
    names = sorted([*param.opts, *param.secondary_opts], key=lambda name: (name.startswith("--no-"), not name.startswith("--")))
    if param.is_flag:
        return names, ""
    choices = param.type_descriptor.choices if param.type_descriptor.is_choice else ()
    words = "|".join(map(str, choices or ()))
    bare = param.bare_type()
    return names, param.metavar or words or TYPES.get(bare.removeprefix("list[").removesuffix("]")) or bare


def _meaning(param: Any) -> str:
    return option_meaning(param).replace("|", "\\|")


def option_meaning(param: Any) -> str:
    """What an option or argument is for, with its default."""
    text = " ".join((param.help or "").split())
    default = param.default
    remarks = ["required"] if param.required and param.param_type_name == "option" else []
    shown = default is not None and default is not False and default != "" and default != () and "default" not in text
    if shown and not callable(default) and not (param.param_type_name == "option" and param.is_flag):
        remarks.append(f"default: `{default}`")
    return text + (f" ({'; '.join(remarks)})" if remarks else "")
