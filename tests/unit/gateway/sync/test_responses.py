"""The sweep of stored Responses goes on over outages."""

import pytest
from structlog.testing import capture_logs

from gateway.sync.responses import SWEEP_EVERY_S, ResponseSweep
from tenancy.responses import ResponsesAway


class Ended(Exception):
    """The test has seen enough."""


class Keeper:
    """What there is to remove, sweep by sweep; None for an outage."""

    def __init__(self, *counts: int | None) -> None:
        self.counts = list(counts)

    async def erase(self, *_: object) -> int:
        return 0

    async def sweep(self) -> int:
        count = self.counts.pop(0)
        if count is None:
            raise ResponsesAway("gone")
        return count


async def test_an_outage_is_told_once_and_swept_behind() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise Ended

    with capture_logs() as said, pytest.raises(Ended):
        await ResponseSweep(Keeper(0, None, None, 5), sleep).run()
    assert pauses == [SWEEP_EVERY_S] * 4
    assert [line["event"] for line in said] == [
        "stored Responses are swept later",
        "stored Responses are swept again",
        "stored Responses removed",
    ]
