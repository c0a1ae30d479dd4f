"""Asks an engine for one token: the one question that a hanging engine cannot answer."""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from backends.dialects import Dialect, body_for
from backends.dialects.errors import BUSY_STATUSES, GENERATION_FAILED
from backends.fetch import FetchError, fetch
from backends.health import Outcome, Probed
from backends.ports import Upstream

MAX_REPLY_BYTES: Final = 1024 * 1024
"""A token with its frame has 500 bytes; an embedding of 4,096 numbers 80 KB."""

_CALLS: Final = {
    "/v1/chat/completions": b'{"messages":[{"role":"user","content":"1"}],"max_tokens":1}',
    "/v1/completions": b'{"prompt":"1","max_tokens":1}',
    "/v1/embeddings": b'{"input":"1"}',
}
"""The smallest thing that makes the engine compute, by path; which of them an engine has depends on its model."""


class _Reply(msgspec.Struct):
    model: str | None = None
    choices: list[Any] | None = None
    data: list[Any] | None = None


_decode = msgspec.json.Decoder(_Reply).decode


class Prober:
    """Probes one backend, and remembers which of the calls its engine takes.

    Args:
        within_s: longest wait for the token.
        names: the models the engine listed last; one with several names answers in its first.
        half: whether it serves one half of requests only, and has to be told to answer by itself.
    """

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        model: str,
        within_s: float,
        names: Callable[[], Collection[str]] = tuple,
        *,
        half: bool = False,
    ) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._model = model
        self._within_s = within_s
        self._names = names
        way = dialect.disaggregation
        self._alone = msgspec.json.encode(way.alone)[:-1] + b"," if half and way is not None and way.alone else b"{"
        self._paths = list(_CALLS)

    async def __call__(self) -> Probed:
        """One probe: at most one call for each kind of request until one is taken."""
        refused = ""
        for path in list(self._paths):
            found = await self._ask(path)
            if found.outcome is not Outcome.NO_WAY:
                self._paths.remove(path)
                self._paths.insert(0, path)
                return found
            refused = found.reason
        return Probed(Outcome.NO_WAY, refused)

    async def _ask(self, path: str) -> Probed:
        body = body_for(self._dialect, self._alone + _CALLS[path][1:], self._model, cache_salt=None)
        try:
            reply = await fetch(self._upstream, path, timeout_s=self._within_s, max_bytes=MAX_REPLY_BYTES, body=body)
        except FetchError as error:
            return Probed(Outcome.FAILED, f"{path}: {error}")
        if reply.status in BUSY_STATUSES:
            return Probed(Outcome.BUSY, f"{path} answers {reply.status}")
        if 400 <= reply.status < 500 and reply.status != GENERATION_FAILED:
            return Probed(Outcome.NO_WAY, f"{path} answers {reply.status}")
        if reply.status != 200:
            return Probed(Outcome.FAILED, f"{path} answers {reply.status}")
        try:
            answer = _decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return Probed(Outcome.FAILED, f"{path} does not answer with an answer")
        if not answer.choices and not answer.data:
            return Probed(Outcome.FAILED, f"{path} answers with nothing in it")
        if self._dialect.answers_as_listed and answer.model not in (None, self._model, *self._names()):
            return Probed(Outcome.FAILED, f"{path} answers as {str(answer.model)[:64]!r}, not {self._model}")
        return Probed(Outcome.TOKEN)
