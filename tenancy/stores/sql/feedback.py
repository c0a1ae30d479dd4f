"""Ratings of answers in SQL: one row for each request and source, joined to the ledger's row of the same tenant and request."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from tenancy.feedback import Feedback, FeedbackAway, FeedbackFull, FeedbackQuery, MeasuredAgreement, RatedRequest
from tenancy.stores.sql.schema import usage_event
from tenancy.stores.sql.schema_feedback import feedback, judge_agreement, judge_turn
from tenancy.stores.sql.transaction import SqlConnections
from tenancy.stores.sql.upsert import insert_into

WITHIN_S: Final = 10.0
"""Longest wait for the database. SQLite's writers wait 5 s for each other."""

TURN: Final = "judge"
"""The name of the one row of `judge_turn`."""
_FIELDS: Final = Feedback.__struct_fields__
_KEY: Final = ("tenant", "request_id", "source")
_JOINED: Final = ("model", "pool", "project", "outcome")


class SqlFeedback:
    """Ratings in SQL (`tenancy.feedback.FeedbackBook`), the judge's turn (`JudgeTurn`) and its agreement (`AgreementBook`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine

    async def put(self, given: Feedback, most: int) -> None:
        row = {name: getattr(given, name) for name in _FIELDS}
        column = feedback.c
        counted = sa.select(sa.literal(1)).where(column.tenant == given.tenant).limit(most + 1).subquery()
        known = sa.select(sa.literal(1)).where(*(column[name] == row[name] for name in _KEY))
        async with _away(), self._engine.begin() as connection:
            there = await connection.scalar(sa.select(sa.func.count()).select_from(counted)) or 0
            if there >= most and await connection.scalar(known) is None:
                raise FeedbackFull
            written = insert_into(feedback, connection.dialect.name).values(row)
            changed = {name: written.excluded[name] for name in _FIELDS if name not in _KEY}
            await connection.execute(written.on_conflict_do_update(index_elements=_KEY, set_=changed))

    async def page(self, query: FeedbackQuery, before: tuple[float, str, str] | None, limit: int) -> Sequence[RatedRequest]:
        column, booked = feedback.c, usage_event.c
        same = (booked.request_id == column.request_id) & (booked.tenant == column.tenant)
        joined = [sa.func.coalesce(booked[name], "").label(f"request_{name}") for name in _JOINED]
        wanted = sa.select(feedback, *joined).select_from(feedback.outerjoin(usage_event, same))
        for name in ("tenant", "request_id", "rating", "source", "label"):
            if value := getattr(query, name):
                wanted = wanted.where(column[name] == value)
        if query.since_unix:
            wanted = wanted.where(column.at_unix >= query.since_unix)
        order = (column.at_unix, column.request_id, column.source)
        if before is not None:
            wanted = wanted.where(sa.tuple_(*order) < sa.tuple_(*map(sa.literal, before)))
        wanted = wanted.order_by(*(part.desc() for part in order)).limit(limit)
        async with _away(), self._engine.connect() as connection:
            return [_rated(row) for row in (await connection.execute(wanted)).mappings()]

    async def take(self, owner: str, now_unix: float, until_unix: float, day: int, tokens: int) -> int | None:
        column = judge_turn.c
        mine = (column.what == TURN) & ((column.owner == owner) | (column.until_unix <= now_unix))
        sum_of_day = sa.case((column.day == day, column.tokens), else_=0) + tokens
        kept = {"owner": owner, "until_unix": until_unix, "day": day, "tokens": sum_of_day}
        taken = sa.update(judge_turn).where(mine).values(kept).returning(column.tokens)
        async with _away(), self._engine.begin() as connection:
            used: int | None = await connection.scalar(taken)
            if used is None:
                first = {"what": TURN, "owner": "", "until_unix": 0.0, "day": day, "tokens": 0}
                adding = insert_into(judge_turn, connection.dialect.name).values(first).on_conflict_do_nothing()
                if (await connection.execute(adding)).rowcount > 0:
                    used = await connection.scalar(taken)
            return used

    async def agreement(self) -> MeasuredAgreement | None:
        async with _away(), self._engine.connect() as connection:
            document = await connection.scalar(sa.select(judge_agreement.c.document).where(judge_agreement.c.what == TURN))
        try:
            return None if document is None else msgspec.json.decode(document, type=MeasuredAgreement)
        except msgspec.DecodeError:
            return None  # another version's; the next measurement replaces it

    async def keep_agreement(self, measured: MeasuredAgreement) -> None:
        values = {"what": TURN, "at_unix": measured.at_unix, "document": msgspec.json.encode(measured).decode()}
        async with _away(), self._engine.begin() as connection:
            changed = {name: values[name] for name in ("at_unix", "document")}
            into = insert_into(judge_agreement, connection.dialect.name).values(values)
            await connection.execute(into.on_conflict_do_update(index_elements=["what"], set_=changed))


def _rated(row: Any) -> RatedRequest:
    return RatedRequest(Feedback(**{name: row[name] for name in _FIELDS}), *(row[f"request_{name}"] for name in _JOINED))


@contextlib.asynccontextmanager
async def _away() -> AsyncIterator[None]:
    """Raise FeedbackAway for whatever the database raises, and where it takes longer."""
    try:
        async with asyncio.timeout(WITHIN_S):
            yield
    except FeedbackFull:
        raise
    except Exception as error:  # drivers raise their own, unwrapped, while they connect
        raise FeedbackAway(f"{type(error).__name__}: {error}"[:200]) from error
