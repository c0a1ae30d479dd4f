"""The header lines of replies under the names of Anthropic's API.

OpenAI's names stay beside them: a proxy in front of the gateway may read those on every route.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

_ID: Final = re.compile(rb"(?:\A|(?<=\n))x-request-id: ([^\r\n]*)\r\n")
_LIMIT: Final = re.compile(rb"(?:\A|(?<=\n))x-ratelimit-(limit|remaining|reset)-(requests|tokens): ([^\r\n]*)\r\n")
_DURATION: Final = re.compile(rb"(\d+(?:\.\d+)?)(ms|[dhms])")
_SECONDS: Final = {b"d": 86_400.0, b"h": 3600.0, b"m": 60.0, b"s": 1.0, b"ms": 0.001}


def reply_lines(lines: bytes, wall: Callable[[], float]) -> bytes:
    """The lines with `request-id` and the `anthropic-ratelimit-` family added, whose resets are times instead of durations."""
    added = b"".join([b"request-id: %b\r\n" % value for value in _ID.findall(lines)])
    for what, kind, value in _LIMIT.findall(lines):
        if what == b"reset":
            at = wall() + sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(value))
            value = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        added += b"anthropic-ratelimit-%b-%b: %b\r\n" % (kind, what, value)
    return lines + added
