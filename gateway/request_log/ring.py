"""A worker's part of the request log: the last finished requests, until the admin process has fetched them.

A request costs its worker one append: the line is the one that the access log writes. The admin process asks once a second for what is new
(`gateway.request_log.collector`), so that it, and not a process that serves, decodes, keeps and shows requests. Whatever nobody fetches is
overwritten, and the one who asks next learns how many were lost.
"""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from gateway.process.worker_link import Answer
from gateway.record import Record
from policies.compile import PolicySet
from tenancy.request_log import SealedContent

MOST_LINES: Final = 4096
"""Lines that wait: what a busy worker finishes in two or three seconds; 4 MB, 16 MB where every line is as long as can be."""
MOST_CONTENTS: Final = 128
"""Texts that wait: 5 MB where each is as long as can be by default."""
REPLY_BYTES: Final = 2 * 1024 * 1024
"""Bytes of lines or texts in one answer, and one more of them; to copy them takes a worker a millisecond. The rest is asked for again."""

FETCH_LINE: Final = b"requests\n"
"""Begins the question for what is new; a `RequestsAsked` in MessagePack follows."""
LEFT_SUFFIX: Final = ".requests"
"""Ending of the file in the run directory in which a worker that ends leaves what nobody has fetched."""


log = structlog.get_logger("tidegate.requests")


class RequestsAsked(msgspec.Struct, frozen=True):
    """The question for new requests: for each worker, by its token, how many were fetched before."""

    lines: dict[str, int]
    contents: dict[str, int]


class RingLine(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One finished request."""

    line: bytes
    """The line of the access log, with its newline."""
    end_user: str = ""
    """A keyed digest of the end user's label; empty for none."""
    hours: float = 0.0
    """How long its tenant's policy keeps it; 0 for as long as the settings say."""


class RequestsFetched(msgspec.Struct, frozen=True):
    """What is new in one worker."""

    worker: str
    """The worker's token: another one after each start."""
    lines: tuple[RingLine, ...]
    lines_from: int
    """How many came before the first one; more than was asked for means that some were lost."""
    contents: tuple[SealedContent, ...]
    contents_from: int
    more: bool = False
    """Whether there is more to fetch at once."""
    lost_contents: int = 0
    """Texts that were not kept because too many waited to be redacted."""


T = TypeVar("T")


class _Numbered(Generic[T]):
    """The last items of a series, by number."""

    def __init__(self, most: int) -> None:
        self._items: deque[tuple[int, T]] = deque(maxlen=most)
        self.count = 0
        """How many there ever were."""

    def add(self, item: T, size: int) -> None:
        self._items.append((size, item))
        self.count += 1

    def since(self, number: int, most_bytes: float) -> tuple[int, list[T]]:
        """The items from a number on, up to so many bytes and one more; with the number of the first."""
        first = max(number, self.count - len(self._items))
        size, taken = 0, []
        for at in range(len(self._items) - (self.count - first), len(self._items)):
            if size >= most_bytes:
                break
            size += self._items[at][0]
            taken.append(self._items[at][1])
        return first, taken


class RequestRing:
    """The last finished requests of one worker. It belongs to the event loop's thread.

    Args:
        token: different for every worker process.
    """

    def __init__(self, token: str, most_lines: int = MOST_LINES, most_contents: int = MOST_CONTENTS) -> None:
        self._token = token
        self._lines: _Numbered[RingLine] = _Numbered(most_lines)
        self._contents: _Numbered[SealedContent] = _Numbered(most_contents)
        self._fetched = RequestsAsked({}, {})
        self.lost_contents = 0

    def note(self, line: bytes, end_user: str = "", hours: float = 0.0) -> None:
        """Take the line of a finished request."""
        self._lines.add(RingLine(line, end_user, hours), len(line))

    def note_content(self, content: SealedContent) -> None:
        """Take the sealed texts of a request."""
        self._contents.add(content, len(content.sealed))

    def answers(self) -> dict[bytes, Answer]:
        """The handlers of questions over the worker's link."""
        return {FETCH_LINE: self._answer}

    def observe(self, record: Record, line: bytes, digest_of_user: Callable[[str], str], policies: PolicySet) -> None:
        """Take a finished request with its line."""
        policy = policies.for_tenant(record.tenant)
        terms = policy.request_log if policy is not None else None
        self.note(line, digest_of_user(record.user) if record.user else "", terms.hours if terms is not None else 0.0)

    async def _answer(self, question: bytes) -> bytes:
        self._fetched = msgspec.msgpack.decode(question, type=RequestsAsked)
        return msgspec.msgpack.encode(self.fetch(self._fetched))

    def fetch(self, asked: RequestsAsked, most_bytes: float = REPLY_BYTES) -> RequestsFetched:
        """What is new since an answer."""
        lines_from, lines = self._lines.since(asked.lines.get(self._token, 0), most_bytes)
        contents_from, contents = self._contents.since(asked.contents.get(self._token, 0), most_bytes)
        more = lines_from + len(lines) < self._lines.count or contents_from + len(contents) < self._contents.count
        return RequestsFetched(self._token, tuple(lines), lines_from, tuple(contents), contents_from, more, self.lost_contents)

    def leave(self, run_dir: Path) -> None:
        """Leave to the admin process what it has not fetched; blocks. Called when the worker's link is closed."""
        left = self.fetch(self._fetched, float("inf"))
        if not left.lines and not left.contents:
            return
        partial = run_dir / f".{self._token}.left"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.msgpack.encode(left))
            partial.replace(run_dir / f"{self._token}{LEFT_SUFFIX}")
        except OSError as error:
            log.warning("the last finished requests are missing in the request log", reason=str(error))


def take_left(run_dir: Path) -> list[RequestsFetched]:
    """What workers that have ended left; the files are removed. Blocks."""
    taken = []
    for path in sorted(run_dir.glob(f"*{LEFT_SUFFIX}")):
        try:
            taken.append(msgspec.msgpack.decode(path.read_bytes(), type=RequestsFetched))
        except (OSError, msgspec.DecodeError):
            continue
        finally:
            path.unlink(missing_ok=True)
    return taken
