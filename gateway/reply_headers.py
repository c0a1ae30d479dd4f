"""The header lines of a successful reply: OpenAI's own, and ours behind `x-tidegate-` for callers who may see them."""

from typing import Final

from domain.usage import Usage
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, Header, header_lines
from gateway.story import Story

MAX_REASON_CHARS: Final = 1000
"""Of the decision in words: proxies in front of us refuse heads of 4 to 8 KiB, and pools may be large."""

_JSON: Final = b"content-type: application/json\r\nx-request-id: %b\r\n"
_STREAM: Final = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"  # nginx in front of us would otherwise hold events back
    b"x-request-id: %b\r\n"
)


def reply_headers(exchange: Exchange, story: Story, usage: Usage | None, deps: Deps, *, stream: bool) -> bytes:
    """Header lines of the 200 that is about to be sent; timings are taken now."""
    lines = (_STREAM if stream else _JSON) % story.request_id.encode("ascii") + common_headers(exchange, story, deps)
    if story.expose:
        lines += header_lines(_routing_headers(story, usage, deps.clock()))
    return lines


def common_headers(exchange: Exchange, story: Story, deps: Deps) -> bytes:
    """What every reply of the data port carries, errors too: a page from an allowed origin may read those as well."""
    lines = b"openai-processing-ms: %d\r\n" % ((deps.clock() - story.started_at) * 1000)
    return lines + cors_headers(exchange, deps.cors_origins) if deps.cors_origins else lines


def _routing_headers(story: Story, usage: Usage | None, now: float) -> list[Header]:
    """What happened inside, for callers whose policy says `expose_headers`. Untrusted ones would learn the fleet from it.

    A head that a heartbeat has forced out says nothing of the backend: another one may still give the answer.
    """
    headers = [
        (b"x-tidegate-pool", story.pool.encode()),
        (b"x-tidegate-revision", story.revision.encode()),
        (b"x-tidegate-cache", b"none"),
        (b"x-tidegate-queue-ms", b"%.3f" % (story.queue_s * 1000)),
        (b"x-tidegate-overhead-ms", b"%.3f" % (story.overhead_s(now) * 1000)),
        (b"x-tidegate-decision", story.request_id.encode("ascii")),
    ]
    if story.events:
        headers.append((b"x-tidegate-backend", story.backend.encode()))
    if story.events and story.route is not None:
        headers.append((b"x-tidegate-reason", story.route.explanation().sentence()[:MAX_REASON_CHARS].encode("ascii", "replace")))
    if usage is not None:
        headers.append((b"x-tidegate-prefix-hit-tokens", b"%d" % usage.cached_tokens))
    return headers


def cors_headers(exchange: Exchange, origins: frozenset[str]) -> bytes:
    """`access-control-allow-origin` and its company when the caller is a page from an allowed origin, else nothing."""
    origin = exchange.head.headers.get(b"origin")
    if origin is None or not ("*" in origins or origin.decode("latin-1") in origins):
        return b""
    return header_lines(
        (
            (b"access-control-allow-origin", origin),
            (b"vary", b"origin"),
            (b"access-control-expose-headers", b"x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry"),
        )
    )
