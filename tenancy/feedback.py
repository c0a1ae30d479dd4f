"""Ratings of answers: by callers (`POST /v1/feedback`), and by the judge (`gateway/judge`). Values and ports.

A rating has the gateway's own id of the request and the tenant of the key that gave it. It is joined to the request under both, so that a
rating with the id of another tenant's request says nothing of that request.
"""

from collections.abc import Sequence
from typing import Final, Literal, Protocol, get_args

import msgspec

from domain.identity import TenantId

Rating = Literal["up", "down"]
RATINGS: Final[tuple[str, ...]] = get_args(Rating)
Source = Literal["caller", "judge"]
SOURCES: Final[tuple[str, ...]] = get_args(Source)

MAX_LABEL_CHARS: Final = 64
"""A word or two that is counted and filtered by, as `wrong` or `too long`."""
MAX_COMMENT_CHARS: Final = 2_000
"""A page of text of a person."""


class FeedbackAway(Exception):
    """The database cannot be reached now; the message says why."""


class FeedbackFull(Exception):
    """The tenant has as many ratings as it may have."""


class Feedback(msgspec.Struct, frozen=True):
    """One rating of one request. A later rating of the same request by the same source replaces it."""

    tenant: TenantId
    request_id: str
    """The gateway's own id (`x-tidegate-request-id`)."""
    source: Source
    at_unix: float
    expires_unix: float
    rating: Rating
    score: int | None = None
    """The judge's score, 1 to 5; None of a caller."""
    label: str = ""
    comment: str = ""
    key_id: str = ""
    """The key that gave it; empty for the judge."""
    end_user: str = ""
    """A keyed digest of the end user's label; empty for none."""


class RatedRequest(msgspec.Struct, frozen=True):
    """A rating, and what the ledger knows of the request of the same tenant under the same id; empty texts where it knows none."""

    feedback: Feedback
    model: str = ""
    pool: str = ""
    project: str = ""
    outcome: str = ""


class FeedbackQuery(msgspec.Struct, frozen=True):
    """The ratings to read."""

    tenant: TenantId | None = None
    """None for those of every tenant."""
    request_id: str = ""
    rating: str = ""
    source: str = ""
    label: str = ""
    since_unix: float = 0.0


class FeedbackBook(Protocol):
    """Stores ratings. Every operation raises FeedbackAway."""

    async def put(self, given: Feedback, most: int) -> None:
        """Store a rating.

        Args:
            most: ratings that its tenant may have.

        Raises:
            FeedbackFull: the tenant has them already.
        """
        ...

    async def page(self, query: FeedbackQuery, before: tuple[float, str, str] | None, limit: int) -> Sequence[RatedRequest]:
        """Ratings, the newest first.

        Args:
            before: time, request id and source of the last rating of the page before; None: from the newest.
        """
        ...


class MeasuredAgreement(msgspec.Struct, frozen=True):
    """How far the judge agreed with the labelled cases when that was measured. Shares are 0 to 1, and None without cases of their kind."""

    model: str
    cases_version: str
    """Of the set of cases: the beginning of its digest."""
    at_unix: float
    cases: int
    unreadable: int
    """Verdicts that could not be read."""
    scored: int
    score_agreement: float | None
    """Share of scored cases whose pass or failure is the label."""
    kappa: float | None
    """Cohen's kappa of the same; None where it is not defined."""
    passed_bad: int
    failed_good: int
    compared: int
    pair_agreement: float | None
    """Share of compared cases whose better answer is the label, in both orders."""
    swayed: int
    """Cases whose verdict followed the order."""


class AgreementBook(Protocol):
    """Keeps the last measurement of the judge's agreement, of all gateways on a database. Every operation raises FeedbackAway."""

    async def agreement(self) -> MeasuredAgreement | None:
        """The last measurement; None where there is none that this version can read."""
        ...

    async def keep_agreement(self, measured: MeasuredAgreement) -> None:
        """Keep a measurement in the place of the last one."""
        ...


class JudgeTurn(Protocol):
    """Whose turn it is to judge, of all workers on a database, and the tokens that were used on a day. Raises FeedbackAway."""

    async def take(self, owner: str, now_unix: float, until_unix: float, day: int, tokens: int) -> int | None:
        """Take the turn, or keep it, and add tokens to those of the day.

        Args:
            owner: the worker, unique over gateways and restarts.
            until_unix: when somebody else may take it.
            day: days since the epoch; on a new day the sum begins anew.
            tokens: used since the last call.

        Returns:
            The tokens of the day; None where it is somebody else's turn, and nothing is added then.
        """
        ...
