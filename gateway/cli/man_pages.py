"""The manual pages and the shell completion of the command line, both made from the commands themselves.

`man_pages` gives one page of section 1 for each command of the root, with its sub-commands, and one for `tidegate` itself. Completion is
Typer's: a script that asks the program what may follow. Both are files of the wheel (`share/man`, `share/bash-completion`, …).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from typer._completion_shared import get_completion_script

from gateway.cli.groups import RootEntry, loaded
from gateway.cli.reference import command_text, option_meaning, option_names, placeholder

PROGRAM: Final = "tidegate"
COMPLETIONS: Final = {"bash": "tidegate.bash", "zsh": "_tidegate", "fish": "tidegate.fish"}
"""By shell: the file of its completion, with the name that the shell looks for (bash takes it without the ending)."""
ONE_FOR_ALL: Final = {"simengine": "The options stand behind \\-\\-; tidegate simengine \\-\\- \\-\\-help prints them."}


def man_pages(entries: Mapping[str, RootEntry]) -> dict[str, str]:
    """The pages by file name, in the macros of man(7)."""
    pages = {f"{PROGRAM}.1": _root_page(entries)}
    for name in sorted(entries):
        pages[f"{PROGRAM}-{name}.1"] = "\n".join(_command_page(name, entries[name])) + "\n"
    return pages


def completions() -> dict[str, str]:
    """The completion scripts by file name."""
    variable = f"_{PROGRAM.upper()}_COMPLETE"
    scripts = {}
    for shell, file in COMPLETIONS.items():
        scripts[file] = get_completion_script(prog_name=PROGRAM, complete_var=variable, shell=shell) + "\n"
    # zsh runs the file at the first completion, which Typer's script only prepares
    scripts[COMPLETIONS["zsh"]] += f'[ "${{funcstack[1]}}" = "_{PROGRAM}" ] && _{PROGRAM}_completion\n'
    return scripts


def terminal_files(entries: Mapping[str, RootEntry]) -> dict[str, str]:
    """What docs/terminal holds: the manual pages in `man` and the completion in `completion`, text by path."""
    pages = {f"man/{name}": text for name, text in man_pages(entries).items()}
    return pages | {f"completion/{name}": text for name, text in completions().items()}


def _root_page(entries: Mapping[str, RootEntry]) -> str:
    lines = [*_title(PROGRAM, "the front door of a self-hosted LLM fleet"), ".SH SYNOPSIS", ".B tidegate", ".I COMMAND", "[OPTIONS]"]
    lines += [".SH DESCRIPTION", "Tidegate is a gateway in front of inference engines. Each of its commands has a page of its own."]
    lines += [".SH COMMANDS"]
    for name in sorted(entries):
        lines += [".TP", f".BR {PROGRAM}\\-{_escaped(name)} (1)", _line(entries[name].about)]
    lines += [".SH OPTIONS", ".TP", ".B \\-\\-version", "Print the versions of Tidegate and Python."]
    lines += [".TP", ".BR \\-\\-help , \\-h", "Print what a command takes; every command has it."]
    lines += [".SH EXIT STATUS", "0: done. 1: failed. 2: wrong usage."]
    lines += [".SH FILES", ".TP", ".I tidegate.yaml", "The settings, in the current folder unless \\-\\-config names another file."]
    return "\n".join(lines) + "\n"


def _command_page(name: str, entry: RootEntry) -> Iterator[str]:
    command = loaded(name, entry)
    own = getattr(command, "commands", None)
    yield from _title(f"{PROGRAM}-{name}", entry.about.rstrip("."))
    yield ".SH SYNOPSIS"
    if own is None:
        yield from _usage(f"{PROGRAM} {name}", command)
    else:
        yield from (f".B {_escaped(PROGRAM)} {_escaped(name)}", ".I COMMAND", "[OPTIONS]")
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command)
    if name in ONE_FOR_ALL:
        yield from (".PP", ONE_FOR_ALL[name])
    if own is None:
        yield from _options(command, ".SH OPTIONS")
    else:
        yield ".SH COMMANDS"
        for sub in sorted(own):
            yield f'.SS "{_escaped(f"{PROGRAM} {name} {sub}")}"'
            yield from _usage(f"{PROGRAM} {name} {sub}", own[sub])
            yield ".PP"
            yield from _paragraphs(own[sub])
            yield from _options(own[sub], ".PP\nOptions:")
    yield from (".SH SEE ALSO", f".BR {PROGRAM} (1)")


def _title(name: str, about: str) -> Sequence[str]:
    # no date: the same commands make the same bytes
    return f'.TH "{_escaped(name.upper())}" 1 "" "Tidegate"', ".SH NAME", f"{_escaped(name)} \\- {_escaped(about)}"


def _usage(path: str, command: Any) -> Iterator[str]:
    words = [placeholder(param) for param in command.params if param.param_type_name == "argument"]
    yield f".B {_escaped(path)}"
    if words or _shown(command):
        yield _line(" ".join([*words, *(["[OPTIONS]"] if _shown(command) else [])]))


def _paragraphs(command: Any) -> Iterator[str]:
    for at, paragraph in enumerate(command_text(command).split("\n\n")):
        if at:
            yield ".PP"
        yield _line(paragraph)


def _options(command: Any, heading: str) -> Iterator[str]:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    if arguments or _shown(command):
        yield heading
    for param in arguments:
        yield from (".TP", f".I {_escaped(placeholder(param))}", _line(option_meaning(param) or "See above."))
    for param in _shown(command):
        names, kind = option_names(param)
        yield from (".TP", f".B {_escaped(', '.join(names))}" + (f" {_escaped(kind)}" if kind else ""), _line(option_meaning(param)))


def _shown(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option" and not param.hidden]


def _line(text: str) -> str:
    """A line of running text: one that begins with a control character would be taken for a macro."""
    escaped = _escaped(text)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    """Text for roff: backslashes, the dash of options, and quotes inside of arguments; code marks are left out."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("`", "")
