"""One inference request of the simulated engine: it is checked, scheduled on the batcher, and answered as its tokens come.

`Answer` is the request in the engine and its reply, `StreamOut` the output of a streamed answer with the effects of its fault.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from backends.simengine import shapes
from backends.simengine.batching import Batcher, SimSequence
from backends.simengine.connection import SimConnection
from backends.simengine.outputs import ChoiceOutput, Token, output_request, planned
from backends.simengine.reading import ErrorAnswer, prompts_of, too_long
from backends.simengine.settings import SimSettings
from backends.simengine.shapes import encode, random_seed

STREAM_DONE: Final = b"data: [DONE]\n\n"

Later = Callable[[float, Callable[[], None]], object]

_AT_EVENT: Final = frozenset(
    {
        "exit_process",
        "crash_mid_stream",
        "reset_mid_stream",
        "frozen_mid_stream",
        "eof_without_done",
        "done_after_error",
        "error_event",
        "malformed_sse",
        "truncated_json_event",
        "broken_utf8",
        "oversize_event",
        "garbage_chunk",
    }
)
"""Faults that happen after `after` events."""

_ERROR: Final = encode(
    {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": None, "code": 500}}
)


class StreamOut:
    """Writes the events of a stream; once a fault has ended or silenced it, further events are dropped."""

    def __init__(self, connection: SimConnection, later: Later) -> None:
        self._connection = connection
        self._later = later
        self._fault = connection.fault
        self._name = connection.fault.name if connection.fault else ""
        self._events = 0
        self.over = False

    def event(self, chunk: dict[str, Any]) -> None:
        """Send one event."""
        if self.over:
            return
        if self._name == "comments_only":
            self._write(b": still here\n\n")
            return
        if self._name in _AT_EVENT and self._fault is not None and self._events == self._fault.after:
            self._strike()
            if self.over:
                return
        self._events += 1
        self._write(b"data: %b\n\n" % encode(chunk))

    def finish(self, reason: str) -> str | None:
        """The finish reason to send instead of `reason`; None to send none."""
        if self._name == "missing_finish":
            return None
        return {"abort_finish": "abort", "unknown_finish": "melted"}.get(self._name, reason)

    def end(self) -> None:
        """Send the end of the stream, after the last event."""
        if self.over or self._name == "comments_only":
            return
        if self._name != "no_done":
            self._write(STREAM_DONE)
        if self._name == "extra_bytes_after_done":
            self._write(b'data: {"late":true}\n\n')
        self.over = True
        if self._name == "hang_after_done":
            return
        self._after_pending(self._connection.end_stream)

    def _strike(self) -> None:
        connection = self._connection
        name = self._name
        if name == "exit_process":
            os._exit(1)
        if name in ("malformed_sse", "truncated_json_event", "broken_utf8", "oversize_event"):
            payload = {
                "malformed_sse": b"this is no JSON",
                "truncated_json_event": b'{"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"ha',
                "broken_utf8": b'{"id":"x","choices":[{"index":0,"delta":{"content":"\xff\xfe"},"finish_reason":null}]}',
                "oversize_event": b'{"id":"' + b"x" * (1024 * 1024 + 1) + b'"}',
            }[name]
            self._write(b"data: %b\n\n" % payload)
            self._events += 1
            return
        self.over = True
        if name == "crash_mid_stream":
            connection.close()
        elif name == "reset_mid_stream":
            connection.reset()
        elif name == "eof_without_done":
            connection.end_stream()
        elif name == "garbage_chunk":
            connection.transport.write(b"zz\r\nnot a chunk\r\n")
        elif name in ("error_event", "done_after_error"):
            self._write(b"data: %b\n\n" % _ERROR)
            if name == "done_after_error":
                self._write(STREAM_DONE)
            connection.end_stream()

    def _write(self, data: bytes) -> None:
        connection = self._connection
        name = self._name
        if name == "mixed_newlines":
            data = data.replace(b"\n\n", (b"\r\n\r\n", b"\r\r", b"\n\n")[self._events % 3])
        if name in ("one_byte_writes", "split_utf8"):
            step = 1 if name == "one_byte_writes" else 7
            for i in range(0, len(data), step):
                connection.chunk(data[i : i + step])
        elif name == "slow_drip" and self._fault is not None:
            self._drip(data, 1.0 / self._fault.bytes_per_s)
        else:
            connection.chunk(data)

    def _drip(self, data: bytes, gap_s: float) -> None:
        self.over = True  # later events would overtake the bytes that drip

        def send_byte(at: int) -> None:
            if at < len(data) and not self._connection.transport.is_closing():
                self._connection.chunk(data[at : at + 1])
                self._later(gap_s, lambda: send_byte(at + 1))

        send_byte(0)

    def _after_pending(self, then: Callable[[], None]) -> None:
        if not self._connection.transport.is_closing():
            then()


class Answer:
    """One request in the engine and its reply; `token` is called for each token of each of its choices."""

    def __init__(
        self,
        settings: SimSettings,
        kind: str,
        request: dict[str, Any],
        connection: SimConnection,
        head: shapes.Ids,
        later: Later,
        done: Callable[["Answer"], None],
    ) -> None:
        self._settings = settings
        self._kind = kind
        self._connection = connection
        self._done = done
        fault = connection.fault.name if connection.fault else ""
        self._fault = fault
        self._head = msgspec.structs.replace(head, model="another-model") if fault == "wrong_model" else head
        self.model = head.model
        """The model that the request names."""
        self._stream = bool(request.get("stream"))
        self._wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._out = StreamOut(connection, later)
        self._outputs: list[ChoiceOutput] = []
        self._reasons: list[str] = []
        self._left = 0
        self._begun = False
        self.sequences: list[SimSequence] = []
        self.params: dict[str, Any] | None = None
        """The description of its KV, for another engine."""
        self.gone = False
        """Whether its caller left, or it failed."""
        self._on_kept: Callable[[Answer], None] | None = None
        self._batcher: Batcher

    def prepare(self, batcher: Batcher, request: dict[str, Any]) -> None:
        """Make the sequences. Raises ErrorAnswer when the prompt is too long or the output cannot be as asked."""
        self._batcher = batcher
        model = self._head.model
        settings = self._settings
        longest = settings.max_model_len
        asked = request.get("max_completion_tokens") or request.get("max_tokens")
        if asked is not None and asked > longest:
            raise ErrorAnswer(
                400, f"max_tokens={asked} cannot be greater than max_model_len={longest}. (parameter=max_tokens)", param="max_tokens"
            )
        salt = str(request.get("cache_salt") or "")
        output = output_request(settings, self._kind, request)
        for prompt in prompts_of(self._kind, request):
            if len(prompt) >= longest:
                raise ErrorAnswer(400, too_long(settings.dialect, longest, len(prompt)), param="input_tokens")
            for choice in range(int(request.get("n") or 1)):
                plan = planned(output, prompt, model, settings.seed + choice, settings.dialect)
                limit = min(asked or plan.length, longest - len(prompt))
                endless = bool(request.get("ignore_eos")) and not plan.constrained
                wanted = limit if endless else min(plan.length, limit)
                sequence = batcher.sequence(prompt, wanted, model, salt)
                if not batcher.fits(sequence):
                    raise ErrorAnswer(400, too_long(settings.dialect, longest, len(prompt)), param="input_tokens")
                self.sequences.append(sequence)
                self._outputs.append(ChoiceOutput(output, plan, settings.dialect, random_seed(prompt, model, settings.seed + choice)))
                self._reasons.append(plan.finish if wanted == plan.length and not endless else "length")
        self._left = len(self.sequences)

    @property
    def id(self) -> str:
        """The engine's id of the request."""
        return self._head.id

    def begin(self) -> None:
        """Queue the request's sequences."""
        for sequence in self.sequences:
            self._batcher.add(sequence)

    def abort(self) -> None:
        """Stop the request: its caller has left, or it cannot continue."""
        self.gone = True
        for sequence in self.sequences:
            self._batcher.abort(sequence)

    def fail(self, message: str) -> None:
        """Reply with an error; close the connection when a part of the answer was sent already."""
        if self._begun:
            self._connection.close()
        elif not self._connection.transport.is_closing():
            self._connection.reply(500, shapes.error(self._settings.dialect, 500, message, "InternalServerError"))

    def keep(self, on_kept: Callable[["Answer"], None]) -> None:
        """Keep the KV once the prompt is computed, and call `on_kept` then, which must release it and have the request reply."""
        self._on_kept = on_kept
        for sequence, reason in zip(self.sequences, self._reasons, strict=True):
            if self._settings.dialect == "sglang":
                sequence.keep = True
                sequence.max_output = 1  # a prefill engine computes prompts only, whatever output the request asks for
            else:  # as NIXL's connector: only the KV of a sequence that ended for its length is worth fetching
                sequence.keep = reason == "length"

    def handed(self) -> None:
        """Mark the prompt's KV as fetched from another engine."""
        for sequence in self.sequences:
            sequence.handed = True

    def free_kept(self) -> None:
        """Free the kept KV."""
        for sequence in self.sequences:
            self._batcher.free_kept(sequence)

    @property
    def kept_tokens(self) -> int:
        """Tokens whose KV is kept for another engine."""
        return sum(len(s.prompt) for s in self.sequences if s.keep and s.finished and s.holding is not None)

    def token(self, sequence: SimSequence) -> None:
        """Take a token that one of the request's sequences produced."""
        index = self.sequences.index(sequence)
        token = self._outputs[index].take()
        if self._stream:
            self._send(index, token, first=sequence.produced == 1, last=sequence.finished)
        if sequence.finished:
            self._left -= 1
            if self._left == 0:
                self._end()

    def _send(self, index: int, token: Token, *, first: bool, last: bool) -> None:
        if not self._begun:
            self._begun = True
            self._connection.start_stream("text/html" if self._fault == "wrong_content_type" else "text/event-stream; charset=utf-8")
        vllm = self._settings.dialect == "vllm"
        for event in (
            self._chat_events(index, token, first=first, last=last) if self._kind == "chat" else self._text_events(index, last=last)
        ):
            if self._fault == "usage_every_event":
                event["usage"] = self._totals()
            elif self._wants_usage and vllm and self._settings.null_usage:
                event["usage"] = None
            self._out.event(event)

    def _chat_events(self, index: int, token: Token, *, first: bool, last: bool) -> Iterator[dict[str, Any]]:
        output = self._outputs[index]
        vllm = self._settings.dialect == "vllm"
        reason = self._out.finish(self._reasons[index]) if last else None
        if first:
            yield shapes.chat_chunk(self._head, index, {"role": "assistant", "content": ""}, None)
        delta = output.delta(token)
        logprobs = output.logprobs(len(output) - 1, chat=True)
        if delta is not None or logprobs is not None or (last and vllm):  # a token that shows nothing makes no chunk
            yield shapes.chat_chunk(self._head, index, delta or {}, reason if vllm else None, logprobs)
        if last and not vllm:  # SGLang sends the reason in a chunk of its own
            yield shapes.chat_chunk(self._head, index, {}, reason)

    def _text_events(self, index: int, *, last: bool) -> Iterator[dict[str, Any]]:
        output = self._outputs[index]
        vllm = self._settings.dialect == "vllm"
        reason = self._out.finish(self._reasons[index]) if last else None
        yield shapes.text_chunk(self._head, index, output.last.raw, reason if vllm else None, output.logprobs(len(output) - 1, chat=False))
        if last and not vllm:
            yield shapes.text_chunk(self._head, index, "", reason)

    def _totals(self) -> dict[str, Any]:
        prompts = {id(s.prompt): s for s in self.sequences}.values()
        totals = shapes.usage(
            sum(len(s.prompt) for s in prompts),
            sum(s.produced for s in self.sequences),
            sum(s.cached_tokens for s in prompts),
        )
        if self._settings.reasoning and self._kind == "chat":
            reasoning = {"reasoning_tokens": sum(output.reasoning_tokens for output in self._outputs)}
            totals |= {"completion_tokens_details": reasoning} if self._settings.dialect == "vllm" else reasoning
        return totals

    def _end(self) -> None:
        self._done(self)
        if self._on_kept is None:
            self.reply()
        else:
            self._on_kept(self)

    def reply(self) -> None:
        """Send the end of a stream, or the whole answer."""
        if self.gone:
            return
        totals = None if self._fault == "no_usage" else self._totals()
        if self._stream:
            if totals is not None and self._wants_usage:
                self._out.event(shapes.usage_chunk(self._head, self._kind, totals))
                if self._fault == "duplicate_usage":
                    self._out.event(
                        shapes.usage_chunk(self._head, self._kind, {**totals, "completion_tokens": totals["completion_tokens"] + 1})
                    )
            self._out.end()
            return
        if self._fault == "plain_not_json":
            self._connection.reply(200, b"<html>it works</html>")
        elif self._fault in ("plain_error_200", "error_event", "done_after_error"):
            self._connection.reply(
                200, shapes.error(self._settings.dialect, 500, "EngineCore encountered an issue.", "InternalServerError")
            )
        elif self._fault in ("crash_mid_stream", "reset_mid_stream"):
            (self._connection.close if self._fault == "crash_mid_stream" else self._connection.reset)()
        elif self._fault != "frozen_mid_stream":
            choices = []
            for index, (output, reason) in enumerate(zip(self._outputs, self._reasons, strict=True)):
                chat = self._kind == "chat"
                said = {"message": output.message(complete=reason != "length")} if chat else {"text": output.text}
                choices.append(shapes.plain_choice(index, said, self._out.finish(reason), output.logprobs(chat=chat)))
            plain = shapes.plain(self._head, self._kind, choices, totals)
            if self._on_kept is not None and self._settings.dialect == "vllm":
                plain["kv_transfer_params"] = self.params
            body = shapes.encode(plain)
            self._connection.reply(200, body, "text/html" if self._fault == "wrong_content_type" else "application/json")
