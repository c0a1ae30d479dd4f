"""The header lines of a successful reply: OpenAI's own, and ours behind `x-tidegate-` for callers who may see them."""

from typing import Final

from domain.usage import Usage
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, Header, header_lines
from gateway.limit_words import limit_headers
from gateway.story import Story
from policies.rollout.in_force import in_words

MAX_REASON_CHARS: Final = 1000
"""Of the decision in words: proxies in front of us refuse heads of 4 to 8 KiB, and pools may be large."""

MAX_COSTS: Final = 4
"""Candidates whose cost the short form of the decision names."""

EXPOSED: Final = b", ".join(
    (
        b"x-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry, x-tidegate-limit-warning, x-tidegate-degraded",
        *(b"x-ratelimit-%b-%b" % (what, kind) for what in (b"limit", b"remaining", b"reset") for kind in (b"requests", b"tokens")),
    )
)
"""What a page may read of a reply from elsewhere."""

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
    if story.standings:
        lines += header_lines(limit_headers(story.standings))
    if story.degraded or story.steps:
        said = ("limits", *story.steps) if story.degraded else story.steps
        lines += b"x-tidegate-degraded: %b\r\n" % ", ".join(said).encode()
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
        (b"x-tidegate-decision", _decision(story)),
    ]
    if story.template is not None:
        headers.append((b"x-tidegate-prompt", story.template.name.encode()))
    if story.dealt is not None or story.dealt_prompt is not None:
        headers.append((b"x-tidegate-rollout", in_words(story.dealt, story.dealt_prompt).encode()))
    if story.events:
        headers.append((b"x-tidegate-backend", story.backend.encode()))
    if story.events and story.route is not None:
        said = (
            story.route.explanation().sentence()
            if story.shared is None
            else f"{story.shared.split.sentence()}; {story.route.explanation().sentence()}"
        )
        headers.append((b"x-tidegate-reason", said[:MAX_REASON_CHARS].encode("ascii", "replace")))
    if story.events and story.prefill:
        headers.append((b"x-tidegate-prefill-backend", story.prefill.encode()))
    if story.fell_back:
        headers.append((b"x-tidegate-fallback", ", ".join([f"{one.model}={one.on}" for one in story.fell_back]).encode()))
    if usage is not None and not story.prefill:  # engines count what they were handed as cached
        headers.append((b"x-tidegate-prefix-hit-tokens", b"%d" % usage.cached_tokens))
    return headers


def _decision(story: Story) -> bytes:
    """The decision in short: the policy, what each candidate cost in its unit, and what decided between near ones. All of it is shown by
    `tidegate explain` under the request's id."""
    made = story.decision
    if made is None:
        return b"none"
    route = made.route
    costs = ", ".join([f"{backend.id}={cost:.4g}" for (backend, _), cost in zip(route.ranked[:MAX_COSTS], route.costs, strict=False)])
    more = f", {len(route.ranked) - MAX_COSTS} more" if len(route.ranked) > MAX_COSTS else ""
    held = f"; held={route.matched[0]:.0f}/{made.prompt_tokens}" if route.matched and made.blocks else ""
    return f"{route.policy}: {costs}{more}{held}{f'; by={route.why}' if route.why else ''}".encode("ascii", "replace")


def cors_headers(exchange: Exchange, origins: frozenset[str]) -> bytes:
    """`access-control-allow-origin` and its company when the caller is a page from an allowed origin, else nothing."""
    origin = exchange.head.headers.get(b"origin")
    if origin is None or not ("*" in origins or origin.decode("latin-1") in origins):
        return b""
    return header_lines(
        (
            (b"access-control-allow-origin", origin),
            (b"vary", b"origin"),
            (b"access-control-expose-headers", EXPOSED),
        )
    )
