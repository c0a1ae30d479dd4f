"""Realtime sessions of the simulated engine, in vLLM's dialect (0.33): audio in, a transcript in pieces out.

Nothing is heard. While a turn is under way every piece of audio makes one word, which follows from its bytes; the end of the audio
(`input_audio_buffer.commit` with `final`) makes two more, and the whole transcript with its usage. Errors are vLLM's, word for word.
"""

import binascii
import itertools
import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final

import msgspec

from backends.simengine import shapes
from backends.simengine.connection import SimConnection
from backends.simengine.settings import SimSettings
from backends.simengine.sound import BYTES_PER_SECOND
from backends.websocket import NORMAL, WebSocketStream

SESSION: Final = "session"
"""The kind of request that opens a session."""
REALTIME_PATH: Final = "/v1/realtime"
TOKENS_PER_SECOND: Final = 12.5
MOST_BYTES: Final = 16 * 1024 * 1024
"""Longest message that is read, uvicorn's default for WebSockets."""
NOT_VALIDATED: Final = "Model not validated. Make sure to validate the model by sending a session.update event."
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def asks_for_session(connection: SimConnection) -> bool:
    """Whether a request is the handshake of a session."""
    return (
        connection.method == "GET" and connection.path == REALTIME_PATH and connection.headers.get(b"upgrade", b"").lower() == b"websocket"
    )


class SimSession:
    """One session on a connection. `over` is called once, when it ends."""

    def __init__(self, connection: SimConnection, settings: SimSettings, session_id: str, created: int, over: Callable[[], None]) -> None:
        self._connection = connection
        self._settings = settings
        self._stream = WebSocketStream.server(MOST_BYTES)
        self._model_known = False
        self._turn = False
        self._audio = 0
        self._words: list[str] = []
        self._sent = 0
        self._over = over
        key = connection.headers.get(b"sec-websocket-key", b"")
        accept = b64encode(sha1(key + _GUID, usedforsecurity=False).digest())
        connection.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-accept: %b\r\n\r\n" % accept
        )
        connection.tunnel = self.feed
        connection.on_gone = self.end
        self._tell(type="session.created", id=f"sess-{session_id}", created=created)

    def feed(self, data: bytes) -> None:
        """Read what the caller sends."""
        for message in self._stream.feed(data):
            try:
                event: Any = msgspec.json.decode(message)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._error("Invalid JSON", "invalid_json")
                continue
            self._hear(event if isinstance(event, dict) else {})
        self._flush()
        if self._stream.closed is not None:
            self._connection.close()
            self.end()

    def end(self) -> None:
        """Forget the session, once."""
        over, self._over = self._over, lambda: None
        self._connection.tunnel = lambda _: None
        over()

    def _hear(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if kind == "session.update":
            model = event.get("model")
            if model is None:
                self._error("Missing required field: model", "invalid_event")
            elif model not in self._settings.models:
                self._error(f"The model `{model}` does not exist.", "model_not_found")
            else:
                self._model_known = True
        elif kind == "input_audio_buffer.append":
            self._append(event.get("audio"))
        elif kind == "input_audio_buffer.commit":
            if not self._model_known:
                self._error(
                    "Model not validated. Make sure to validate the model by sending a session.update event.", "model_not_validated"
                )
            elif event.get("final"):
                self._finish()
            else:
                self._turn = True
        else:
            self._error(f"Unknown event type: {kind}", "unknown_event")

    def _append(self, audio: object) -> None:
        try:
            heard = b64decode(audio if isinstance(audio, str) else "", validate=True)
        except (binascii.Error, ValueError):
            heard = b""
        if not heard:
            self._error("Invalid audio data", "invalid_audio")
            return
        self._audio += len(heard)
        if self._turn:
            self._say(heard, 1)

    def _say(self, heard: bytes, count: int) -> None:
        for word in itertools.islice(shapes.words([zlib.crc32(heard)], "realtime", self._settings.seed), count):
            self._words.append(word)
            self._tell(type="transcription.delta", delta=word)

    def _finish(self) -> None:
        if not self._turn:
            return
        self._say(b"%d" % self._audio, 2)
        prompt, output = math.ceil(self._audio / BYTES_PER_SECOND * TOKENS_PER_SECOND), len(self._words)
        usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
        fault = self._connection.fault
        reported = None if fault is not None and fault.name == "no_usage" else usage
        self._tell(type="transcription.done", text="".join(self._words), usage=reported)
        self._turn, self._audio, self._words = False, 0, []

    def _error(self, message: str, code: str) -> None:
        self._tell(type="error", error=message, code=code)

    def _tell(self, **event: object) -> None:
        fault = self._connection.fault
        if fault is not None and self._sent >= fault.after and self._break(fault.name):
            return
        self._sent += 1
        self._stream.send(shapes.encode(event))
        self._flush()

    def _break(self, name: str) -> bool:
        """Apply the fault of the session, where it is one of sessions; whether it was applied."""
        connection = self._connection
        if name == "crash_mid_stream":
            connection.transport.close()
        elif name == "reset_mid_stream":
            connection.reset()
            self.end()
        elif name == "malformed_sse":
            self._stream.send(b'{"type": transcription')
        elif name == "oversize_event":
            self._stream.send(shapes.encode({"type": "transcription.delta", "delta": "x" * (2 * 1024 * 1024)}))
        elif name == "garbage_chunk":
            connection.transport.write(b"\xff\xff\xff\xff")
        elif name == "clean_close":
            self._stream.close(NORMAL, "")
        else:
            return name == "frozen_mid_stream"
        self._flush()
        return True

    def _flush(self) -> None:
        data = self._stream.out()
        if data and not self._connection.transport.is_closing():
            self._connection.transport.write(data)
