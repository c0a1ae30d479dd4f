"""Documentation that cannot fall behind: links resolve, decisions have their parts, everything registered is described."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from backends.dialects import DIALECTS, Dialect
from backends.dialects.structure import KINDS
from backends.simengine.faults import FAULTS
from domain.ask import Endpoint
from domain.faults import Kind
from routing.registry import POLICIES
from tenancy.limits import MAX_AMOUNT, MAX_RATE, Level, Limit, LimitWindow, Meter, Rolling, Scope, Window, meter_name, shown_amount

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "news").glob("*.md")])
SOURCES = ("backends", "bench", "domain", "gateway", "policies", "routing", "tenancy", "tests")
WINDOWS: tuple[LimitWindow, ...] = (
    *(Window.MINUTE, Window.HOUR, Window.DAY, Window.WEEK, Window.MONTH),
    *(Rolling(30), Window.EVER, Window.NOW),
)
DECISIONS = sorted((ROOT / "docs" / "explanation" / "decisions").glob("*.md"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that a renderer makes of a page's headings: lower case, words joined by dashes, a number where one comes again."""
    seen: Counter[str] = Counter()
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', page.read_text()))
    for heading in re.findall(
        r"^#+ +(.+)$", re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE
    ):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), (
                f"{page.name} links to {target}; anchors there: {', '.join(sorted(anchors(file)))}"
            )


MENTIONING = [
    *(ROOT / name for name in ("Makefile", "pyproject.toml")),
    *(ROOT / "policies" / "examples").glob("*.yaml"),
    *(file for package in SOURCES for file in sorted((ROOT / package).rglob("*.py"))),
]


def test_pages_that_code_names_exist() -> None:
    """Docstrings, messages and comments name pages by their path."""
    named = {(file, page) for file in MENTIONING for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.(?:md|svg)", file.read_text())}
    assert sorted(f"{file.relative_to(ROOT)}: {page}" for file, page in named if not (ROOT / page).is_file()) == []


def test_news_fragments_are_named_as_the_readme_says() -> None:
    names = {page.name for page in (ROOT / "news").iterdir()} - {"README.md"}
    assert [name for name in sorted(names) if not re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", name)] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda p: p.name)
def test_decisions_have_their_parts(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# \d{4}\. ", text)
    for part in ("Context", "Decision", "Measured", "Consequences"):
        assert f"\n## {part}\n" in text, f"{page.name} lacks {part}"
    assert "_TABLE" not in text, f"{page.name} promises a table"


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference/simengine.md", FAULTS),
        ("reference/faults.md", [kind.value for kind in Kind]),
        ("explanation/routing.md", POLICIES),
        ("reference/engines.md", DIALECTS),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_everything_registered_is_described(page: str, names: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def code(text: str | None) -> str:
    return f"`{text}`" if text else "no"


def asked(dialect: Dialect) -> str:
    proven = "yes" if dialect.proven else "**unproven**"
    load = code(dialect.signals_path)
    return f"| `{dialect.name}` | {dialect.known_from} | {proven} | `{dialect.health_path}` | `{dialect.models_path}` | {load} |"


def told(dialect: Dialect) -> str:
    isolation = priority = "no"
    if dialect.isolation is not None:
        taking = [e.name.lower() for e in Endpoint if e in dialect.isolation.endpoints]
        every = len(taking) >= sum(not endpoint.duplex for endpoint in Endpoint)  # a session's events have no such field
        isolation = code(dialect.isolation.field) + ("" if every else f", {' and '.join(taking)} only")
    if dialect.priority is not None:
        priority = f"`{dialect.priority.field}`, {dialect.priority.sooner} first; needs `{dialect.priority.needs}`"
    loading = f"`{dialect.lora.load_path}`, `{dialect.lora.unload_path}`" if dialect.lora else "no"
    return f"| `{dialect.name}` | {isolation} | {priority} | {code(dialect.lora_model)} | {loading} |"


def says(dialect: Dialect) -> str:
    shapes = ", ".join(f"`{shape}`" for shape in sorted(shape.value for shape in dialect.errors))
    names = "of its list" if dialect.answers_as_listed else "any"
    return f"| `{dialect.name}` | {shapes} | {names} | {dialect.drains or 'not looked at'} |"


def follows(dialect: Dialect) -> str:
    rules = dialect.fields
    if rules.takes is None:
        refused = ", ".join(map(code, sorted(rules.refuses)))
        return f"| `{dialect.name}` | all{f' but {refused}' if refused else ''} |"
    every = [f"{e.name.lower()}: {' '.join(map(code, sorted(rules.takes[e])))}" for e in Endpoint if e in rules.takes]
    return f"| `{dialect.name}` | {'<br>'.join(every)} |"


def shapes(dialect: Dialect) -> str:
    structure = dialect.fields.structure
    if structure is None:
        return f"| `{dialect.name}` | as the caller wrote it, where the engine follows the field" + " |" * len(KINDS)
    fields = [code(structure.written_as.get(kind)) for kind in KINDS]
    if structure.written_as.get("choice") is None and (grammar := structure.written_as.get("grammar")):
        fields[KINDS.index("choice")] = f"`{grammar}`"
    return f"| `{dialect.name}` | {' | '.join(fields)} |"


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("row", [asked, told, says, follows, shapes])
def test_tables_of_engines_say_what_the_code_knows(row: Callable[[Dialect], str], dialect: Dialect) -> None:
    assert row(dialect) in (ROOT / "docs" / "reference" / "engines.md").read_text()


def test_every_observation_names_tests_of_real_engines_that_exist() -> None:
    suites = ("vllm", "two_engines", "sglang", "llamacpp", "scoring", "profiles", "model_revisions")
    sources = "".join((ROOT / "tests" / "engines" / f"test_{suite}.py").read_text() for suite in suites)
    exist = set(re.findall(r"def (test_\w+)\(", sources))
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    assert set(re.findall(r"`(test_\w+)`", page)) == exist


def can_be_limited(meter: Meter, window: LimitWindow) -> bool:
    try:
        Limit(Scope(Level.GLOBAL, ""), meter, window, 1)
    except ValueError:
        return False
    return True


def takes_burst(window: LimitWindow) -> bool:
    meter = Meter.CONCURRENT_REQUESTS if window is Window.NOW else Meter.REQUESTS
    try:
        Limit(Scope(Level.GLOBAL, ""), meter, window, 1, burst=1)
    except ValueError:
        return False
    return True


def cells(*texts: str) -> str:
    return "|" + "|".join(f" {text} " if text else " " for text in texts) + "|"


@pytest.mark.parametrize(
    "row",
    [
        cells("meter", *(f"`{window.value}`" for window in WINDOWS), "counts"),
        *(cells(f"`{meter_name(meter)}`", *("yes" if can_be_limited(meter, window) else "" for window in WINDOWS)) for meter in Meter),
        *(f"| `{level.value}` |" for level in Level),
    ],
)
def test_limits_are_listed_as_the_code_has_them(row: str) -> None:
    assert f"\n{row}" in (ROOT / "docs" / "reference" / "limits.md").read_text()


@pytest.mark.parametrize("window", WINDOWS, ids=lambda window: window.value)
def test_windows_are_listed_with_their_bounds(window: LimitWindow) -> None:
    bound = MAX_RATE if window in (Window.MINUTE, Window.NOW) else MAX_AMOUNT
    most = f"{bound:,}" + (f"; of money {shown_amount(Meter.COST_NANOUSD, bound)}" if can_be_limited(Meter.COST_NANOUSD, window) else "")
    page = (ROOT / "docs" / "reference" / "limits.md").read_text()
    assert re.search(
        rf"^\| `{window.value}` \| [^|]+ \| {re.escape(most)} \|{' yes' if takes_burst(window) else ''} \|$", page, re.MULTILINE
    )


def test_every_page_can_be_reached_from_the_index() -> None:
    """By one click; decisions by way of each other's folder, which `0000-how-we-decide.md` describes, and runbooks by way of their list."""
    index = ROOT / "docs" / "index.md"
    lists = (index, ROOT / "docs" / "reference" / "alerts.md")
    linked = {(page.parent / target).resolve() for page in lists for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page != index and page.parent.name != "decisions"}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - linked) == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in DECISIONS], ids=lambda p: p.name
)
def test_pages_begin_with_their_purpose(page: Path) -> None:
    """The first thing below the title is a paragraph: no command, table or heading."""
    body = re.sub(r"<!--.*?-->\n?", "", page.read_text(), flags=re.DOTALL).lstrip()
    title, _, rest = body.partition("\n")
    assert title.startswith("# ")
    assert re.match(r"(?:> )?[A-Z*`(]", rest.lstrip()), f"{page.relative_to(ROOT)} begins with {rest.lstrip()[:40]!r}"


def test_sections_of_numbers_say_what_was_missed() -> None:
    _, *sections = re.split(r"^##+ ", (ROOT / "docs" / "numbers.md").read_text(), flags=re.MULTILINE)
    assert [section.partition("\n")[0] for section in sections if len(re.findall(r"^Missed: ", section, re.MULTILINE)) != 1] == []
