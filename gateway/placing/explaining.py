"""Questions of the admin process about decisions, and how workers are asked them."""

from pathlib import Path
from typing import Final, Protocol

import msgspec

from gateway.placing.explained import Explained
from gateway.worker_link import ask_every, ask_newest

EXPLAIN_LINE: Final = b"explain\n"
"""Followed by a request's id."""
WOULD_LINE: Final = b"would\n"
"""Followed by a `Would`."""
WITHIN_S: Final = 1.0
"""A long prompt takes a while to be cut into tokens."""


class Would(msgspec.Struct, frozen=True):
    """What would be chosen now for a request."""

    tenant: str
    endpoint: str
    body: bytes
    """As a caller would send it."""
    project: str = ""
    """Of the tenant; empty for none of those that its policy names."""


class Refusal(msgspec.Struct, frozen=True):
    """Why it would be sent nowhere."""

    message: str
    param: str = ""


class WouldAnswer(msgspec.Struct, frozen=True):
    """One of the two."""

    explained: Explained | None = None
    refusal: Refusal | None = None


class Explaining(Protocol):
    """What is known of decisions."""

    async def of(self, request_id: str) -> Explained | None:
        """The decision about a request of a short while ago; None when no worker knows it."""
        ...

    async def would(self, asked: Would) -> WouldAnswer | None:
        """What would be chosen now; None when no worker answers."""
        ...


class WorkersExplain:
    """Asks the workers of this gateway."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    async def of(self, request_id: str) -> Explained | None:
        """See `Explaining`. Of several requests with one id the last one."""
        answers = await ask_every(self._run_dir, EXPLAIN_LINE + request_id.encode("ascii", "replace"))
        found = [msgspec.msgpack.decode(answer, type=Explained) for answer in answers]
        return max(found, key=lambda one: one.at_unix, default=None)

    async def would(self, asked: Would) -> WouldAnswer | None:
        """See `Explaining`."""
        answer = await ask_newest(self._run_dir, WOULD_LINE + msgspec.msgpack.encode(asked), WITHIN_S)
        return msgspec.msgpack.decode(answer, type=WouldAnswer) if answer else None
