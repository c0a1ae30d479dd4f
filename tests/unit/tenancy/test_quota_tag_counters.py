"""What is kept of one tag: as much as is in use, and no more."""

from tenancy.expiry import Forgetting
from tenancy.limits import Amounts, Level, Limit, Meter, Scope, Window, line_of
from tenancy.quota import LEASE_US, REAP_AT_MOST, SETTLED_US, TagCounters
from tenancy.rates import Calendar, CompiledGroup, compile_group, compile_line

START_US = 1_795_219_200_000_000
LIMITS = [
    Limit(Scope(Level.USER, "t"), Meter.REQUESTS, Window.MINUTE, 600),
    Limit(Scope(Level.USER, "t"), Meter.TOKENS, Window.DAY, 10_000),
    Limit(Scope(Level.USER, "t"), Meter.CONCURRENT_REQUESTS, Window.NOW, 1000),
]
WANTS = Amounts(10, 10).vector()


def books(now_us: int) -> tuple[TagCounters, Calendar]:
    calendar = Calendar()
    calendar.turn_to(now_us)
    return TagCounters(calendar, Forgetting()), calendar


def of(label: str) -> CompiledGroup:
    return compile_group(compile_line(line_of(limit, 0.0, label)) for limit in LIMITS)


def open_one(book: TagCounters, hold_id: str, label: str, now_us: int) -> None:
    book.reap(now_us)
    afters = book.decide(of(label), WANTS, now_us)
    assert afters is not None
    book.open(hold_id, of(label), WANTS, afters, now_us)


def test_labels_that_are_gone_leave_nothing_behind() -> None:
    book, calendar = books(START_US)
    most = 0
    for n in range(20_000):
        now_us = START_US + n * 86_400_000  # a thousand requests a day
        calendar.turn_to(now_us)
        open_one(book, f"h{n}", f"label-{n}", now_us)
        book.settle(f"h{n}", WANTS, now_us + 1)
        most = max(most, len(book._tats) + len(book._cells) + len(book._gauges))
    assert most < 3 * 3 * 1000
    assert len(book.records) + len(book.settled) + len(book._forgetting) < 2 * 10


def test_one_decision_reaps_a_bounded_number_and_the_next_goes_on() -> None:
    book, _ = books(START_US)
    for n in range(3 * REAP_AT_MOST):
        open_one(book, f"h{n}", "a", START_US + n)
    late_us = START_US + 2 * LEASE_US
    assert [book.reap(late_us) for _ in range(4)] == [REAP_AT_MOST] * 3 + [0]
    assert book.positions(of("a"), late_us)[2] == 0


def test_a_settled_hold_is_remembered_for_the_stated_time() -> None:
    book, _ = books(START_US)
    open_one(book, "h", "a", START_US)
    book.settle("h", WANTS, START_US)
    assert book.knows("h", START_US + SETTLED_US - 1)
    assert not book.knows("h", START_US + SETTLED_US)
