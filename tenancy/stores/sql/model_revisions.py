"""The registry of models in SQL."""

from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from domain.model_revisions import MAX_MODEL_REVISIONS, ModelRevision, ParallelLayout, RevisionMissing, RevisionsFull, RevisionTaken
from tenancy.stores.sql.schema import model_revision
from tenancy.stores.sql.transaction import SqlConnections

LAYOUT = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel", "data": "data_parallel", "expert": "expert_parallel"}
"""The columns of a parallel layout, by field."""


class SqlModelRevisions:
    """The registry of models in SQL (`domain.model_revisions.ModelRevisionStore`)."""

    def __init__(self, engine: SqlConnections) -> None:
        self._engine = engine

    async def page(self, model: str, after: tuple[str, str] | None, most: int) -> list[ModelRevision]:
        column = model_revision.c
        wanted = sa.select(model_revision).order_by(column.model, column.revision).limit(most)
        if model:
            wanted = wanted.where(column.model == model)
        if after is not None:
            wanted = wanted.where(sa.tuple_(column.model, column.revision) > sa.tuple_(*map(sa.literal, after)))
        async with self._engine.connect() as connection:
            return [_revision_of(row._mapping) for row in await connection.execute(wanted)]

    async def get(self, model: str, revision: str) -> ModelRevision:
        async with self._engine.connect() as connection:
            row = (await connection.execute(sa.select(model_revision).where(_is(model, revision)))).one_or_none()
        if row is None:
            raise RevisionMissing(f"{model}@{revision}")
        return _revision_of(row._mapping)

    async def add(self, revision: ModelRevision) -> None:
        row = msgspec.structs.asdict(revision)
        layout = row.pop("layout")
        row |= {column: getattr(layout, field) for field, column in LAYOUT.items()}
        row["adapters"] = msgspec.json.encode(revision.adapters).decode()
        try:
            async with self._engine.begin() as connection:
                await connection.execute(sa.insert(model_revision).values(**row))
                registered = await connection.scalar(sa.select(sa.func.count()).select_from(model_revision)) or 0
                if registered > MAX_MODEL_REVISIONS:
                    raise RevisionsFull(f"{MAX_MODEL_REVISIONS} revisions are registered already")
        except IntegrityError:
            taken = f"model {revision.model!r} has a revision {revision.revision!r} already; a revision is never replaced"
            raise RevisionTaken(taken) from None

    async def retire(self, model: str, revision: str, now_unix: float) -> ModelRevision:
        first = sa.func.coalesce(model_revision.c.retired_unix, now_unix)
        return await self._changed(model, revision, retired_unix=first)

    async def keep_profile(self, model: str, revision: str, profile: str) -> ModelRevision:
        return await self._changed(model, revision, profile=profile)

    async def _changed(self, model: str, revision: str, **values: Any) -> ModelRevision:
        async with self._engine.begin() as connection:
            await connection.execute(sa.update(model_revision).where(_is(model, revision)).values(**values))
        return await self.get(model, revision)


def _is(model: str, revision: str) -> sa.ColumnElement[bool]:
    return (model_revision.c.model == model) & (model_revision.c.revision == revision)


def _revision_of(row: Any) -> ModelRevision:
    values = dict(row)
    layout = ParallelLayout(**{field: values.pop(column) for field, column in LAYOUT.items()})
    adapters = tuple(msgspec.json.decode(values.pop("adapters"), type=list[str]))
    return ModelRevision(**values, layout=layout, adapters=adapters)
