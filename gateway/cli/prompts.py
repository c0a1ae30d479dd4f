"""`tidegate prompt …`: lists prompts, and renders one with variables. The commands read files and need no gateway."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.connection import DEFAULT_CONFIG, Config
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import OutputOptions, err, fail, out
from gateway.config.load import load_settings
from policies.prompts.allowed import Registry
from policies.prompts.folder import PromptFolder
from policies.prompts.prompt import MAX_RENDERED_CHARS, RegisteredPrompt
from policies.prompts.template import TooLong
from policies.prompts.variables import Variable, VariableRefused
from policies.yaml.problems import ConfigError, listing

prompt_app = CommandGroup("The prompts that there are, and what they say.")

Folder = Annotated[Path | None, typer.Option(help="The folder of prompts; default: that of the settings.")]


@prompt_app.command("list")
def list_prompts(output: OutputOptions, folder: Folder = None, config: Config = DEFAULT_CONFIG) -> None:
    """Print every version of every prompt with its variables; those with a default are in brackets. Exit codes: 0 all of them load,
    1 one does not."""
    registry = _read(folder, config)
    rows = []
    for versions in (registry[name] for name in sorted(registry)):
        for version in sorted(versions):
            prompt = versions[version]
            variables = [_declared(name, variable) for name, variable in prompt.variables.items()]
            rows.append({"prompt": prompt.name, "messages": len(prompt.messages), "model": prompt.model, "variables": variables})
    output.show(rows, ("prompt", "messages", "model", "variables"), expendable=("messages",))


@prompt_app.command("render")
def render(
    prompt: Annotated[str, typer.Argument(help="Its id.")],
    var: Annotated[list[str] | None, typer.Option(help="`name=value`; again for further ones, and for each text of a list.")] = None,
    version: Annotated[int | None, typer.Option(help="Default: the highest.")] = None,
    folder: Folder = None,
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Print the messages of a prompt as JSON, as an engine would get them. Exit codes: 0 printed, 1 a variable does not do, 2 there is no
    such prompt."""
    registry = _read(folder, config)
    versions = registry.get(prompt)
    if versions is None:
        fail(f"there is no prompt {prompt!a:.70}; there are: {', '.join(sorted(registry)) or 'none'}", code=2)
    chosen = versions.get(max(versions) if version is None else version)
    if chosen is None:
        fail(f"the prompt {prompt} has no version {version}; there are: {', '.join(map(str, sorted(versions)))}", code=2)
    try:
        messages = chosen.rendered(_values(chosen, var or []))
    except VariableRefused as refused:
        fail(_in_words(refused))
    except TooLong:
        fail(f"it would have more than {MAX_RENDERED_CHARS} characters")
    text = msgspec.json.format(msgspec.json.encode(messages), indent=2).decode()
    out.print(text, markup=False, soft_wrap=True)


def _read(folder: Path | None, config: Path) -> Registry:
    try:
        registry, problems = PromptFolder(folder or load_settings(config).prompts_dir).read()
    except ConfigError as error:
        registry = {}
        problems = list(error.problems)
    if problems:
        err.print(listing(sorted(problems)), markup=False, soft_wrap=True)
        raise typer.Exit(1)
    return registry


def _declared(name: str, variable: Variable) -> str:
    declaration = f"{name}: {variable.type}"
    return declaration if variable.required else f"[{declaration}]"


def _values(prompt: RegisteredPrompt, written: list[str]) -> dict[str, object]:
    """Values by name, parsed as their variable's type; a value that cannot be parsed stays text, and rendering refuses it."""
    values: dict[str, object] = {}
    for assignment in written:
        name, equals, value = assignment.partition("=")
        if not equals:
            fail(f"--var {assignment!r}: write name=value", code=2)
        value = value.encode("utf-8", "replace").decode()
        variable = prompt.variables.get(name)
        if variable is not None and variable.type == "list":
            before = values.setdefault(name, [])
            assert isinstance(before, list)
            before.append(value)
        elif variable is not None and variable.type in ("integer", "number", "boolean"):
            values[name] = _scalar(value)
        else:
            values[name] = value
    return values


def _scalar(value: str) -> object:
    try:
        return msgspec.json.decode(value, type=bool | int | float)
    except msgspec.DecodeError:
        return value


def _in_words(refused: VariableRefused) -> str:
    if refused.kind == "unknown":
        return f"there is no variable {refused.name!a:.70}; there are: {refused.expected}"
    return f"the variable {refused.name}{' is missing' if refused.kind == 'missing' else ''}: expected {refused.expected}"
