"""The output of a test run: a line for each finished file, each failure as it comes, and a summary that says what to do next.

A pytest plugin, registered by `tests/conftest.py`; it works alike with and without xdist. `-v` brings back pytest's own output.
"""

import resource
import time
from collections import Counter, defaultdict
from typing import Any, Final

import pytest

SLOWEST: Final = 8
"""Files that the summary names as the slowest."""

STALLED: Final = "the machine stalled"
"""The beginning of the reason of a skip by `tests.timing.skip_stalled`."""


class Progress:
    """Counts tests by file, in the process that the user started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._expected: Counter[str] = Counter()
        self._over: Counter[str] = Counter()
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._took_s: defaultdict[str, float] = defaultdict(float)
        self._skips: Counter[str] = Counter()
        self._stalls: list[str] = []
        self._failed: list[str] = []
        self._peaks_mb: list[int] = []
        self._begun = time.monotonic()

    @property
    def _quiet(self) -> bool:
        return self._config.get_verbosity() <= 0

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """A worker has collected; all of them collect the same."""
        self._expected = Counter(nodeid.partition("::")[0] for nodeid in ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests of a run without workers."""
        if session.items:
            self._expected = Counter(item.nodeid.partition("::")[0] for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """The category that pytest counts a report in, without a letter on the terminal."""
        if not self._quiet or not isinstance(report, pytest.TestReport) or hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return ("failed", "", "FAILED") if report.when == "call" else ("error", "", "ERROR")
        if report.skipped:
            return "skipped", "", ""
        return "passed" if report.when == "call" else "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test is over: setup, call or teardown."""
        file = report.nodeid.partition("::")[0]
        self._took_s[file] += report.duration
        if report.failed:
            self._outcomes[file]["failed"] += 1
            self._failed.append(report.nodeid)
            self._line(f"FAILED {report.nodeid}" + ("" if report.when == "call" else f" ({report.when})"))
        elif report.skipped:
            self._outcomes[file]["skipped"] += 1
            reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
            if reason.startswith(STALLED):
                self._stalls.append(report.nodeid)
            self._skips[reason] += 1
        elif report.when == "call":
            self._outcomes[file]["passed"] += 1
        if report.when == "teardown":
            self._over[file] += 1
            if self._over[file] == self._expected[file]:
                self._file_line(file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist has ended."""
        self._peaks_mb.append(getattr(node, "workeroutput", {}).get("peak_mb", 0))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a worker: hand over its peak memory."""
        workeroutput = getattr(session.config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput["peak_mb"] = peak_mb()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Skips with their reasons, the slowest files, memory, and the command that runs a failed test alone."""
        if not self._quiet or sum(self._over.values()) < 2:
            return
        write = terminalreporter.write_line
        terminalreporter.section("summary")
        for reason, count in sorted(self._skips.items()):
            write(f"skipped {count}: {reason}")
        for nodeid in self._stalls:
            write(f"not judged, because {STALLED}: {nodeid}")
        slowest = sorted(self._took_s.items(), key=lambda took: -took[1])[:SLOWEST]
        write("slowest files: " + ", ".join(f"{file.removeprefix('tests/')} {took_s:.0f} s" for file, took_s in slowest))
        write("peak memory of the test processes: " + ", ".join(f"{peak} MB" for peak in self._peaks_mb or [peak_mb()]))
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        tests = f"{sum(self._over.values()):,} tests in {len(self._over):,} files, {minutes} min {seconds} s"
        unread = sorted({report.nodeid for report in terminalreporter.stats.get("error", ()) if isinstance(report, pytest.CollectReport)})
        for nodeid in unread:
            write(f"could not be read, so none of its tests ran: {nodeid}")
        if not self._failed:
            write(f"{tests}: " + (f"{len(unread)} files could not be read" if unread else "nothing failed"))
            return
        write(f"{tests}: {len(self._failed)} failed. One of them alone, with the reason in full:")
        write(f"    .venv/bin/python -m pytest '{self._failed[0]}'")

    def _file_line(self, file: str) -> None:
        outcomes = self._outcomes[file]
        counts = ", ".join(f"{outcomes[word]} {word}" for word in ("passed", "failed", "skipped") if outcomes[word])
        done = sum(1 for name, expected in self._expected.items() if self._over[name] >= expected)
        width = len(str(len(self._expected)))
        self._line(f"{done:>{width}}/{len(self._expected)} {file}: {counts}, {self._took_s[file]:.1f} s")

    def _line(self, text: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if self._quiet and reporter is not None:
            reporter.write_line(text)
            reporter.flush()  # a run whose output goes into a file is followed there


def peak_mb() -> int:
    """The largest memory that this process has had, its children apart."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
