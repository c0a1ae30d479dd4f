"""A worker's end of the ledger, with a log that only remembers."""

import asyncio

import msgspec

from domain.identity import TenantId
from domain.usage import Usage
from gateway.ledger.writer import UsageLogState, UsageWriter
from gateway.record import Record
from gateway.request.holds import OpenHold
from gateway.story import Story
from tenancy.hold import Hold
from tenancy.limits import Amounts
from tenancy.prices import FREE
from tenancy.usage import UsageEvent

RECORD = Record("r", 1.0, "ok", 200, 1.0, 0.0, usage=Usage(1, 2), closing="settle")


class Log:
    def __init__(self) -> None:
        self.events: list[UsageEvent] = []
        self.written, self.dropped, self.full, self.closed = 4, 2, False, False

    def append(self, event: UsageEvent) -> None:
        self.events.append(event)

    def close(self, timeout_s: float) -> None:
        self.closed = True


class Beside:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.open_now: dict[str, OpenHold] = {}
        self.ended = False

    def open(self, request_id: str, one: OpenHold) -> None:
        self.open_now[request_id] = one

    def close(self, request_id: str) -> None:
        assert request_id in {e.request_id for e in self.log.events}, "its row is there first"
        del self.open_now[request_id]

    def end(self, timeout_s: float) -> None:
        assert not self.log.closed, "the log lets the directory go"
        self.ended = True


class Forgetting(Beside):
    def close(self, request_id: str) -> None:
        del self.open_now[request_id]


async def test_requests_that_had_a_hold_are_written_and_made_durable_at_the_end() -> None:
    log = Log()
    beside = Beside(log)
    writer = UsageWriter(log, beside)
    for name in ("r", "s"):
        writer.opened(OpenHold(Hold(name, TenantId("acme"), Amounts()), FREE, Story(name, 0.0, 0.0, 0.0, name), 1, 1, 1, 1, 0.0))
    writer.observe(RECORD)
    writer.observe(msgspec.structs.replace(RECORD, closing=""))
    assert [e.request_id for e in log.events] == ["r"]
    assert list(beside.open_now) == ["s"], "what has no row is under way"
    await writer.close()
    assert log.closed and beside.ended


async def test_what_was_written_is_durable_once_the_log_says_so() -> None:
    log = Log()
    log.written, log.dropped = 0, 0
    writer = UsageWriter(log, Forgetting(log))
    await writer.durable()
    for name in ("a", "b"):
        writer.opened(OpenHold(Hold(name, TenantId("acme"), Amounts()), FREE, Story(name, 0.0, 0.0, 0.0, name), 1, 1, 1, 1, 0.0))
        writer.observe(msgspec.structs.replace(RECORD, request_id=name))
    waiting = asyncio.ensure_future(writer.durable())
    log.written = 1
    await asyncio.sleep(0)
    assert not waiting.done()
    log.dropped = 1
    await waiting


def test_a_disk_that_takes_nothing_is_seen() -> None:
    log = Log()
    log.full = True
    writer = UsageWriter(log, Beside(log))
    assert writer.full
    assert writer.state() == UsageLogState(4, 2, True)


async def test_what_goes_on_under_another_hold_has_no_row_and_is_not_under_way() -> None:
    log = Log()
    beside = Forgetting(log)
    writer = UsageWriter(log, beside)
    one = OpenHold(Hold("r", TenantId("acme"), Amounts()), FREE, Story("r", 0.0, 0.0, 0.0, "r"), 1, 1, 1, 1, 0.0)
    writer.opened(one)
    writer.dropped(one)
    assert (log.events, beside.open_now) == ([], {})
