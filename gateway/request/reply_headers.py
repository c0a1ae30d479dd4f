"""The header lines of a successful reply: OpenAI's own, and ours behind `x-tidegate-` for callers who may see them.

The `x-ratelimit-*` headers are made in `gateway/request/rate_limit_replies.py`.
"""

from typing import Final

from domain.usage import Usage
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange, Header, header_lines
from gateway.request.rate_limit_replies import limit_header_lines
from gateway.story import Story
from policies.rollout.in_force import in_words

MAX_REASON_CHARS: Final = 1000
"""Most characters of the decision in words: proxies in front of us refuse heads of 4 to 8 KiB, and pools may be large."""

MAX_COSTS: Final = 4
"""Candidates whose cost the short form of the decision names."""

EXPOSED: Final = b", ".join(
    (
        b"x-request-id, x-tidegate-request-id, openai-processing-ms, retry-after, retry-after-ms, x-should-retry",
        b"x-tidegate-limit-warning, x-tidegate-degraded",
        *(b"x-ratelimit-%b-%b" % (what, kind) for what in (b"limit", b"remaining", b"reset") for kind in (b"requests", b"tokens")),
        b"request-id",
        *(b"anthropic-ratelimit-%b-%b" % (kind, what) for what in (b"limit", b"remaining", b"reset") for kind in (b"requests", b"tokens")),
    )
)
"""The headers that a page of another origin may read."""

_OURS: Final = b"x-tidegate-request-id: %b\r\nopenai-processing-ms: %d\r\n"
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
    if story.attempt.content_type:
        lines = lines.replace(b"application/json", story.attempt.content_type, 1)
    if story.asked.expose:
        lines += header_lines(_routing_headers(story, usage, deps.clock()))
    return lines


def common_headers(exchange: Exchange, story: Story, deps: Deps) -> bytes:
    """The header lines of every reply of the data port, errors too: a page from an allowed origin may read those as well."""
    lines = _OURS % (story.gateway_id.encode("ascii"), (deps.clock() - story.started_at) * 1000)
    settled, steps = story.settled, story.asked.steps
    if settled.limit_statuses:
        lines += limit_header_lines(settled.limit_statuses)
    if settled.degraded or steps:
        lines += b"x-tidegate-degraded: %b\r\n" % ", ".join(("limits", *steps) if settled.degraded else steps).encode()
    return lines + cors_headers(exchange, deps.cors_origins) if deps.cors_origins else lines


def _routing_headers(story: Story, usage: Usage | None, now: float) -> list[Header]:
    """How the request was routed, for callers whose policy says `expose_headers`. Untrusted callers would learn the fleet from it.

    A head that a heartbeat has forced out says nothing of the backend: another one may still give the answer.
    """
    asked, placed, tried, answered = story.asked, story.placed, story.tried, story.attempt.begun
    headers = [
        (b"x-tidegate-pool", placed.pool.encode()),
        (b"x-tidegate-revision", placed.revision.encode()),
        (b"x-tidegate-cache", (story.looked_up.status or "none").encode()),
        (b"x-tidegate-queue-ms", b"%.3f" % (story.queue_s * 1000)),
        (b"x-tidegate-overhead-ms", b"%.3f" % (story.overhead_s(now) * 1000)),
        (b"x-tidegate-decision", _decision(story)),
    ]
    if story.looked_up.hit is not None:
        headers.append((b"x-tidegate-cache-age-s", b"%d" % story.looked_up.age_s))
        if story.looked_up.similarity is not None:
            headers.append((b"x-tidegate-cache-similarity", b"%.4f" % story.looked_up.similarity))
    if asked.guards is not None:
        headers.append((b"x-tidegate-guard", story.guarded.word.encode()))
    if story.looked_up.resembled:
        headers.append((b"x-tidegate-cache-semantic", story.looked_up.resembled.encode()))
    if asked.template is not None:
        headers.append((b"x-tidegate-prompt", asked.template.name.encode()))
    if asked.dealt is not None or asked.dealt_prompt is not None:
        headers.append((b"x-tidegate-rollout", in_words(asked.dealt, asked.dealt_prompt).encode()))
    if answered:
        headers.append((b"x-tidegate-backend", tried.backend.encode()))
    if answered and placed.route is not None:
        sentence = placed.route.explanation().sentence()
        if placed.shared is not None:
            sentence = f"{placed.shared.split.sentence()}; {sentence}"
        headers.append((b"x-tidegate-reason", sentence[:MAX_REASON_CHARS].encode("ascii", "replace")))
    if answered and tried.prefill:
        headers.append((b"x-tidegate-prefill-backend", tried.prefill.encode()))
    if story.fell_back:
        headers.append((b"x-tidegate-fallback", ", ".join([f"{step.model}={step.on}" for step in story.fell_back]).encode()))
    if usage is not None and not tried.prefill:  # engines count what they were handed as cached
        headers.append((b"x-tidegate-prefix-hit-tokens", b"%d" % usage.cached_tokens))
    return headers


def _decision(story: Story) -> bytes:
    """The decision in short: the policy, what each candidate cost in its unit, and what decided between near ones. All of it is shown by
    `tidegate explain` under the request's id."""
    decision = story.placed.decision
    if decision is None:
        return b"none"
    route = decision.route
    costs = ", ".join([f"{backend.id}={cost:.4g}" for (backend, _), cost in zip(route.ranked[:MAX_COSTS], route.costs, strict=False)])
    more = f", {len(route.ranked) - MAX_COSTS} more" if len(route.ranked) > MAX_COSTS else ""
    held = f"; held={route.matched[0]:.0f}/{decision.prompt_tokens}" if route.matched and decision.blocks else ""
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
