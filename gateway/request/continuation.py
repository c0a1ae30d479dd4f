"""Goes on with a stream that its engine cut: another engine is asked to continue the text that the caller has.

The rule is that nothing is retried once a byte of an answer is out (R11). This is its one exception (decision 0042), for pools that ask for
it (`continue_streams`) and for answers that are nothing but text: one choice, no tools, no structure, no log-probabilities. The caller gets
one stream and one usage, and pays once: the tokens of the text so far count as output, and not as a prompt.

`keeps` says at an attempt's beginning whether its answer may go on, `goes_on` after a failure whether it does, and `continued` makes the
attempt that goes on.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from backends.attempt import may_go_on
from backends.dialects.dialect import Dialect
from backends.ports import Call
from domain.ask import Ask
from domain.faults import Fault
from gateway.deps import Deps
from gateway.http.edge.answer_so_far import AnswerSoFar
from gateway.placement.place import Placement
from gateway.request.attempt import Attempt
from routing.fleet import Backend

CONTINUED: Final = b": continued by another engine\n\n"
"""Tells whoever reads the stream itself; clients pass comments over."""

_PLAIN_TEXT: Final = frozenset(
    {
        *("messages", "prompt", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "repetition_penalty"),
        *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
        *("chat_template_kwargs", "reasoning_effort", "parallel_tool_calls"),
    }
)
"""Fields that mean the same to an engine that goes on with an answer. Others count what was said (`frequency_penalty`, `min_tokens`), or
describe its form from its beginning on (`response_format`)."""

_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class SpokenTurn(msgspec.Struct, gc=False):
    """Who speaks in a message."""

    role: str = ""


_decode_turn: Final = msgspec.json.Decoder(SpokenTurn).decode


def keeps(ask: Ask, placement: Placement, deps: Deps) -> AnswerSoFar | None:
    """What keeps the answer's text while it passes; None where the answer would not go on anyhow."""
    name = placement.pool.name
    if (
        name not in deps.continuing
        or name in deps.hedges
        or name in deps.sharing
        or not ask.stream
        or ask.choices != 1
        or ask.sequences > 1
        or ask.logprobs
    ):
        return None
    return AnswerSoFar() if ask.endpoint.generates and ask.names <= _PLAIN_TEXT else None


def goes_on(attempt: Attempt, fault: Fault) -> bool:
    """Whether another engine is to go on with the answer of this failed attempt."""
    so_far, story = attempt.so_far, attempt.story
    if so_far is None or not story.attempt.begun or attempt.exchange.gone:
        return False
    return may_go_on(fault.kind, story.tried.continued) and so_far.plain and not so_far.finished and _call(attempt) is not None


def engines_left(attempt: Attempt, candidates: Sequence[Backend]) -> list[Backend]:
    """The engines that can go on with the answer: the candidates that are left, then any other of the pool that is up by now.

    They know the model by the names that the engine before knew it by, for its answer is named by them.
    """
    deps, tried, names = attempt.deps, attempt.story.tried, attempt.names()
    pool = deps.live.fleet.pools[attempt.placement.pool.name]
    failed = {attempt.backend.id, *tried.failed}
    others = [backend for backend in pool.up if backend.id not in {candidate.id for candidate in candidates}]
    left = [backend for backend in (*candidates, *others) if backend.id not in failed and backend.id in deps.upstreams]
    return [backend for backend in left if attempt.on(backend).names() == names]


def continued(cut: Attempt, backend: Backend) -> Attempt:
    """The attempt in which a backend goes on with the answer of one that was cut."""
    call, first = _call(cut), cut.first_call or cut.call
    assert call is not None  # `goes_on` has seen to it
    cut.story.tried.continued += 1
    attempt = msgspec.structs.replace(cut.on(backend), call=call, first_call=first, chain=cut.chain, so_far=cut.so_far)
    cut.exchange.comment(CONTINUED)
    return attempt


def _call(attempt: Attempt) -> Call | None:
    """The call that makes an engine go on with an answer; None where it cannot."""
    so_far = attempt.so_far
    assert so_far is not None
    dialect: Dialect = attempt.deps.dialects[attempt.placement.pool.name]
    first = attempt.first_call or attempt.call
    document: dict[str, Any] = dict(_decode(first.body))
    used = so_far.tokens
    for name in ("max_tokens", "max_completion_tokens"):
        if name in document and (cap := msgspec.json.decode(document[name])) is not None:
            if cap <= used:
                return None
            document[name] = cap - used
    if attempt.ask.endpoint.has_messages:
        messages = _decode_messages(document["messages"])
        if dialect.continues is None or _decode_turn(messages[-1]).role == "assistant":
            return None
        document["messages"] = [*messages, {"role": "assistant", "content": so_far.text}]
        document.update(dialect.continues)
    else:
        prompt = msgspec.json.decode(document["prompt"])
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if not isinstance(prompt, str):
            return None
        document["prompt"] = prompt + so_far.text
    return msgspec.structs.replace(first, body=msgspec.json.encode(document))
