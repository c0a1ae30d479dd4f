"""A defect in a background loop of the admin process is logged, and the loop goes on where it can."""

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.process.background import FIRST_PAUSE_S, LONGEST_PAUSE_S, kept_up


async def test_a_loop_that_breaks_is_logged_and_begins_anew() -> None:
    runs, pauses = 0, list[float]()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs <= 9:
            raise KeyError(f"defect {runs}")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with capture_logs() as logs:
        await kept_up(work, "keys", sleep)
    assert runs == 10
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE_S, LONGEST_PAUSE_S)
    assert [(line["log_level"], line["loop"]) for line in logs] == [("error", "keys")] * 9
    assert "defect 1" in str(logs[0]["exc_info"])


async def test_cancelling_ends_a_loop_without_a_word() -> None:
    async def work() -> None:
        await asyncio.sleep(3600)

    with capture_logs() as logs:
        task = asyncio.ensure_future(kept_up(work, "keys"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert logs == []
