"""Polls and probes of engines: whether an engine answers and serves the pool's model, and whether it still generates.

`poll` asks for health and the list of models. `Prober` asks for one token: the only request that a hanging engine cannot answer.
`backends.health` decides what a result means.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from backends.dialects import Dialect, body_for
from backends.dialects.errors import BUSY_STATUSES, GENERATION_FAILED
from backends.discovery.diagnose import of_failure, of_list, of_status
from backends.fetch import FetchError, FetchTimeout, fetch
from backends.health import ProbeOutcome, ProbeResult
from backends.model_list import read_model_list
from backends.ports import PollResult, Upstream
from domain.ask import Endpoint
from domain.model_revisions import Pinned

POLL_TIMEOUT_S: Final = 2.0
"""A healthy engine answers its model list within milliseconds; a busy one may take a second while it prefills."""

MAX_LIST_BYTES: Final = 1024 * 1024


async def poll(upstream: Upstream, dialect: Dialect, model: str, pinned: Pinned | None = None) -> PollResult:
    """Poll one backend: its health, and whether it lists `model`, and a name that proves the revision that its pool is pinned to."""
    for path in (dialect.health_path, dialect.models_path):
        try:
            reply = await fetch(upstream, path, timeout_s=POLL_TIMEOUT_S, max_bytes=MAX_LIST_BYTES)
        except FetchError as error:
            return PollResult(of_failure(path, error), silent=isinstance(error, FetchTimeout))
        if reply.status != 200:
            return PollResult(of_status(path, reply.status, reply.headers, reply.body))
    try:
        listed = read_model_list(reply.body)
    except ValueError:
        return PollResult(of_list(dialect.models_path, reply.headers, reply.body))
    known = (*listed.models, *listed.loras)
    shown = ", ".join(ascii(name)[1:-1][:80] for name in known[:5]) or "no model"
    hint = "look whether the URL is this pool's engine, or at its served model name"
    reason = "" if model in known else f"serves {shown}, not {model}; {hint}"
    doubt = pinned.unproven(listed.models) if pinned is not None and not reason else ""
    if pinned is not None and doubt and not pinned.admit:
        reason, doubt = f"{doubt}; start it as `tidegate engine render --revision` says, or write pinned: {{unproven: admit}}", ""
    # a pool's model may be an adapter that its engines were started with; other adapters answer only requests that name them
    names = frozenset(listed.models) | ({model} & set(known))
    loras, wrong = frozenset(listed.loras), bool(reason and known)
    return PollResult(reason, names, wrong=wrong, loras=loras, context_tokens=listed.context_tokens, unproven=doubt)


MAX_PROBE_REPLY_BYTES: Final = 1024 * 1024
"""Largest reply: a token with its frame has 500 bytes, an embedding of 4,096 numbers 80 KB."""

_COMPUTING: Final = tuple(endpoint for endpoint in Endpoint if endpoint.computes and not (endpoint.sound or endpoint.duplex))
"""The endpoints whose answers say that an engine computes, but for recordings, which a probe has none of."""
_REPLY_FIELDS: Final = sorted({endpoint.reply_field for endpoint in _COMPUTING})
_ProbeReply: Final[Any] = msgspec.defstruct(
    "_Reply", [("model", str | None, None), *((field, list[Any] | None, None) for field in _REPLY_FIELDS)]
)
_decode = msgspec.json.Decoder(_ProbeReply | list[Any]).decode


class Prober:
    """Probes one backend, and remembers which of the calls its engine takes.

    Args:
        within_s: longest wait for the token.
        names: returns the models that the engine listed last; an engine with several names answers with its first one.
        single_role: whether the engine does prefill or decode only, and must be told to serve the probe alone.
    """

    def __init__(
        self,
        upstream: Upstream,
        dialect: Dialect,
        model: str,
        within_s: float,
        names: Callable[[], Collection[str]] = tuple,
        *,
        single_role: bool = False,
    ) -> None:
        self._upstream = upstream
        self._dialect = dialect
        self._model = model
        self._within_s = within_s
        self._names = names
        handover = dialect.disaggregation
        self._alone = msgspec.json.encode(handover.alone)[:-1] + b"," if single_role and handover is not None and handover.alone else b"{"
        self._endpoints = [endpoint for endpoint in _COMPUTING if dialect.routes.get(endpoint, endpoint.path) is not None]
        """Every endpoint of such engines; which of them an engine has depends on its model."""

    async def __call__(self) -> ProbeResult:
        """Run one probe: at most one call for each kind of request, until the engine accepts one."""
        refused = ""
        for endpoint in list(self._endpoints):
            probe = await self._ask(endpoint)
            if probe.outcome is not ProbeOutcome.NO_WAY:
                self._endpoints.remove(endpoint)
                self._endpoints.insert(0, endpoint)
                return probe
            refused = probe.reason
        return ProbeResult(ProbeOutcome.NO_WAY, refused)

    async def _ask(self, endpoint: Endpoint) -> ProbeResult:
        path = self._dialect.routes.get(endpoint) or endpoint.path
        body = body_for(self._dialect, self._alone + endpoint.probe[1:], self._model, cache_salt=None)
        try:
            reply = await fetch(self._upstream, path, timeout_s=self._within_s, max_bytes=MAX_PROBE_REPLY_BYTES, body=body)
        except FetchError as error:
            return ProbeResult(ProbeOutcome.FAILED, f"{path}: {error}")
        if reply.status in BUSY_STATUSES:
            return ProbeResult(ProbeOutcome.BUSY, f"{path} answers {reply.status}")
        if 400 <= reply.status < 500 and reply.status != GENERATION_FAILED:
            return ProbeResult(ProbeOutcome.NO_WAY, f"{path} answers {reply.status}")
        if reply.status != 200:
            return ProbeResult(ProbeOutcome.FAILED, f"{path} answers {reply.status}")
        try:
            answer = _decode(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ProbeResult(ProbeOutcome.FAILED, f"{path} does not answer with an answer")
        if isinstance(answer, list):
            answer = _ProbeReply(results=answer if endpoint.rewritten else None)
        if not any(getattr(answer, field) for field in _REPLY_FIELDS):
            return ProbeResult(ProbeOutcome.FAILED, f"{path} answers with nothing in it")
        if self._dialect.answers_as_listed and answer.model not in (None, self._model, *self._names()):
            return ProbeResult(ProbeOutcome.FAILED, f"{path} answers as {str(answer.model)[:64]!r}, not {self._model}")
        return ProbeResult(ProbeOutcome.TOKEN)
