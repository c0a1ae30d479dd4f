"""Probes: a request to an engine for one token, the only request that a hanging engine cannot answer."""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from backends.dialects import Dialect, body_for
from backends.dialects.errors import BUSY_STATUSES, GENERATION_FAILED
from backends.fetch import FetchError, fetch
from backends.health import Outcome, Probed
from backends.ports import Upstream
from domain.ask import Endpoint

MAX_REPLY_BYTES: Final = 1024 * 1024
"""Largest reply: a token with its frame has 500 bytes, an embedding of 4,096 numbers 80 KB."""

_REPLY_FIELDS: Final = sorted({endpoint.reply_field for endpoint in Endpoint})
_Reply: Final[Any] = msgspec.defstruct(
    "_Reply", [("model", str | None, None), *((field, list[Any] | None, None) for field in _REPLY_FIELDS)]
)
_decode = msgspec.json.Decoder(_Reply).decode


class Prober:
    """Probes one backend, and remembers which of the calls its engine takes.

    Args:
        within_s: longest wait for the token.
        names: returns the models that the engine listed last; an engine with several names answers with its first one.
        half: whether the engine does prefill or decode only, and must be told to serve the probe alone.
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
        handover = dialect.disaggregation
        self._alone = msgspec.json.encode(handover.alone)[:-1] + b"," if half and handover is not None and handover.alone else b"{"
        self._endpoints = list(Endpoint)
        """Every endpoint; which of them an engine has depends on its model."""

    async def __call__(self) -> Probed:
        """Run one probe: at most one call for each kind of request, until the engine accepts one."""
        refused = ""
        for endpoint in list(self._endpoints):
            probe = await self._ask(endpoint)
            if probe.outcome is not Outcome.NO_WAY:
                self._endpoints.remove(endpoint)
                self._endpoints.insert(0, endpoint)
                return probe
            refused = probe.reason
        return Probed(Outcome.NO_WAY, refused)

    async def _ask(self, endpoint: Endpoint) -> Probed:
        path = endpoint.path
        body = body_for(self._dialect, self._alone + endpoint.probe[1:], self._model, cache_salt=None)
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
        if not any(getattr(answer, field) for field in _REPLY_FIELDS):
            return Probed(Outcome.FAILED, f"{path} answers with nothing in it")
        if self._dialect.answers_as_listed and answer.model not in (None, self._model, *self._names()):
            return Probed(Outcome.FAILED, f"{path} answers as {str(answer.model)[:64]!r}, not {self._model}")
        return Probed(Outcome.TOKEN)
