"""Sizes and names (house rule 12): one subject per file, whole, and a name that says which."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("domain", "gateway", "routing", "tenancy", "backends", "policies")
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
    "gateway/importing/litellm.py:_group",
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


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _gives_its_size_a_reason(path: Path) -> bool:
    return SIZE.search(ast.get_docstring(ast.parse(path.read_text())) or "") is not None


def _readers() -> dict[str, set[Path]]:
    """By module: the product files that import it."""
    modules = {_module(path) for path in SOURCES}
    readers: dict[str, set[Path]] = defaultdict(set)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    readers[full if full in modules else node.module].add(path)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    readers[alias.name].add(path)
    return readers


def _is_entry_or_face(path: Path) -> bool:
    return path.name in ("__init__.py", "__main__.py") or "migrations" in path.parts


def test_there_are_sources() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_file_is_whole_documented_and_well_named(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), f"{_name(path)} does not say what it is responsible for"
    assert not BANNED & set(re.split(r"[_.]", path.stem)), f"{_name(path)}: the name says nothing"
    if _name(path) == "gateway/lifecycle.py":
        assert text.count("\n") <= MAX_LIFECYCLE_LINES
    elif text.count("\n") > MAX_LINES:
        assert _gives_its_size_a_reason(path), f"{_name(path)} has two subjects, or a docstring with 'Size: …' says why it has not"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            assert statements <= MAX_STATEMENTS, f"{_name(path)}:{node.lineno} {node.name} has {statements} statements"


def test_no_file_is_a_fragment_of_its_only_reader() -> None:
    """Faces of packages, entry points and migrations are short by nature; so is a plug-in, which only a face or a registry reads (the
    table of endpoints is a registry)."""
    readers = _readers()
    fragments = []
    for path in SOURCES:
        if _is_entry_or_face(path) or path.read_text().count("\n") >= MIN_LINES:
            continue
        own = readers[_module(path)]
        if len(own) != 1:
            continue
        (reader,) = own
        if reader.parent == path.parent and reader.stem not in ("__init__", "registry", "endpoints") and not _gives_its_size_a_reason(path):
            fragments.append(f"{_name(path)} is read by {_name(reader)} alone")
    assert fragments == []


def test_functions_have_few_parameters() -> None:
    long = {}
    for path in SOURCES:
        if path.is_relative_to(ROOT / "gateway" / "cli"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args) if argument.arg not in ("self", "cls")]
                if len(names) > MAX_PARAMETERS:
                    long[f"{_name(path)}:{node.name}"] = len(names)
    assert long == dict.fromkeys(SEVEN, MAX_PARAMETERS + 1)


def test_few_files_need_a_reason_for_their_size() -> None:
    assert len([path for path in SOURCES if _gives_its_size_a_reason(path)]) <= MAX_REASONS


def test_a_class_name_means_one_thing() -> None:
    """A plug-in's `Params` belong to the registry's convention (CONTRIBUTING, a routing policy); every other name stands once."""
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name != "Params":
                places[node.name].append(f"{_name(path)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_imports_itself_through_others() -> None:
    """Import circles between modules come from cuts through a subject."""
    modules = {_module(path): path for path in SOURCES}
    arrows: dict[str, set[str]] = {}
    for module, path in modules.items():
        imported = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    imported.add(full if full in modules else node.module)
        arrows[module] = (imported & modules.keys()) - {module}
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

    assert [found for module in sorted(modules) if (found := circle(module, ()))] == []


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_exceptions_to_the_rules_give_a_reason(path: Path) -> None:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert "# fmt: skip" not in line, f"{_name(path)}:{number} is squeezed"
        if "# noqa" in line or "type: ignore" in line:
            assert re.search(r"(noqa: [A-Z0-9, ]+ - \S)|(type: ignore\[[a-z-, ]+\]  # \S)", line), f"{_name(path)}:{number} says not why"
