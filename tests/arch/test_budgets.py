"""Sizes and names (house rule 12): one subject per file, whole, and a name that says which."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "gateway", "routing", "tenancy", "guardrails", "backends", "policies")
SOURCES = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
BANNED = {"utils", "common", "manager", "helper", "helpers", "base", "impl", "misc"}

MAX_LINES = 500
"""A longer file probably has two subjects. The first version of this rule, 300 lines, cut subjects into fragments."""
MIN_LINES = 60
"""A shorter file with one reader in its own package is probably a fragment of its reader."""
MAX_STATEMENTS = 60
MAX_PARAMETERS = 6
"""A function's positional parameters, `self` apart. A command of the command line has one for each option, so it has no limit."""
SEVEN = {
    "backends/breaker.py:ended",
    "backends/simengine/answering.py:__init__",
    "gateway/fleet/health.py:note_outcome",
    "gateway/ledger/reconcile.py:__init__",
    "gateway/process/supervisor.py:__init__",
    "gateway/queue/waiter.py:__init__",
    "gateway/request/degrade.py:descend",
    "gateway/rollouts/dealing.py:deal",
    "gateway/rollouts/dealing.py:deal_prompt",
    "policies/rollout/in_force.py:deal",
    "routing/load_row.py:report",
}
"""Functions from before this rule that have seven. The list only gets shorter."""
MAX_LIFECYCLE_LINES = 150
MAX_REASONS = 40
"""Modules that may say in a sentence of their docstring, beginning with `Size:`, why they are very large or very small."""

SIZE = re.compile(r"^Size: \S", re.MULTILINE)
REASON = re.compile(r"(noqa: [A-Z0-9, ]+ - \S)|(type: ignore\[[a-z-, ]+\]  # \S)")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_module(path): path for path in SOURCES}


class Function(NamedTuple):
    """A function or method, and what the rules count of it."""

    name: str
    line: int
    statements: int
    parameters: int
    """The positional ones, `self` and `cls` apart."""


@dataclass
class Content:
    """The content of a file that the rules are about."""

    docstring: str
    lines: int
    functions: list[Function] = field(default_factory=list)
    classes: list[tuple[str, int]] = field(default_factory=list)
    """Name and line."""
    imports: set[str] = field(default_factory=set)
    """Modules that the file imports at its top, in an `if` there, or inside a function."""
    imports_at_top: set[str] = field(default_factory=set)


@functools.cache
def _content(path: Path) -> Content:
    text = path.read_text()
    tree = ast.parse(text)
    found = Content(ast.get_docstring(tree) or "", text.count("\n"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args) if argument.arg not in ("self", "cls")]
            found.functions.append(Function(node.name, node.lineno, statements, len(names)))
        elif isinstance(node, ast.ClassDef):
            found.classes.append((node.name, node.lineno))
        elif isinstance(node, ast.Import):
            found.imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = {full if (full := f"{node.module}.{alias.name}") in MODULES else node.module for alias in node.names}
            found.imports |= imported
            if node in tree.body:
                found.imports_at_top |= imported
    return found


def _gives_its_size_a_reason(path: Path) -> bool:
    return SIZE.search(_content(path).docstring) is not None


def _readers() -> dict[str, set[Path]]:
    """By module: the product files that import it."""
    readers: dict[str, set[Path]] = defaultdict(set)
    for path in SOURCES:
        for module in _content(path).imports:
            readers[module].add(path)
    return readers


def _is_entry_or_face(path: Path) -> bool:
    return path.name in ("__init__.py", "__main__.py") or "migrations" in path.parts


def test_there_are_sources() -> None:
    assert len(SOURCES) > 50


def test_every_file_is_whole_documented_and_well_named() -> None:
    assert [finding for path in SOURCES for finding in _findings(path)] == []


def _findings(path: Path) -> Iterator[str]:
    content = _content(path)
    if not content.docstring:
        yield f"{_name(path)} does not say what it is responsible for"
    if BANNED & set(re.split(r"[_.]", path.stem)):
        yield f"{_name(path)}: the name says nothing"
    if _name(path) == "gateway/lifecycle.py" and content.lines > MAX_LIFECYCLE_LINES:
        yield f"{_name(path)} has more than {MAX_LIFECYCLE_LINES} lines"
    if content.lines > MAX_LINES and not _gives_its_size_a_reason(path):
        yield f"{_name(path)} has two subjects, or a docstring with 'Size: …' says why it has not"
    for function in content.functions:
        if function.statements > MAX_STATEMENTS:
            yield f"{_name(path)}:{function.line} {function.name} has {function.statements} statements"


def test_no_file_is_a_fragment_of_its_only_reader() -> None:
    """Faces of packages, entry points and migrations are short by nature; so is a plug-in, which only a face or a registry reads (the
    table of endpoints is a registry)."""
    readers = _readers()
    fragments = []
    for path in SOURCES:
        if _is_entry_or_face(path) or _content(path).lines >= MIN_LINES:
            continue
        own = readers[_module(path)]
        if len(own) != 1:
            continue
        (reader,) = own
        if reader.parent == path.parent and reader.stem not in ("__init__", "registry", "endpoints") and not _gives_its_size_a_reason(path):
            fragments.append(f"{_name(path)} is read by {_name(reader)} alone")
    assert fragments == []


def test_functions_have_few_parameters() -> None:
    long = {
        f"{_name(path)}:{function.name}": function.parameters
        for path in SOURCES
        if not path.is_relative_to(ROOT / "gateway" / "cli")
        for function in _content(path).functions
        if function.parameters > MAX_PARAMETERS
    }
    assert long == dict.fromkeys(SEVEN, MAX_PARAMETERS + 1)


def test_few_files_need_a_reason_for_their_size() -> None:
    assert len([path for path in SOURCES if _gives_its_size_a_reason(path)]) <= MAX_REASONS


def test_a_class_name_means_one_thing() -> None:
    """A plug-in's `Params` belong to the registry's convention (CONTRIBUTING, a routing policy); every other name stands once."""
    places = defaultdict(list)
    for path in SOURCES:
        for name, line in _content(path).classes:
            if name != "Params":
                places[name].append(f"{_name(path)}:{line}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_imports_itself_through_others() -> None:
    """Import circles between modules come from cuts through a subject."""
    arrows = {module: (_content(path).imports_at_top & MODULES.keys()) - {module} for module, path in MODULES.items()}
    done: set[str] = set()

    def circle(module: str, trail: tuple[str, ...]) -> tuple[str, ...]:
        if module in trail:
            return (*trail[trail.index(module) :], module)
        if module not in done:
            for target in sorted(arrows[module]):
                if found := circle(target, (*trail, module)):
                    return found
            done.add(module)
        return ()

    assert [found for module in sorted(MODULES) if (found := circle(module, ()))] == []


def test_exceptions_to_the_rules_give_a_reason() -> None:
    findings = []
    for path in SOURCES:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "# fmt: skip" in line:
                findings.append(f"{_name(path)}:{number} is squeezed")
            if ("# noqa" in line or "type: ignore" in line) and not REASON.search(line):
                findings.append(f"{_name(path)}:{number} does not give the reason of its exception")
    assert findings == []
