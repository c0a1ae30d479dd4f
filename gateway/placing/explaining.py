"""The admin process's questions about routing decisions, and the client that asks the workers."""

from pathlib import Path
from typing import Final, Protocol

import msgspec

from gateway.placing.explained import Explained
from gateway.worker_link import ask_every, ask_newest

EXPLAIN_LINE: Final = b"explain\n"
"""Begins a question about a past request; the request's id follows."""
WOULD_LINE: Final = b"would\n"
"""Begins a question about a supposed request; a `Would` in MessagePack follows."""
WITHIN_S: Final = 1.0
"""Time limit for an answer about a supposed request: a long prompt takes a while to be tokenized."""


class Would(msgspec.Struct, frozen=True):
    """The question where a request would go now."""

    tenant: str
    endpoint: str
    body: bytes
    """The request body as a caller would send it."""
    project: str = ""
    """A project of the tenant; empty for a project that its policy does not name."""


class Refusal(msgspec.Struct, frozen=True):
    """Why the supposed request would be refused."""

    message: str
    param: str = ""


class WouldAnswer(msgspec.Struct, frozen=True):
    """The decision, or the refusal; exactly one of them is set."""

    explained: Explained | None = None
    refusal: Refusal | None = None


class Explaining(Protocol):
    """Answers questions about routing decisions."""

    async def of(self, request_id: str) -> Explained | None:
        """The decision about a recent request; None when no worker knows it. Of several requests with one id, the last one."""
        ...

    async def would(self, asked: Would) -> WouldAnswer | None:
        """Where the request would go now; None when no worker answers."""
        ...


class WorkersExplain:
    """Asks the workers of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def of(self, request_id: str) -> Explained | None:
        answers = await ask_every(self._run_dir, EXPLAIN_LINE + request_id.encode("ascii", "replace"))
        decisions = [msgspec.msgpack.decode(answer, type=Explained) for answer in answers]
        return max(decisions, key=lambda decision: decision.at_unix, default=None)

    async def would(self, asked: Would) -> WouldAnswer | None:
        answer = await ask_newest(self._run_dir, WOULD_LINE + msgspec.msgpack.encode(asked), WITHIN_S)
        return msgspec.msgpack.decode(answer, type=WouldAnswer) if answer else None
