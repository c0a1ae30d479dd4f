"""Questions about kept answers, from the admin process over the workers' sockets."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cache.answers import Answer
from cache.ports import Selection
from cache.semantic.control import Proof
from cache.stores.memory import MemoryAnswers
from domain.usage import Usage
from gateway.answers import inspection
from gateway.answers.cache import AnswerCache, AuditedHits
from gateway.answers.inspection import WorkersAnswers, answers
from gateway.process.worker_link import WorkerLink, worker_socket
from tests.timing import hang_s

ACME = Selection(owner="acme")


def answer(key: str, at: float) -> Answer:
    return Answer("acme", key.encode(), f'"{key}"'.encode(), Usage(3, 4), "m", at, at + 60)


@contextlib.asynccontextmanager
async def worker(folder: Path, index: int, *kept: Answer, ready: bool = True) -> AsyncIterator[None]:
    store = MemoryAnswers(10**6)
    await store.put(kept)
    deps: Any = SimpleNamespace(answers=AnswerCache(store, lambda: 10.0), wall=lambda: 10.0)
    handlers = answers(lambda: deps if ready else None)
    link = WorkerLink(worker_socket(folder, index, os.getpid()), lambda _: None, None, handlers)  # type: ignore[arg-type, return-value]
    await link.start()
    try:
        yield
    finally:
        await link.close()


@pytest.fixture
def asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkersAnswers:
    monkeypatch.setattr(inspection, "WITHIN_S", hang_s())
    return WorkersAnswers(tmp_path)


async def test_answers_of_all_workers_are_one_list(tmp_path: Path, asking: WorkersAnswers) -> None:
    async with worker(tmp_path, 0, answer("a", 1.0), answer("b", 2.0)), worker(tmp_path, 1, answer("b", 3.0), answer("c", 2.5)):
        found = await asking.entries(ACME, 10)
        assert found is not None
        assert [(bytes.fromhex(one.key), one.kept_at) for one in found] == [(b"b", 3.0), (b"c", 2.5), (b"a", 1.0)]
        assert len(await asking.entries(ACME, 1) or ()) == 1
        assert await asking.entries(Selection(owner="bolt"), 10) == []
        assert await asking.content("acme", b"b") == answer("b", 3.0)
        assert await asking.content("acme", b"x") is None
        assert await asking.content("bolt", b"b") is None


async def test_workers_that_cannot_answer_are_no_empty_list(tmp_path: Path, asking: WorkersAnswers) -> None:
    assert await asking.entries(ACME, 10) is None
    async with worker(tmp_path, 0, ready=False):
        assert await asking.entries(ACME, 10) is None


async def test_audits_of_all_workers_are_one_estimate_of_each_owner(tmp_path: Path, asking: WorkersAnswers) -> None:
    assert await asking.audited() == []

    def handlers(*found: AuditedHits) -> dict[bytes, Any]:
        deps: Any = SimpleNamespace(answers=SimpleNamespace(semantic=SimpleNamespace(audited=lambda: list(found))))
        return answers(lambda: deps)

    def proof(audits: float, wrong: float) -> Proof:
        return Proof(audits=audits, wrong=wrong, lower=0.0, upper=1.0, stopped=False)

    async with contextlib.AsyncExitStack() as stack:
        first = handlers(AuditedHits("acme", 0.01, proof(100.0, 1.0)), AuditedHits("bolt", 0.01, proof(10.0, 0.0)))
        for index, told in enumerate((first, handlers(AuditedHits("acme", 0.01, proof(300.0, 1.0))))):
            path = worker_socket(tmp_path, index, os.getpid())
            link = WorkerLink(path, lambda _: None, None, told)  # type: ignore[arg-type, return-value]
            await link.start()
            stack.push_async_callback(link.close)
        acme, bolt = await asking.audited()
    assert (acme.owner, acme.proof.audits, acme.proof.wrong) == ("acme", 400.0, 2.0)
    assert acme.proof.lower < 2 / 400 < acme.proof.upper
    assert (bolt.owner, bolt.proof.audits) == ("bolt", 10.0)
