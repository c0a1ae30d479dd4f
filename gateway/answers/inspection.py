"""Questions about kept answers: the admin process asks, and the workers answer.

`WorkersAnswers` is the client in the admin process; `answers` are a worker's handlers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from cache.answers import Answer as KeptAnswer
from cache.ports import KeptEntry, Selection
from cache.semantic.control import Proof
from gateway.answers.cache import AuditedHits
from gateway.deps import Deps
from gateway.process.worker_link import Answer, ask_every

LIST_LINE: Final = b"kept\n"
"""Begins a question for entries; an `ListAsked` in MessagePack follows."""
SHOW_LINE: Final = b"kept answer\n"
"""Begins a question for one answer with its content; a `ContentAsked` in MessagePack follows."""
AUDITS_LINE: Final = b"audited hits\n"
"""The question what audits say of hits on similar questions."""
WITHIN_S: Final = 2.0
"""Time limit for an answer: a shared store is asked page by page."""


class ListAsked(msgspec.Struct, frozen=True):
    """The question for entries."""

    selection: Selection
    most: int


class ContentAsked(msgspec.Struct, frozen=True):
    """The question for one answer."""

    owner: str
    key: bytes


class InspectsAnswers(Protocol):
    """Answers questions about kept answers."""

    async def entries(self, selection: Selection, most: int) -> list[KeptEntry] | None:
        """Entries without content, those kept last first; None when no worker answers."""
        ...

    async def content(self, owner: str, key: bytes) -> KeptAnswer | None:
        """An answer with its content; None where no worker finds it."""
        ...

    async def audited(self) -> list[AuditedHits]:
        """What audits of all workers say of hits on similar questions, by owner and by what its policy allows."""
        ...


class WorkersAnswers:
    """Asks the workers of this gateway, each of which has answers of its own or the shared store."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def entries(self, selection: Selection, most: int) -> list[KeptEntry] | None:
        replies = await ask_every(self._run_dir, LIST_LINE + msgspec.msgpack.encode(ListAsked(selection, most)), WITHIN_S)
        if not replies:
            return None
        found = [entry for reply in replies for entry in msgspec.msgpack.decode(reply, type=list[KeptEntry])]
        found.sort(key=lambda entry: entry.kept_at, reverse=True)
        newest_of: dict[str, KeptEntry] = {}
        for entry in found:  # workers that have the same answer count as one entry
            newest_of.setdefault(entry.key, entry)
        return list(newest_of.values())[:most]

    async def content(self, owner: str, key: bytes) -> KeptAnswer | None:
        replies = await ask_every(self._run_dir, SHOW_LINE + msgspec.msgpack.encode(ContentAsked(owner, key)), WITHIN_S)
        found = [msgspec.msgpack.decode(reply, type=KeptAnswer) for reply in replies]
        return max(found, key=lambda answer: answer.kept_at, default=None)

    async def audited(self) -> list[AuditedHits]:
        replies = await ask_every(self._run_dir, AUDITS_LINE)
        joined: dict[tuple[str, float], Proof] = {}
        for one in (one for reply in replies for one in msgspec.msgpack.decode(reply, type=list[AuditedHits])):
            earlier = joined.get((one.owner, one.allowed))
            joined[one.owner, one.allowed] = one.proof if earlier is None else earlier.joined(one.proof)
        return [AuditedHits(owner, allowed, proof) for (owner, allowed), proof in sorted(joined.items())]


def answers(deps_of: Callable[[], Deps | None]) -> dict[bytes, Answer]:
    """The handlers of questions, by the line that begins a question. They answer nothing while the worker has no cache yet (`deps_of`
    gives None)."""

    async def entries(question: bytes) -> bytes:
        deps = deps_of()
        asked = msgspec.msgpack.decode(question, type=ListAsked)
        if deps is None:
            return b""
        return msgspec.msgpack.encode(await deps.answers.store.entries(asked.selection, asked.most, deps.wall()))

    async def content(question: bytes) -> bytes:
        deps = deps_of()
        wanted = msgspec.msgpack.decode(question, type=ContentAsked)
        if deps is None:
            return b""
        (found,) = await deps.answers.find([wanted.key], wanted.owner, None)
        return b"" if found is None else msgspec.msgpack.encode(found)

    async def audited(_question: bytes) -> bytes:
        deps = deps_of()
        semantic = deps.answers.semantic if deps is not None else None
        return b"" if semantic is None else msgspec.msgpack.encode(semantic.audited())

    return {LIST_LINE: entries, SHOW_LINE: content, AUDITS_LINE: audited}
