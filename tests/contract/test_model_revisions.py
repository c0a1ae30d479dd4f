"""The registry of models: one suite over memory, SQLite and real Postgres."""

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from domain import model_revisions
from domain.model_revisions import ModelRevision, ParallelLayout, RevisionMissing, RevisionsFull, RevisionTaken
from tenancy.stores.memory import MemoryModelRevisions
from tenancy.stores.sql import SqlModelRevisions


def revision(name: str = "v1", model: str = "tide-8b", **fields: Any) -> ModelRevision:
    return ModelRevision(model=model, revision=name, **{"weights": "/models/tide", "digest": "sha256:" + "ab" * 32, **fields})


@pytest.fixture
def store(kept_in: AsyncEngine | None) -> Any:
    return MemoryModelRevisions() if kept_in is None else SqlModelRevisions(kept_in)


async def test_what_is_registered_is_read_back_in_order_and_page_by_page(store: Any) -> None:
    whole = revision(
        "v2",
        weights="s3://b/x'; DROP TABLE model_revision; --/%s",
        layout=ParallelLayout(8, 2, 3, 4),
        adapters=("a", "b"),
        tokenizer="/t",
        context_tokens=32768,
        precision="fp8",
        architecture="LlamaForCausalLM",
        launch="vllm-8b",
        registered_by="key abc",
        registered_unix=5.5,
    )
    first, other = revision("v1"), revision("v1", model="zeta/7b")
    for one in (other, whole, first):
        await store.add(one)
    assert await store.page("", None, 10) == [first, whole, other]
    assert await store.page("", None, 2) == [first, whole]
    assert await store.page("", ("tide-8b", "v2"), 2) == [other]
    assert await store.page("tide-8b", ("tide-8b", "v1"), 10) == [whole]
    assert await store.page("nothing", None, 10) == []
    assert await store.get("tide-8b", "v2") == whole


async def test_a_revision_is_registered_once_even_by_two_writers(store: Any) -> None:
    done = await asyncio.gather(*(store.add(revision(weights=f"/{name}")) for name in "abc"), return_exceptions=True)
    assert [type(one) for one in done].count(RevisionTaken) == 2
    assert len(await store.page("", None, 10)) == 1
    with pytest.raises(RevisionTaken, match="'tide-8b' has a revision 'v1' already"):
        await store.add(revision())


async def test_a_revision_retires_once_and_keeps_its_newest_profile(store: Any) -> None:
    await store.add(revision())
    assert (await store.retire("tide-8b", "v1", 7.0)).retired_unix == 7.0
    assert (await store.retire("tide-8b", "v1", 9.0)).retired_unix == 7.0
    await store.keep_profile("tide-8b", "v1", "{}")
    assert await store.keep_profile("tide-8b", "v1", '{"a":1}') == revision(retired_unix=7.0, profile='{"a":1}')
    assert await store.get("tide-8b", "v1") == revision(retired_unix=7.0, profile='{"a":1}')


async def test_an_unknown_revision_is_missing(store: Any) -> None:
    await store.add(revision())
    for work in (store.get("tide-8b", "v9"), store.retire("tide", "v1", 1.0), store.keep_profile("", "v1", "{}")):
        with pytest.raises(RevisionMissing):
            await work


async def test_there_is_an_end(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    where = "tenancy.stores.memory" if isinstance(store, MemoryModelRevisions) else "tenancy.stores.sql"
    monkeypatch.setattr(f"{where}.model_revisions.MAX_MODEL_REVISIONS", 2)
    for name in ("v1", "v2"):
        await store.add(revision(name))
    with pytest.raises(RevisionsFull):
        await store.add(revision("v3"))
    assert len(await store.page("", None, 10)) == 2
    assert model_revisions.MAX_MODEL_REVISIONS == 10_000
