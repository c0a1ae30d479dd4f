"""`POST /v1/feedback`: a caller rates the answer to one of its requests, under the gateway's own id of that request.

A rating is a request of its key, as a judgement of guard rules is (`guard_texts.py`), so that a limit on requests bounds what callers ask
of the database. It is kept for the key's tenant, and joined to that tenant's requests alone: a rating with an id of another tenant's
request, or of no request, is kept and rates nothing. So no answer here tells which ids there are.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from domain import retry_after
from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.http.edge.reply_ids import PREFIXES
from gateway.http.openai.checks import refuse, refuse_type, shown
from gateway.http.openai.json_guard import parse_object
from gateway.request.admit import admit_without_tokens
from gateway.request.authenticate import authenticate, grant_of
from gateway.request.reply_headers import reply_headers
from gateway.request.settle import settle
from gateway.story import Story
from tenancy.feedback import MAX_COMMENT_CHARS, MAX_LABEL_CHARS, RATINGS, Feedback, FeedbackAway, FeedbackBook, FeedbackFull

FEEDBACK: Final = "/v1/feedback"
MAX_BODY_BYTES: Final = 16 * 1024
"""A comment of `MAX_COMMENT_CHARS`, each of them escaped."""
MAX_USER_CHARS: Final = 256
JSON_TYPE: Final = b"application/json"
OWN_ID: Final = re.compile(r"req-[0-9a-f]{8}-[0-9a-f]{24}")
"""The ids of `gateway.deps.request_ids`."""
_FIELDS: Final = ("request_id", "rating", "label", "comment", "user")


@dataclass(frozen=True, slots=True)
class FeedbackService:
    """Where ratings are kept, and their bounds."""

    book: FeedbackBook
    most: int
    """Ratings of one tenant."""
    keep_s: float
    count: Callable[[str, str], None]
    """Called with the tenant and the rating, for metrics."""


class Rated(msgspec.Struct, frozen=True):
    """What a body of the route says."""

    request_id: str
    rating: Any
    label: str
    comment: str
    user: str


def rating_in(body: bytes) -> Rated:
    """Read the body of a rating.

    Raises:
        Fault: INVALID_JSON, MISSING_PARAMETER, UNSUPPORTED_PARAMETER or INVALID_VALUE, with the field.
    """
    document = parse_object(body)
    unknown = next((name for name in document if name not in _FIELDS), None)
    if unknown is not None:
        message = f"Unsupported parameter: {shown(unknown)}. A rating has {', '.join(_FIELDS)}."
        raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=unknown[:64])
    for name in ("request_id", "rating"):
        if document.get(name) is None:
            raise Fault(Kind.MISSING_PARAMETER, f"Missing required parameter: '{name}'.", param=name)
    rating = _text(document, "rating", 8)
    if rating not in RATINGS:
        refuse(f"Invalid value for 'rating': send {' or '.join(map(repr, RATINGS))}.", "rating")
    label = _text(document, "label", MAX_LABEL_CHARS)
    if not label.isprintable():
        refuse("Invalid value for 'label': it holds characters that cannot be printed.", "label")
    comment = _text(document, "comment", MAX_COMMENT_CHARS)
    if "\0" in comment:
        refuse("Invalid value for 'comment': it holds the character U+0000.", "comment")
    return Rated(_own_id(document), rating, label, comment, _text(document, "user", MAX_USER_CHARS))


def _own_id(document: dict[str, object]) -> str:
    """The gateway's own id in `request_id`, which may be the `id` of an answer, too."""
    given = _text(document, "request_id", 128)
    for prefix in ("", *PREFIXES.values()):
        if given.startswith(prefix) and OWN_ID.fullmatch(given, len(prefix)):
            return given[len(prefix) :]
    message = "send the value of the header 'x-tidegate-request-id' of the answer that is rated, or the answer's 'id'."
    refuse(f"Invalid value for 'request_id': {message}", "request_id")


def _text(document: dict[str, object], name: str, most: int) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        refuse_type("a string", value, name)
    if len(value) > most:
        refuse(f"Invalid value for '{name}': it is longer than {most:,} characters.", name)
    return value


async def give_feedback(exchange: Exchange, story: Story, deps: Deps) -> None:
    """Answer `POST /v1/feedback`.

    Raises:
        Fault: the key, the body, a limit or the store is why the rating is not kept.
    """
    story.asked.endpoint = FEEDBACK
    caller = await authenticate(exchange, story, deps)
    story.asked.user = caller.user
    grant = grant_of(caller, deps)
    refusing_scope = grant.rights.refuses_endpoint(FEEDBACK)
    if refusing_scope is not None:
        raise Fault(Kind.NOT_PERMITTED, f"{FEEDBACK} may not be used here (set for {refusing_scope}).")
    service = deps.feedback
    if service is None:
        raise Fault(Kind.UNKNOWN_PATH, f"{FEEDBACK} is switched off here.")
    if exchange.head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != JSON_TYPE:
        raise Fault(Kind.UNSUPPORTED_MEDIA, "Send the request as JSON, with the header 'content-type: application/json'.")
    body = await exchange.body((MAX_BODY_BYTES,), caller.tenant)
    story.body_at = deps.clock()
    story.asked.request_bytes = len(body)
    rated = rating_in(body)
    hold = await admit_without_tokens(caller, grant, story, deps)
    try:
        await _keep(rated, caller, service, deps)
        answer = msgspec.json.encode({"object": "feedback", "request_id": rated.request_id, "rating": rated.rating})
        story.settled.status = 200
        exchange.reply(200, reply_headers(exchange, story, None, deps, stream=False) + b"cache-control: no-store\r\n", answer)
    except Fault as fault:
        story.settled.fault = fault  # a request whose failure is not the caller's counts as not sent
        raise
    finally:
        await settle(hold, story, deps)


async def _keep(rated: Rated, caller: Caller, service: FeedbackService, deps: Deps) -> None:
    now, user = deps.wall(), caller.user or rated.user
    given = Feedback(
        tenant=caller.tenant,
        request_id=rated.request_id,
        source="caller",
        at_unix=now,
        expires_unix=now + service.keep_s,
        rating=rated.rating,
        label=rated.label,
        comment=rated.comment,
        key_id=caller.key_id[:80],
        end_user=deps.answers.digest_of_user(user) if user else "",
    )
    try:
        await service.book.put(given, service.most)
    except FeedbackFull:
        message = f"Your tenant has {service.most:,} ratings, as many as are kept (feedback.max_per_tenant)."
        raise Fault(Kind.QUOTA_SPENT, message) from None
    except FeedbackAway as error:
        message = "Ratings cannot be kept right now. Try again shortly."
        raise Fault(Kind.STORAGE_UNAVAILABLE, message, retry=retry_after.SOON, detail=str(error)) from None
    service.count(caller.tenant, rated.rating)
