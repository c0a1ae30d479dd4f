"""Assembles commands: groups, options that many commands share, and the root, which imports a group only when it is used.

A parameter of a command whose type is a subclass of `Options` stands for one option per field of that class: `gateway: GatewayOptions`
gives a command `--admin`, `--token-file` and `--config`. So these options are written once, and are the same everywhere.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from importlib import import_module
from typing import Any, Final, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

HELP_NAMES: Final[Mapping[str, Any]] = {"help_option_names": ["--help", "-h"]}
"""Context settings: the short form of `--help` works everywhere."""


class Options:
    """A bundle of options; subclasses are dataclasses whose fields are annotated as parameters of a command are."""

    def close(self) -> None:
        """Give back what the options opened; called when the command ends."""


class CliCommand(TyperCommand):
    """A command whose flags are shown without a type: `--json`, not `--json <bool>`."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, flags without a type."""
        return without_flag_types(super().get_params(ctx))


class CliGroup(TyperGroup):
    """A group of commands; flags as in `CliCommand`."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, flags without a type."""
        return without_flag_types(super().get_params(ctx))


def without_flag_types(params: Sequence[Any]) -> Sequence[Any]:
    """The parameters unchanged, but flags, which take no value, have an empty type column in help texts."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


class CommandGroup(typer.Typer):
    """A group of commands of one subject."""

    def __init__(self, about: str) -> None:
        super().__init__(cls=CliGroup, no_args_is_help=True, help=about, context_settings=dict(HELP_NAMES))

    def command(  # type: ignore[override]  # Typer names each setting
        self, name: str | None = None, **settings: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator that adds a command to the group."""
        register = super().command(name, cls=CliCommand, **settings)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            register(expanded(function))
            return function

        return decorate


def expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with one parameter per option in place of each parameter that is a bundle of options."""
    parameters = inspect.signature(function).parameters.values()
    bundles = {p.name: p.annotation for p in parameters if isinstance(p.annotation, type) and issubclass(p.annotation, Options)}
    if not bundles:
        return function
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters if p.name not in bundles]
    added = {name: list(_parameters_of(bundle)) for name, bundle in bundles.items()}

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        with ExitStack() as at_end:
            for name, bundle in bundles.items():
                options = bundle(**{option.name: values.pop(option.name) for option in added[name]})
                at_end.callback(options.close)
                values[name] = options
            return function(**values)

    every = own + [parameter for options in added.values() for parameter in options]
    command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # read by Typer
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    return command


def _parameters_of(bundle: type[Any]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    for field in fields(bundle):
        if field.init:
            yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])


class RootEntry(NamedTuple):
    """One command or group of the root: the place of its code, and its line in `tidegate --help`."""

    where: str
    """`module:name` of a function, or of a `CommandGroup`."""
    about: str = ""
    """The help line of a group; a command's own docstring begins with it."""


class LazyRoot(CliGroup):
    """The root: `--help` prints names and one line each, and imports nothing; a command is imported when it is called.

    `entries` is set on a subclass. Importing every command takes ten times as long as Typer and Rich do.
    """

    entries: Mapping[str, RootEntry] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # names only, for "did you mean"; `get_command` gives what help texts need
        self.commands = {name: CliCommand(name=name, help=entry.about) for name, entry in self.entries.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that is called."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, (command if name is None or name not in self.entries else loaded(name, self.entries[name])), rest


@functools.cache
def loaded(name: str, entry: RootEntry) -> Any:
    """The command or group of an entry with its parameters, imported and built once."""
    module, _, attribute = entry.where.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        command: Any = get_group(found)
    else:
        command = single_command(found)
    command.name = name
    return command


def single_command(function: Callable[..., Any]) -> Any:
    """The command that a function is, outside of any group."""
    group = CommandGroup("")
    group._add_completion = False  # the root has it
    group.command()(function)
    return get_command(group)
