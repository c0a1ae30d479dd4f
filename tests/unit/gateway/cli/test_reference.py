"""The reference of commands, and the commands in every other page: what is written there exists."""

import collections
import re
import shlex
from pathlib import Path

import pytest

from gateway.cli import ENTRIES
from gateway.cli.connection import GatewayOptions
from gateway.cli.groups import loaded
from gateway.cli.reference import command_reference, shared_options

ROOT = Path(__file__).parents[4]
PAGES = [
    page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "news").glob("*.md")) if page.name != "CHANGELOG.md"
]
WRITTEN = re.compile(r"(?:^\$ |`)tidegate ([a-z][^`\n]*)", re.MULTILINE)
"""A command of a console block, or one between backticks."""
IN_ROWS = re.compile(r"`tidegate ([a-z]+) [a-z][^`\n]*`((?:,? (?:and |or )?`[a-z]+(?: [^`\n]*)?`)+)")
"""A command between backticks, and others of its group after commas: `tidegate rollout start FILE`, `pause`, `close NAME`."""
REFERENCE = command_reference(ENTRIES)


def commands_in(text: str) -> list[str]:
    """The commands that a page names, without the word `tidegate`."""
    siblings = [f"{group} {other}" for group, others in IN_ROWS.findall(text) for other in re.findall(r"`([^`]+)`", others)]
    return [*WRITTEN.findall(text), *(line for line in siblings if not line.partition(" ")[2].startswith("tidegate "))]


def wrong_with(line: str) -> str:
    """Why a written command does not exist, in words; empty when it does."""
    words = shlex.split(line.split(" # ")[0].split(" && ")[0].replace("…", "").replace("'", ""))
    if not words:
        return ""
    if words[0] not in ENTRIES:
        return f"no command {words[0]}"
    command = loaded(words[0], ENTRIES[words[0]])
    subcommands = getattr(command, "commands", None)
    if subcommands is not None and len(words) > 1:
        names = words[1].split("|")
        if missing := [name for name in names if name not in subcommands and re.fullmatch(r"[a-z-]+", name)]:
            return f"no command {words[0]} {', '.join(missing)}"
        command = subcommands.get(names[0], command)
    if words[0] == "simengine":
        return ""
    taken = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help", "-h"}
    return "; ".join(f"no option {word}" for word in words if word.startswith("-") and word.split("=")[0] not in taken and word != "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    found = {line: wrong_with(line) for line in commands_in(page.read_text())}
    assert {line: why for line, why in found.items() if why} == {}


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert wrong_with("key tag x --remove y") == "no command key tag"
    assert wrong_with("key list --most 3") == "no option --most"
    assert wrong_with("key list --limit=3") == "no option --limit=3"
    assert wrong_with("tennant list") == "no command tennant"
    assert wrong_with("usage export -o - --by day") == ""


def test_commands_of_prose_and_of_rows_are_read() -> None:
    text = "with `tidegate backend add`; `tidegate rollout start F`, `status [NAME]` and `pause`; `tidegate check`, then `tidegate reload`"
    assert commands_in(text) == ["backend add", "rollout start F", "check", "reload", "rollout status [NAME]", "rollout pause"]
    assert wrong_with("rollout status [NAME]") == "no command rollout status"


def test_the_reference_has_every_command_with_its_own_options() -> None:
    for name, entry in ENTRIES.items():
        for sub in getattr(loaded(name, entry), "commands", {""}):
            assert f"# tidegate {name} {sub}".rstrip() + "\n" in REFERENCE
    section = REFERENCE.partition("#### tidegate key create\n")[2].partition("\n#")[0]
    assert "tidegate key create [OPTIONS]" in section
    assert "| `--tenant` `TEXT` | The tenant whose key it is. (required) |" in section
    assert "Also: [the gateway](#the-gateway); [rights](#rights).\n" in section
    assert "--token-file" not in section
    drain = REFERENCE.partition("#### tidegate backend drain\n")[2].partition("\n#")[0]
    assert "tidegate backend drain BACKEND [OPTIONS]" in drain
    assert "[the gateway](#the-gateway), which has to run (no `--offline`)" in drain


SHARED_VERBS = {
    "apply",
    "check",
    "create",
    "delete",
    "digest",
    "disable",
    "enable",
    "list",
    "profile",
    "render",
    "resume",
    "set",
    "show",
    "verify",
}
"""Verbs that mean the same in every group."""
OWN_VERBS = {
    "abort",
    "agreement",
    "alerts",
    "blocks",
    "close",
    "diff",
    "drain",
    "explain",
    "export",
    "fetch",
    "find",
    "findings",
    "forecast",
    "history",
    "litellm",
    "next",
    "pause",
    "promote",
    "purge",
    "raise",
    "refusals",
    "register",
    "reload",
    "restore",
    "retire",
    "revoke",
    "rollback",
    "rotate",
    "run",
    "size",
    "start",
    "state",
    "stats",
    "tail",
    "test",
    "warm",
    "wrong",
}
"""Verbs of one group: a new one is a choice, never a second word for one of those above."""


def test_every_list_has_the_same_forms_of_output_and_groups_have_the_same_verbs() -> None:
    lacking, groups_of = [], collections.defaultdict[str, set[str]](set)
    for name, entry in ENTRIES.items():
        for verb, command in getattr(loaded(name, entry), "commands", {}).items():
            options = {option for param in command.params for option in param.opts}
            if verb == "list" and not {"--json", "--csv", "--wide"} <= options:
                lacking.append(f"{name} list")
            groups_of[verb].add(name)
    assert lacking == []
    assert {verb for verb, groups in groups_of.items() if len(groups) > 1} == SHARED_VERBS
    assert {verb for verb, groups in groups_of.items() if len(groups) == 1} == OWN_VERBS


def test_a_bundle_has_a_table() -> None:
    table = shared_options(GatewayOptions)
    assert table.startswith("| option | meaning |\n|---|---|\n| `--admin` `URL` |")
    assert "| `--config`, `-c` `PATH` | The settings file. (default: `tidegate.yaml`) |" in table


def test_a_choice_is_shown_by_its_words() -> None:
    assert "`--log-format` `json\\|console`" in command_reference({"serve": ENTRIES["serve"]})
    assert "typing." not in command_reference(ENTRIES)
