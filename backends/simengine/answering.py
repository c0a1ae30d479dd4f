"""One inference request of the simulated engine: it is checked, scheduled on the batcher, and answered as its tokens come.

`read_request` checks the request, `Answer` is the request in the engine and its reply, `StreamOut` the output of a streamed answer with the
effects of its fault. `embeddings` are vectors computed from the text alone, in the format of OpenAI's endpoint.
"""

import base64
import os
import struct
from collections.abc import Callable
from typing import Any, Final

import msgspec

from backends.simengine import shapes
from backends.simengine.batching import Batcher, SimSequence
from backends.simengine.connection import SimConnection
from backends.simengine.faults import FaultRule, rule_of
from backends.simengine.loras import Loras
from backends.simengine.settings import SimSettings
from backends.simengine.shapes import embedding, encode, natural_length, tokens_of, words

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


EMBEDDING_DIMENSIONS: Final = 256


def embeddings(request: dict[str, Any], head: shapes.Ids) -> tuple[bytes, int]:
    """The reply's body, and the number of embedded tokens."""
    inputs = request["input"]
    texts = [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else list(inputs)
    counts = [len(tokens_of(t)) if isinstance(t, str) else len(t) for t in texts]
    size = int(request.get("dimensions") or EMBEDDING_DIMENSIONS)
    data = []
    for i, text in enumerate(texts):
        vector: Any = embedding(text if isinstance(text, str) else repr(text), size)
        if request.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": i, "embedding": vector})
    total = {"prompt_tokens": sum(counts), "total_tokens": sum(counts), "completion_tokens": 0}
    body = {"id": head.id, "object": "list", "created": head.created, "model": head.model, "data": data, "usage": total}
    return shapes.encode(body), sum(counts)


class ErrorAnswer(Exception):
    """An error reply to a request."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


def read_request(settings: SimSettings, loras: Loras, kind: str, body: bytes) -> dict[str, Any]:
    """Decode the request and check it as engines do. Raises ErrorAnswer with the dialect's message."""
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ErrorAnswer(
            400, "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error'}", "Bad Request"
        ) from None
    needed = {"chat": "messages", "text": "prompt", "embd": "input"}[kind]
    if not isinstance(request, dict) or needed not in request:
        raise ErrorAnswer(400, f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{needed}'}}", "Bad Request", f"body.{needed}")
    model = request.get("model", settings.models[0])
    adapter = str(model).partition(":")[2]
    if settings.dialect == "sglang" and settings.max_loras and adapter and adapter not in loras.loaded:
        raise ErrorAnswer(400, f"The following requested LoRA adapters are not loaded: {adapter}\nLoaded adapters: {[*loras.loaded]}.")
    if model not in settings.models and model not in loras.loaded and settings.dialect == "vllm":
        aliases = ", ".join(settings.models)
        raise ErrorAnswer(404, f"The model `{model}` does not exist. Valid aliases: {aliases}.", "NotFoundError", "model")
    temperature = request.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise ErrorAnswer(400, f"temperature must be non-negative, got {temperature}. (parameter=temperature)", param="temperature")
    if request.get("cache_salt") == "":
        raise ErrorAnswer(400, "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", param="cache_salt")
    return request


def prompts_of(kind: str, request: dict[str, Any]) -> list[list[int]]:
    """The token ids of every prompt of the request."""
    if kind == "chat":
        return [tokens_of(chat_text(request["messages"]))]
    prompts = request["prompt" if kind == "text" else "input"]
    if isinstance(prompts, str):
        return [tokens_of(prompts)]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return [tokens_of(item) if isinstance(item, str) else item for item in prompts]


def chat_text(messages: Any) -> str:
    """The rendered chat: one marked block per message, so that the beginning of a conversation is a prefix of its continuation."""
    if not isinstance(messages, list) or not messages:
        raise ErrorAnswer(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    blocks = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)
        blocks.append(f"<|{message.get('role')}|> {text} <|end|>\n")
    return "".join(blocks) + "<|assistant|> "


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
        self._texts: list[list[str]] = []
        self._words: list[Any] = []
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
        """Make the sequences. Raises ErrorAnswer when the prompt is too long."""
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
        for prompt in prompts_of(self._kind, request):
            if len(prompt) >= longest:
                raise ErrorAnswer(400, too_long(settings.dialect, longest, len(prompt)), param="input_tokens")
            for choice in range(int(request.get("n") or 1)):
                natural = natural_length(prompt, model, settings.seed + choice)
                limit = min(asked or natural, longest - len(prompt))
                wanted = limit if request.get("ignore_eos") else min(natural, limit)
                sequence = batcher.sequence(prompt, wanted, model, salt)
                if not batcher.fits(sequence):
                    raise ErrorAnswer(400, too_long(settings.dialect, longest, len(prompt)), param="input_tokens")
                self.sequences.append(sequence)
                self._words.append(words(prompt, model, settings.seed + choice))
                self._texts.append([])
                self._reasons.append("stop" if wanted == natural and not request.get("ignore_eos") else "length")
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
        word = next(self._words[index])
        self._texts[index].append(word)
        if self._stream:
            self._send(index, word, first=sequence.produced == 1, last=sequence.finished)
        if sequence.finished:
            self._left -= 1
            if self._left == 0:
                self._end()

    def _send(self, index: int, word: str, *, first: bool, last: bool) -> None:
        if not self._begun:
            self._begun = True
            self._connection.start_stream("text/html" if self._fault == "wrong_content_type" else "text/event-stream; charset=utf-8")
        chunk = shapes.chat_chunk if self._kind == "chat" else shapes.text_chunk
        reason = self._out.finish(self._reasons[index]) if last else None
        vllm = self._settings.dialect == "vllm"
        events = []
        if first and self._kind == "chat":
            events.append(chunk(self._head, index, None, None, first=True))
        if vllm or not last:
            events.append(chunk(self._head, index, word, reason, first=False))
        else:  # SGLang sends the reason in a chunk of its own
            events.append(chunk(self._head, index, word, None, first=False))
            events.append(chunk(self._head, index, None, reason, first=False))
        for event in events:
            if self._fault == "usage_every_event":
                event["usage"] = self._totals()
            elif self._wants_usage and vllm and self._settings.null_usage:
                event["usage"] = None
            self._out.event(event)

    def _totals(self) -> dict[str, Any]:
        prompts = {id(s.prompt): s for s in self.sequences}.values()
        return shapes.usage(
            sum(len(s.prompt) for s in prompts),
            sum(s.produced for s in self.sequences),
            sum(s.cached_tokens for s in prompts),
        )

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
            answers = [("".join(text), self._out.finish(reason)) for text, reason in zip(self._texts, self._reasons, strict=True)]
            plain = shapes.plain(self._head, self._kind, answers, totals)
            if self._on_kept is not None and self._settings.dialect == "vllm":
                plain["kv_transfer_params"] = self.params
            body = shapes.encode(plain)
            self._connection.reply(200, body, "text/html" if self._fault == "wrong_content_type" else "application/json")


def too_long(dialect: str, longest: int, tokens: int) -> str:
    """The dialect's message for a prompt over the context length."""
    if dialect == "sglang":
        return f"The input ({tokens} tokens) is longer than the model's context length ({longest} tokens)."
    return (
        f"This model's maximum context length is {longest} tokens. However, your prompt contains at least {longest + 1} input tokens, "
        f"which exceeds this limit even without any output tokens. (parameter=input_tokens, value={longest + 1})"
    )


def own_fault(body: bytes) -> FaultRule | None:
    """The fault that the request names, or None. Raises ErrorAnswer for an unknown one."""
    if b'"sim_fault"' not in body:
        return None
    try:
        fault = msgspec.json.decode(body).get("sim_fault")
        return None if fault is None else rule_of(fault if isinstance(fault, dict) else {"name": fault})
    except (ValueError, AttributeError) as error:
        raise ErrorAnswer(400, f"sim_fault: {error}", param="sim_fault") from None
