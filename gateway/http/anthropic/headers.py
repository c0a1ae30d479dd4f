"""The header lines of replies under the names of Anthropic's API.

OpenAI's names stay beside them: a proxy in front of the gateway may read those on every route.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

_RESETS: Final = {b"x-ratelimit-reset-%b" % kind: b"anthropic-ratelimit-%b-reset" % kind for kind in (b"requests", b"tokens")}
_NAMES: Final = {
    b"x-request-id": b"request-id",
    **{
        b"x-ratelimit-%b-%b" % (what, kind): b"anthropic-ratelimit-%b-%b" % (kind, what)
        for what in (b"limit", b"remaining")
        for kind in (b"requests", b"tokens")
    },
    **_RESETS,
}
"""Anthropic's names by OpenAI's. They are looked up line by line: a pattern over all lines took a seventh of a translated request."""
_DURATION: Final = re.compile(rb"(\d+(?:\.\d+)?)(ms|[dhms])")
_SECONDS: Final = {b"d": 86_400.0, b"h": 3600.0, b"m": 60.0, b"s": 1.0, b"ms": 0.001}


def reply_lines(lines: bytes, wall: Callable[[], float]) -> bytes:
    """The lines with `request-id` and the `anthropic-ratelimit-` family added, whose resets are times instead of durations."""
    added = []
    for line in lines.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        own = _NAMES.get(name)
        if own is None:
            continue
        if name in _RESETS:
            at = wall() + sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(value))
            value = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        added.append(b"%b: %b\r\n" % (own, value))
    return lines + b"".join(added)
