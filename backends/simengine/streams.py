"""The output of a streamed answer, with the effects of its fault."""

import os
from collections.abc import Callable
from typing import Any, Final

from backends.simengine.connection import SimConnection
from backends.simengine.shapes import encode

DONE: Final = b"data: [DONE]\n\n"

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
            self._write(DONE)
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
                self._write(DONE)
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
