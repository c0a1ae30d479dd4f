"""The time limit of each test: 60 s, more for slow tests and those of real engines, and longer on a busy or a slow machine.

A test's own `@pytest.mark.timeout(SECONDS)` goes before these. The long forms (`TIDEGATE_LONG`, `TIDEGATE_FUZZ_S`) have no limit. A test
that hangs fails with the stacks of all threads instead of holding up the run. The limit only catches hangs: no assertion depends on it, and
a machine that is six times as busy, or whose core is six times as slow, gives a test six times as long.
"""

import asyncio
import os
import signal
import time
import types
from collections.abc import Generator
from typing import Any, Final

import pytest
import pytest_timeout

LIMITS_S: Final = {"real_engine": 1200, "client": 400, "browser": 300, "helm": 300, "slow": 300}
"""Limits in seconds by mark; the start of what the test shares with others counts, and a real engine starts for minutes."""

AGAIN_S: Final = 10.0
"""After the limit: the time until a test that goes on nevertheless is ended once more."""

MOST_ALARMS: Final = 6
"""A test that goes on after so many is ended with its process, which a run with several processes replaces and reports."""

DEAF: Final = 70
"""The exit status of such a process."""


ADDITIONS: Final = 200_000
ADDITIONS_S: Final = 0.015
"""Additions of Python integers in a loop, and the CPU time that they take on a core of 2024 with Python 3.11, with half of it to spare."""

MEASURED_EVERY_S: Final = 30.0
"""A core's speed is measured no more often: doing so takes `ADDITIONS_S`, and there are fourteen thousand tests."""

_core: tuple[float, float] = (-MEASURED_EVERY_S, 1.0)
"""When this process measured the speed of its core, and how much slower than expected it was."""


def slowdown() -> float:
    """How much longer than on a quiet and quick machine a test may take now: runnable processes for each core, times how slow a core is,
    each of them from 1 on."""
    try:
        load = os.getloadavg()[0]
    except OSError:  # a system without load averages
        load = 0.0
    return max(1.0, load / (os.cpu_count() or 1)) * core_slowdown()


def core_slowdown() -> float:
    """How much slower than expected this process's core is, from 1 on. Virtual machines differ by up to eight times from hour to hour."""
    global _core
    now = time.monotonic()
    if now - _core[0] >= MEASURED_EVERY_S:
        began = time.thread_time()
        total = 0
        for number in range(ADDITIONS):
            total += number
        _core = now, max(1.0, (time.thread_time() - began) / ADDITIONS_S)
    return _core[1]


class OverLimit(BaseException):
    """A test took longer than its limit. Hypothesis takes what `pytest.fail` raises for the failure of an example, and goes on with
    others; what it does not know ends the test."""


class TimeLimit:
    """A timer for pytest-timeout that stretches the limit and can end a test whose event loop is idle.

    pytest-timeout raises in a signal handler. uvloop catches what is raised there while it waits for events, so a test that awaits an event
    that never comes would go on; its tasks are cancelled as well.
    """

    def __init__(self) -> None:
        self._limit_s: float | None = None
        """The limit of the running test that was exceeded; None while none was."""
        self._timeout_s = 0.0
        """The running test's limit on a quiet and quick machine; 0 for none."""
        self._alarms = 0
        """How often it was told that it is over."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Give each test without a limit of its own that of its mark."""
        long = os.environ.get("TIDEGATE_LONG") or os.environ.get("TIDEGATE_FUZZ_S")
        for item in items:
            if item.get_closest_marker("timeout") is None:
                limit_s = next((limit_s for mark, limit_s in LIMITS_S.items() if item.get_closest_marker(mark)), None)
                if long or limit_s:
                    item.add_marker(pytest.mark.timeout(0 if long else limit_s))

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: Any, settings: Any) -> bool:
        """Start the timer of one test, with the limit of this moment."""
        self._limit_s = None
        self._timeout_s = settings.timeout
        self._alarms = 0
        limit_s = settings.timeout * slowdown()

        def over(*_: object) -> None:
            self._limit_s = limit_s
            self._alarms += 1
            pytest_timeout.dump_stacks(item.config.get_terminal_writer())
            if self._alarms > MOST_ALARMS:
                os._exit(DEAF)
            try:
                tasks = asyncio.all_tasks()
            except RuntimeError:  # no loop is running
                tasks = set()
            for task in tasks:
                task.cancel()
            raise OverLimit(self._message)

        def cancel() -> None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

        item.cancel_timeout = cancel
        signal.signal(signal.SIGALRM, over)
        signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: Any) -> Generator[None, object, object]:
        """Start the timer anew for the end of a test that failed: pytest-timeout stops it there, for the sake of a debugger."""
        if self._timeout_s and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0 and not item.config.getoption("usepdb", default=False):
            self.pytest_timeout_set_timer(item, types.SimpleNamespace(timeout=self._timeout_s))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self) -> Generator[None, object, object]:
        """Stop the timer of a test that it has ended: the next alarm would come while its report is made, and end the run. The end of the
        test starts it anew."""
        if self._limit_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, sched: Any) -> None:
        """Have the process that replaces one that ended run what that one did not come to: pytest-xdist gives it all files of the other
        one, and waits for ever for tests of files that are over; and it would run the test again that ended the process."""
        queue = getattr(sched, "workqueue", {})
        for file, tests in list(queue.items()):
            if crashitem in tests:
                tests[crashitem] = True
            if all(tests.values()):
                del queue[file]

    @property
    def _message(self) -> str:
        return f"the test took longer than its limit of {self._limit_s:.0f} s (tests/time_limit.py)"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Say that it was the limit that cancelled a test."""
        try:
            return (yield)
        except asyncio.CancelledError:
            if self._limit_s is None:
                raise
            pytest.fail(self._message)
