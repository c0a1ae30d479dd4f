"""What callers are told of limits: the right kind, the scope's name, an exact wait, and headers of the tightest limit."""

from collections.abc import Iterable

import pytest

from domain.faults import Kind
from gateway.http.faults import render
from gateway.request import rate_limit_replies
from gateway.request.rate_limit_replies import (
    amount_words,
    duration,
    fault_of,
    limit_header_lines,
    limit_words,
    refused_standing,
    told_words,
)
from tenancy.hold import LimitStatus, Refused
from tenancy.limits import Amounts, Level, Limit, LimitLine, Meter, Rolling, Scope, Window, line_of

WANTED = Amounts(input_tokens=500, output_tokens=700, units=3000, cost_nanousd=1_500_000_000)


def limit_headers(limit_statuses: Iterable[LimitStatus]) -> list[tuple[bytes, bytes]]:
    """The header lines as names and values."""
    lines = limit_header_lines(limit_statuses).split(b"\r\n")
    assert lines.pop() == b""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]


WEB = Scope(Level.PROJECT, "acme/web")


def line(meter: Meter, window: Window, amount: int = 100, scope: Scope = WEB, soft: int | None = None) -> LimitLine:
    return line_of(Limit(scope, meter, window, amount, soft=soft), 0.0)


@pytest.mark.parametrize(
    ("meter", "window", "kind"),
    [
        (Meter.REQUESTS, Window.MINUTE, Kind.REQUEST_LIMIT),
        (Meter.TOKENS, Window.MINUTE, Kind.TOKEN_LIMIT),
        (Meter.INPUT_TOKENS, Window.MINUTE, Kind.TOKEN_LIMIT),
        (Meter.UNITS, Window.MINUTE, Kind.TOKEN_LIMIT),
        (Meter.CONCURRENT_REQUESTS, Window.NOW, Kind.CONCURRENCY_LIMIT),
        (Meter.TOKENS, Window.DAY, Kind.QUOTA_SPENT),
        (Meter.COST_NANOUSD, Window.MONTH, Kind.QUOTA_SPENT),
        (Meter.COST_NANOUSD, Window.EVER, Kind.QUOTA_SPENT),
    ],
)
def test_each_limit_refuses_in_its_own_kind_and_names_the_scope(meter: Meter, window: Window, kind: Kind) -> None:
    fault = fault_of(Refused(line(meter, window), 3, 20_500_000), WANTED, 0.5)
    assert fault.kind is kind
    assert "project acme/web" in fault.message
    assert fault.retry.should == (kind is not Kind.QUOTA_SPENT)


@pytest.mark.req("R61")
def test_a_rate_says_exactly_how_long_to_wait() -> None:
    assert fault_of(Refused(line(Meter.TOKENS, Window.MINUTE), 3, 20_500_000), WANTED, 0.9).retry.after_s == 20.5


def test_a_request_larger_than_the_limit_is_told_so_with_both_numbers() -> None:
    fault = fault_of(Refused(line(Meter.TOKENS, Window.MINUTE), 100, None, never=True), WANTED, 0.5)
    assert fault.kind is Kind.EXCEEDS_LIMIT
    assert "1200 tokens" in fault.message
    assert "100 tokens per minute" in fault.message
    assert not fault.retry.should


def test_a_limit_of_nothing_is_no_matter_of_size() -> None:
    assert fault_of(Refused(line(Meter.TOKENS, Window.MINUTE, 0), 0, None, never=True), WANTED, 0.5).kind is Kind.TOKEN_LIMIT
    closed = fault_of(Refused(line(Meter.CONCURRENT_REQUESTS, Window.NOW, 0), 0, None, never=True), WANTED, 0.5)
    assert (closed.kind, closed.retry.should) == (Kind.CONCURRENCY_LIMIT, False)


def test_money_that_cannot_be_checked_is_our_side() -> None:
    fault = fault_of(Refused(line(Meter.COST_NANOUSD, Window.MONTH), 0, None, degraded=True), WANTED, 0.5)
    assert (fault.kind, fault.retry.should) == (Kind.QUOTA_UNKNOWN, True)


def test_words() -> None:
    assert amount_words(Meter.COST_NANOUSD, 12_340_000_000) == "$12.34"
    assert amount_words(Meter.COST_NANOUSD, 5_000_000_001) == "$5.000000001"
    assert amount_words(Meter.COST_NANOUSD, 10**9) == "$1.00"
    everyone = Limit(Scope(Level.GLOBAL, ""), Meter.CONCURRENT_REQUESTS, Window.NOW, 7)
    assert limit_words(everyone, 7) == "the gateway: 7 concurrent requests"
    assert limit_words(Limit(Scope(Level.USER, "acme"), Meter.TOKENS, Window.DAY, 7), 7) == "each end user of acme: 7 tokens per day"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0ms"),
        (1, "1ms"),
        (20_000, "20ms"),
        (1_000_000, "1s"),
        (1_500_000, "1.5s"),
        (360_000_000, "6m0s"),
        (90_061_500_000, "25h1m1.5s"),
    ],
)
def test_durations_are_written_as_openai_writes_them(us: int, text: str) -> None:
    assert duration(us) == text


def test_headers_tell_the_tightest_limit_of_each_kind() -> None:
    limit_statuses = (
        LimitStatus(line(Meter.REQUESTS, Window.MINUTE, 100), 40, 30_000_000),
        LimitStatus(line(Meter.REQUESTS, Window.DAY, 50), 45, 10**9),
        LimitStatus(line(Meter.TOKENS, Window.MINUTE, 9_000), 8_000, 6_500_000),
        LimitStatus(line(Meter.OUTPUT_TOKENS, Window.DAY, 9_000), 700, 10**9),
        LimitStatus(line(Meter.COST_NANOUSD, Window.DAY, 9_000), 1, 10**9),
        LimitStatus(line(Meter.CONCURRENT_REQUESTS, Window.NOW, 2), 0, 0),
    )
    assert dict(limit_headers(limit_statuses)) == {
        b"x-ratelimit-limit-requests": b"100",
        b"x-ratelimit-remaining-requests": b"40",
        b"x-ratelimit-reset-requests": b"30s",
        b"x-ratelimit-limit-tokens": b"9000",
        b"x-ratelimit-remaining-tokens": b"700",
        b"x-ratelimit-reset-tokens": b"16m40s",
    }


def test_a_soft_threshold_that_is_passed_is_told() -> None:
    below, above = (LimitStatus(line(Meter.COST_NANOUSD, Window.DAY, 10**9, soft=8 * 10**8), left, 0) for left in (3 * 10**8, 2 * 10**8))
    assert limit_headers((below,)) == []
    assert limit_headers((above,)) == [(b"x-tidegate-limit-warning", b"project acme/web: $0.80 per day")]


def test_of_a_rate_with_a_small_burst_what_is_used_is_what_is_missing_of_the_burst() -> None:
    rate = line_of(Limit(WEB, Meter.REQUESTS, Window.MINUTE, 600, burst=60, soft=50), 0.0)
    assert b"x-tidegate-limit-warning" not in dict(limit_headers((LimitStatus(rate, 60, 0),)))
    assert b"x-tidegate-limit-warning" in dict(limit_headers((LimitStatus(rate, 10, 5_000_000),)))


def test_a_refusal_says_when_all_of_a_rate_is_there_again_and_not_when_to_retry() -> None:
    told = refused_standing(Refused(line(Meter.REQUESTS, Window.MINUTE, 10), 0, 4_380_000))
    assert (told.remaining, told.reset_us) == (0, 60_000_000)
    assert refused_standing(Refused(line(Meter.TOKENS, Window.DAY, 10), 3, 7_000_000)).reset_us == 7_000_000
    assert refused_standing(Refused(line(Meter.TOKENS, Window.EVER, 10), 3, None)).reset_us == 0


SHARED = [Scope(Level.GLOBAL, ""), Scope(Level.MODEL, "llama"), Scope(Level.ORGANISATION, "north")]


@pytest.mark.parametrize("scope", SHARED, ids=str)
def test_of_a_limit_shared_with_other_tenants_no_number_is_told(scope: Scope) -> None:
    """What is left of it, and where its threshold is, would tell how busy the others are."""
    named = "the gateway" if scope.level is Level.GLOBAL else str(scope)
    shared = [
        LimitStatus(line(meter, window, 777, scope, soft=700), left, 12_345_000)
        for left in (0, 7, 77)
        for meter, window in ((Meter.REQUESTS, Window.MINUTE), (Meter.TOKENS, Window.DAY))
    ]
    own = LimitStatus(line(Meter.REQUESTS, Window.MINUTE, 100), 99, 600_000)
    told = dict(limit_headers((*shared, own)))
    assert told.pop(b"x-ratelimit-remaining-requests") == b"99", "the tightest of those that are the tenant's alone"
    assert told.pop(b"x-ratelimit-limit-requests") == b"100"
    assert told.pop(b"x-ratelimit-reset-requests") == b"600ms"
    warned = told.pop(b"x-tidegate-limit-warning").decode()
    assert set(warned.split("; ")) == {f"{named}: requests per minute", f"{named}: tokens per day"}
    assert told == {}


@pytest.mark.parametrize("scope", SHARED, ids=str)
@pytest.mark.parametrize("never", [False, True])
def test_a_refusal_by_a_shared_limit_names_the_scope_and_no_number_of_it(scope: Scope, never: bool) -> None:
    for meter, window in (
        (Meter.REQUESTS, Window.MINUTE),
        (Meter.TOKENS, Window.MINUTE),
        (Meter.CONCURRENT_REQUESTS, Window.NOW),
        (Meter.TOKENS, Window.DAY),
        (Meter.COST_NANOUSD, Window.MONTH),
    ):
        refused = Refused(line(meter, window, 777, scope), 77, 20_500_000, never=never)
        fault = fault_of(refused, WANTED, 0.5)
        assert ("the gateway" if scope.level is Level.GLOBAL else str(scope)) in fault.message
        assert "77" not in fault.message
        assert limit_headers((refused_standing(refused),)) == []
    assert told_words(Limit(scope, Meter.COST_NANOUSD, Window.DAY, 5), 5).endswith(": dollars per day")


@pytest.mark.parametrize(
    ("window", "zone", "says"),
    [
        (Window.HOUR, "", "(tenant acme: 777 tokens per hour). It starts anew at the full hour."),
        (Window.DAY, "", "(tenant acme: 777 tokens per day). It starts anew at 00:00 UTC."),
        (Window.DAY, "Asia/Kathmandu", "(tenant acme: 777 tokens per day). It starts anew at 00:00 Asia/Kathmandu."),
        (Window.WEEK, "", "(tenant acme: 777 tokens per week). It starts anew on Monday at 00:00 UTC."),
        (Window.MONTH, "Europe/Berlin", "(tenant acme: 777 tokens per month). It starts anew on the first of the month, Europe/Berlin."),
    ],
)
def test_a_spent_quota_says_when_it_starts_anew_and_in_which_calendar(window: Window, zone: str, says: str) -> None:
    limit = Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, window, 777, zone=zone)
    refused = Refused(line_of(limit, 0.0), 77, 20_500_000)
    standing = "): 700 tokens used or reserved, and this request may need up to 1200 tokens."
    assert fault_of(refused, WANTED, 0.5).message == f"Quota spent {says.replace(').', standing)}"
    assert (b"x-ratelimit-reset-tokens", b"20.5s") in limit_headers((refused_standing(refused),))


@pytest.mark.parametrize(
    ("days", "wait_us", "says", "retry"),
    [
        (30, 20_500_000, "777 tokens in any 30 days). There is room for this request in 20.5s.", (b"true", b"21", b"20500")),
        (2, 120_000_000, "777 tokens in any 2 days). There is room for this request in 2m0s.", (b"true", b"120", b"120000")),
        (1, 7_200_000_000, "777 tokens in any 24 hours). There is room for this request in 2h0m0s.", (b"false", None, None)),
        (7, None, "777 tokens in any 7 days).", (b"false", None, None)),
    ],
)
def test_a_spent_rolling_window_says_when_there_is_room(days: int, wait_us: int | None, says: str, retry: tuple[bytes | None, ...]) -> None:
    limit = Limit(Scope(Level.TENANT, "acme"), Meter.TOKENS, Rolling(days), 777)
    refused = Refused(line_of(limit, 0.0), 77, wait_us)
    fault = fault_of(refused, WANTED, 0.5)
    standing = "): 700 tokens used or reserved, and this request may need up to 1200 tokens."
    assert (fault.message, fault.kind) == (f"Quota spent (tenant acme: {says.replace(').', standing)}", Kind.QUOTA_SPENT)
    headers = dict(render(fault, "r").headers)
    assert tuple(headers.get(name) for name in (b"x-should-retry", b"retry-after", b"retry-after-ms")) == retry
    resets = dict(limit_headers((refused_standing(refused),)))[b"x-ratelimit-reset-tokens"]
    assert resets.decode() == duration(wait_us or 0)


def test_a_spent_budget_says_what_is_used_and_what_the_request_may_cost() -> None:
    budget = line_of(Limit(Scope(Level.TENANT, "search"), Meter.COST_NANOUSD, Window.MONTH, 120_000), 0.0)
    wanted = Amounts(requests=1, cost_nanousd=100_000)
    assert fault_of(Refused(budget, 95_000, 7_000_000), wanted, 0.5).message == (
        "Quota spent (tenant search: $0.00012 per month): $0.000025 used or reserved, and this request may cost up to $0.0001."
        " It starts anew on the first of the month, UTC."
    )
    closed = line_of(Limit(Scope(Level.TENANT, "search"), Meter.COST_NANOUSD, Window.MONTH, 0), 0.0)
    assert "used" not in fault_of(Refused(closed, 0, None, never=True), wanted, 0.5).message
    requests = line_of(Limit(Scope(Level.TENANT, "search"), Meter.REQUESTS, Window.DAY, 5), 0.0)
    assert "used" not in fault_of(Refused(requests, 0, None), wanted, 0.5).message


def test_no_limits_no_headers() -> None:
    assert limit_headers(()) == []


def test_the_access_log_names_a_limit_of_money_by_its_public_id_and_in_dollars() -> None:
    spent = line_of(Limit(WEB, Meter.COST_NANOUSD, Window.MONTH, 100, zone="Europe/Berlin"), 0.0, "f00d")
    detail = fault_of(Refused(spent, 1_500_000_000, None), WANTED, 0.5).detail
    assert detail == "project:acme/web:cost_usd:month@Europe/Berlin:f00d remaining $1.50"
    assert (
        fault_of(Refused(line(Meter.TOKENS, Window.DAY), 3, None), WANTED, 0.5).detail == "project:acme/web:tokens:day remaining 3 tokens"
    )


def test_the_kept_forms_of_headers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit_replies, "MAX_FORMS", 2)
    monkeypatch.setattr(rate_limit_replies, "_forms", {})
    lines = [line(meter, Window.DAY, 10) for meter in (Meter.REQUESTS, Meter.TOKENS, Meter.INPUT_TOKENS, Meter.OUTPUT_TOKENS)]
    told = dict(limit_headers([LimitStatus(each, remaining, 0) for remaining, each in enumerate(lines, 3)]))
    assert told[b"x-ratelimit-remaining-requests"] == b"3"
    assert told[b"x-ratelimit-remaining-tokens"] == b"4"
    assert len(rate_limit_replies._forms) <= 2
