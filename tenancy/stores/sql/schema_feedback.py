"""The tables of ratings, of the judge's turn and of its agreement, and what removes ratings.

Apart from their store (`feedback.py`), because erasure, the sweep and the end of a tenant (`responses.py`, `accounts.py`) remove ratings
together with stored Responses.
"""

from collections.abc import Collection

import sqlalchemy as sa

from domain.identity import TenantId
from tenancy.stores.sql.schema import metadata, retired_tenant

feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("tenant", sa.String(63), primary_key=True),
    sa.Column("request_id", sa.String(64), primary_key=True),
    sa.Column("source", sa.String(8), primary_key=True),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("expires_unix", sa.Float, nullable=False),
    sa.Column("rating", sa.String(8), nullable=False),
    sa.Column("score", sa.Integer, nullable=True),
    sa.Column("label", sa.String(64), nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
    sa.Column("key_id", sa.String(80), nullable=False),
    sa.Column("end_user", sa.String(64), nullable=False),
    sa.Index("feedback_by_time", "at_unix"),
    sa.Index("feedback_by_tenant", "tenant", "at_unix"),
    sa.Index("feedback_by_end", "expires_unix"),
    sa.Index("feedback_by_user", "end_user", "tenant"),
)

judge_turn = sa.Table(
    "judge_turn",
    metadata,
    sa.Column("what", sa.String(16), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False),
    sa.Column("until_unix", sa.Float, nullable=False),
    sa.Column("day", sa.BigInteger, nullable=False),
    sa.Column("tokens", sa.BigInteger, nullable=False),
)
"""One row: who judges, and the tokens of a day."""

judge_agreement = sa.Table(
    "judge_agreement",
    metadata,
    sa.Column("what", sa.String(16), primary_key=True),
    sa.Column("at_unix", sa.Float, nullable=False),
    sa.Column("document", sa.Text, nullable=False),
)
"""One row: the last measurement of the judge's agreement, as JSON."""


def erased_feedback(tenant: TenantId, end_users: Collection[str], before_unix: float | None) -> sa.Delete:
    """Removes the ratings of end users of a tenant; those that were given before a time, where one is given."""
    column = feedback.c
    theirs = (column.tenant == tenant) & column.end_user.in_(end_users)
    if before_unix is not None:
        theirs &= column.at_unix < before_unix
    return sa.delete(feedback).where(theirs)


def past_feedback(now_unix: float, most: int) -> sa.Delete:
    """Removes some ratings that are past their time, or whose tenant is gone."""
    column = feedback.c
    past = sa.or_(column.expires_unix <= now_unix, column.tenant.in_(sa.select(retired_tenant.c.name)))
    key = (column.tenant, column.request_id, column.source)
    return sa.delete(feedback).where(sa.tuple_(*key).in_(sa.select(*key).where(past).limit(most)))


def forgotten_feedback(tenant: TenantId) -> sa.Delete:
    """Removes all ratings of a tenant that is being deleted, in its transaction."""
    return sa.delete(feedback).where(feedback.c.tenant == tenant)
