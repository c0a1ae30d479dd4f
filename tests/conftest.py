"""What every test shares: uvloop, as in production; no deadlines for Hypothesis; the book of requirements of `make requirements`."""

import os
import re
import sys
from collections import defaultdict

import pytest
import uvloop
from hypothesis import Phase, settings

from tests.fault.rows import ROWS
from tests.memory import Memory
from tests.progress import Progress
from tests.temporary import Temporary
from tests.time_box import TimeBox, commit
from tests.time_limit import TimeLimit

# hundreds of processes are started here; each would compile every module anew, which is half of its start
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# processes that tests run in beside each other have a width of 80, which a console keeps from its import on
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# an example that takes long says that the machine is busy
settings.register_profile("untimed", deadline=None)
# a mutant needs the same examples as the run without it, and a failing one of any size
settings.register_profile("mutants", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.load_profile(os.environ.get("TIDEGATE_HYPOTHESIS", "untimed"))

KNOWN = {"R": 62, "ROUTERS-": 33, "GATEWAYS-": 26}
"""Families of numbered requirements and how many each has."""


def pytest_asyncio_loop_factories() -> dict[str, object]:
    """The loop that serves is the loop that is tested."""
    return {"uvloop": uvloop.new_event_loop}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requirements", action="store_true", help="print which numbered requirements and faults have a passing test")
    parser.addoption("--within", type=float, metavar="MINUTES", help="begin no further test after so many minutes (tests/time_box.py)")
    parser.addoption("--order", metavar="WORD", help="with --within: sets the order of the files; the commit's id unless given")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "req(id): the numbered requirement a test holds, for instance R23, ROUTERS-6 or GATEWAYS-18")
    config.addinivalue_line("markers", "fault(row): the row of the fault table in tests/fault/rows.py that a test holds")
    config.addinivalue_line("markers", "browser: needs Chromium; run by `make test-console` only")
    config.addinivalue_line("markers", "real_engine: needs a real engine on this machine; run by `make test-engines` only")
    config.addinivalue_line(
        "markers", "client: runs other people's programs, which have environments of their own; run by make targets of their own alone"
    )
    config.addinivalue_line(
        "markers",
        "helm: needs helm, Kubernetes' schemas or linters of deployment files, in their own environments; run by `make test-charts` only",
    )
    config.addinivalue_line("markers", "slow: takes seconds of real time or many processes; run by `make test-slow`, one after the other")
    config.addinivalue_line("markers", "ends_engine: ends an engine that other tests share, so it runs after them")
    config.pluginmanager.register(Temporary(), "temporary")
    config.pluginmanager.register(_Book(config), "requirements-book")
    config.pluginmanager.register(Progress(config), "progress")
    config.pluginmanager.register(TimeLimit(), "time-limit")
    config.pluginmanager.register(Memory(), "memory")
    if minutes := config.getoption("--within"):
        config.pluginmanager.register(TimeBox(minutes, config.getoption("--order") or commit()), "time-box")


def requirement_ids(item: pytest.Item) -> list[str]:
    """The requirement ids and faults of a test; raises UsageError for one that does not exist."""
    ids = [row for mark in item.iter_markers("fault") for row in mark.args]
    if unknown := [row for row in ids if row not in ROWS]:
        raise pytest.UsageError(f"{item.nodeid}: tests/fault/rows.py has no row {unknown[0]!r}")
    for mark in item.iter_markers("req"):
        for given in mark.args:
            found = re.fullmatch(r"(R|ROUTERS-|GATEWAYS-)(\d+)", given)
            if found is None or not 1 <= int(found[2]) <= KNOWN[found[1]]:
                raise pytest.UsageError(f"{item.nodeid}: there is no requirement {given!r}")
            ids.append(given)
    return ids


class _Book:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ids: dict[str, list[str]] = {}
        self._passed: dict[str, int] = defaultdict(int)
        self._failed: dict[str, int] = defaultdict(int)
        self._figures: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            if ids := requirement_ids(item):
                self._ids[item.nodeid] = ids

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome == "skipped" or (report.when != "call" and report.outcome == "passed"):
            return
        for requirement in self._ids.get(report.nodeid, ()):
            (self._passed if report.outcome == "passed" else self._failed)[requirement] += 1
            self._figures[requirement] += [str(value) for name, value in report.user_properties if name == "figure"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._config.getoption("--requirements"):
            return
        tested = {*self._passed, *self._failed}
        terminalreporter.section("requirements with a test")
        for requirement in sorted(tested - ROWS.keys(), key=_order):
            self._print(terminalreporter, requirement, 12)
        terminalreporter.section("faults with a test")
        for row in (row for row in ROWS if row in tested):
            self._print(terminalreporter, row, 28)

    def _print(self, terminalreporter: pytest.TerminalReporter, name: str, width: int) -> None:
        state = f"{self._passed[name]} passed" + (f", {self._failed[name]} FAILED" if self._failed[name] else "")
        terminalreporter.write_line(f"{name:<{width}} {state:<20} {'; '.join(self._figures[name])}")


def _order(requirement: str) -> tuple[str, int]:
    family, number = re.fullmatch(r"(\D+)(\d+)", requirement).groups()  # type: ignore[union-attr]  # checked at collection
    return family, int(number)
