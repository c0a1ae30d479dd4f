"""Names of headers."""

from gateway.http.anthropic.headers import reply_lines

LINES = (
    b"x-request-id: req-1\r\nx-tidegate-request-id: req-2\r\n"
    b"x-ratelimit-limit-requests: 10\r\nx-ratelimit-remaining-requests: 9\r\nx-ratelimit-reset-requests: 1m30s\r\n"
    b"x-ratelimit-reset-tokens: 20ms\r\n"
)


def test_the_apis_own_names_are_added() -> None:
    added = reply_lines(LINES, lambda: 1_800_000_000.0).removeprefix(LINES)
    assert added == (
        b"request-id: req-1\r\n"
        b"anthropic-ratelimit-requests-limit: 10\r\nanthropic-ratelimit-requests-remaining: 9\r\n"
        b"anthropic-ratelimit-requests-reset: 2027-01-15T08:01:30Z\r\n"
        b"anthropic-ratelimit-tokens-reset: 2027-01-15T08:00:00Z\r\n"
    )
