"""Sends what is made of Records to an OTLP receiver (http/protobuf), in a thread and in batches.

`BatchExporter` takes Records from the event loop and never makes it wait: they lie in a bounded list until its thread encodes them, a few
at a time, and posts them together. What does not fit is dropped and counted. `OtlpSender` posts; what a receiver answers is sorted as the
OTLP specification says ("OTLP/HTTP Response"): 429, 502, 503, 504 and lost connections are tried again, everything else is not.

Encoded requests are joined by putting their bytes one behind the other: each consists of one repeated field, so that the sum of two is the
request with both. The module knows neither spans nor log records, and imports nothing of OpenTelemetry.
"""

import gzip
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import msgspec
import structlog

from domain.clock import Clock
from gateway.config.trust import verify_for

if TYPE_CHECKING:
    import httpx

CONTENT_TYPE: Final = "application/x-protobuf"
TRIED_AGAIN: Final = frozenset({429, 502, 503, 504})
FLUSH_S: Final = 2.0
"""Longest time that a Record waits to be sent with others, in seconds; OpenTelemetry's own processor waits 5 s, and a person who looks for
a request that has just ended should find it."""
EARLY: Final = 512
"""Records that are sent without waiting longer, as many spans as OpenTelemetry's processor sends at once or some more."""
SLICE: Final = 4
"""Records that are encoded between two pauses: about 0.4 ms, in which the event loop waits for the interpreter."""
PAUSE_S: Final = 0.0005
"""Pause between two slices, so that the event loop has its turn."""
MAX_BATCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes of one post; collectors take 4 MiB and more."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
"""The pause after a failed post doubles, up to this, unless the receiver names one."""
GIVEN_UP_AFTER_S: Final = 60.0
"""A batch that could not be sent for so long is dropped, and the next one tried."""
CLOSE_S: Final = 3.0
"""Longest time that the end of a worker waits for what is left to be sent."""
COMPLAIN_EVERY_S: Final = 60.0
"""Shortest time between two complaints."""
REPEAT_EVERY_S: Final = 3600.0
"""Shortest time between two complaints with the same advice, while nothing is taken in between."""
ADVICE: Final = {
    400: "the receiver does not understand OTLP of this kind; check that it takes http/protobuf at this address",
    401: "set the credentials that the receiver wants in `headers`, or correct them",
    403: "set the credentials that the receiver wants in `headers`, or correct them",
    404: "nothing takes OTLP at this path; most receivers do at /v1/traces and /v1/logs",
    405: "nothing takes OTLP at this path; most receivers do at /v1/traces and /v1/logs",
    413: "raise the receiver's limit for the size of a post",
    415: "the receiver does not take http/protobuf; put a collector in front of it",
    429: "the receiver is overloaded; lower `ratio`, or give it more room",
}
NO_REDIRECT: Final = "redirects are not followed; write the address that this one leads to"
ITS_OWN_LOG: Final = "look into the receiver's own log"
NOT_THERE: Final = "check that the receiver runs, the host and the port of the endpoint, and firewalls between"
TOO_SLOW: Final = "the receiver is too slow; look into its own log, or raise `timeout_s`"
NO_NAME: Final = "no such host is known here; check the name in the endpoint"
NOT_TRUSTED: Final = (
    "add the CA of the receiver's certificate to the system's trust store (or SSL_CERT_FILE), or correct the host in the endpoint"
)
NO_TLS: Final = "the receiver does not speak TLS there; write http:// or another port"
MAX_REPLY_BYTES: Final = 64 * 1024
MAX_REASON_CHARS: Final = 300
RESULTS: Final = ("sent", "dropped", "rejected", "failed")
"""What became of Records: `dropped`, the list was full; `rejected`, the receiver took the batch and said that it left some out; `failed`,
it refused the batch or could not be reached."""

log = structlog.get_logger("tidegate.otlp")

T = TypeVar("T")


class Answered(msgspec.Struct, frozen=True):
    """What a receiver said to a post."""

    reason: str = ""
    """Why it was not taken, or what the receiver warns of; empty where all is well."""
    advice: str = ITS_OWN_LOG
    """What to do about it."""
    taken: bool = True
    again_s: float | None = None
    """After how many seconds the post may be tried again; None where that is in vain."""
    rejected: int = 0
    """Spans or log records that the receiver says it left out."""


class OtlpSender:
    """Posts to one endpoint over one connection, which is kept. Blocks; follows no redirects, and uses no proxy of the environment.

    Args:
        endpoint: the whole URL, as `http://collector:4318/v1/traces`.
        headers: further headers, such as credentials; they are never logged.
        timeout_s: longest wait for the connection, for each part of the answer, and for all of its body.
        rejected_of: reads the answer to a post that was taken: how many items were left out, and the receiver's words.
    """

    def __init__(
        self,
        endpoint: str,
        headers: Mapping[str, str],
        *,
        timeout_s: float,
        compress: bool,
        rejected_of: Callable[[bytes], tuple[int, str]],
        clock: Clock,
    ) -> None:
        self._endpoint = endpoint
        self.place = endpoint.partition("?")[0]
        """The endpoint without what may be a secret."""
        self._headers = {"content-type": CONTENT_TYPE, "user-agent": "tidegate", **headers}
        if compress:
            self._headers["content-encoding"] = "gzip"
        self._compress = compress
        self._timeout_s = timeout_s
        self._rejected_of = rejected_of
        self._clock = clock
        self._client: httpx.Client | None = None

    def send(self, body: bytes, within_s: float = float("inf")) -> Answered:
        """Post one request; never raises for the network's sake."""
        # imported only here, in the thread: the import takes 0.1 s, which no start of a worker should cost
        import httpx

        data = gzip.compress(body, 1) if self._compress else body
        timeout_s = min(self._timeout_s, within_s)
        until = self._clock() + timeout_s
        try:
            if self._client is None:
                self._client = httpx.Client(trust_env=False, limits=httpx.Limits(max_connections=1), verify=verify_for(self._endpoint))
            with self._client.stream("POST", self._endpoint, content=data, headers=self._headers, timeout=timeout_s) as reply:
                said = b""
                for piece in reply.iter_bytes():
                    said += piece
                    if len(said) > MAX_REPLY_BYTES:
                        break
                    if self._clock() > until:
                        raise httpx.ReadTimeout("the answer does not end")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS]
            return Answered(reason, _advice_on(error, late=isinstance(error, httpx.TimeoutException)), taken=False, again_s=0.0)
        if reply.is_success:
            rejected, words = self._rejected_of(said)
            return Answered(words[:MAX_REASON_CHARS], rejected=rejected)
        words = "" if reply.headers.get("content-type") == CONTENT_TYPE else said.decode("utf-8", "replace")
        reason = f"status {reply.status_code} {reply.reason_phrase} {words}".strip()[:MAX_REASON_CHARS]
        advice = NO_REDIRECT if reply.is_redirect else ADVICE.get(reply.status_code, ITS_OWN_LOG)
        if reply.status_code not in TRIED_AGAIN:
            return Answered(reason, advice, taken=False)
        after = reply.headers.get("retry-after", "")
        return Answered(reason, advice, taken=False, again_s=float(after) if after.isascii() and after.isdecimal() else 0.0)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def _advice_on(error: Exception, *, late: bool) -> str:
    """What to do when a receiver cannot be reached; the error that httpx raises, and whether it is for time."""
    if late:
        return TOO_SLOW
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError | socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, socket.gaierror):
        return NO_NAME
    if isinstance(cause, ssl.SSLError):
        return NOT_TRUSTED if isinstance(cause, ssl.SSLCertVerificationError) else NO_TLS
    return NOT_THERE


class BatchExporter(Generic[T]):
    """Sends Records, or other items, to one receiver. `add` belongs to the event loop's thread, `turn` and `run` to the exporter's own.

    Args:
        encode: makes the bytes of a request of one Record.
        max_pending: Records that wait to be sent, at most.
    """

    def __init__(self, name: str, encode: Callable[[T], bytes], sender: OtlpSender, *, max_pending: int, clock: Clock) -> None:
        self.name = name
        self._encode = encode
        self._sender = sender
        self._max_pending = max_pending
        self._clock = clock
        self._pending: deque[T] = deque()
        # written by the thread only, read by the loop: one writer each, so neither needs a lock
        self._taken = self._sent = self._rejected = self._failed = 0
        self._added = self._dropped = 0
        self._complained_at = float("-inf")
        self._complained_of = ""
        self._away = False
        self._wake, self._stop = threading.Event(), threading.Event()
        self._closing_at = float("inf")
        self._thread: threading.Thread | None = None

    def add(self, item: T) -> None:
        """Send an item soon; never waits."""
        waiting = self._added - self._taken
        if waiting >= self._max_pending or self._stop.is_set():
            self._dropped += 1
            return
        self._added += 1
        self._pending.append(item)
        if waiting == EARLY:
            self._wake.set()

    def figures(self) -> tuple[int, int, int, int]:
        """Records since the start, by `RESULTS`."""
        return self._sent, self._dropped, self._rejected, self._failed

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self.run, name=f"otlp-{self.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left, for `CLOSE_S` at most. Blocks."""
        self._closing_at = self._clock() + CLOSE_S
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S + 1.0)

    # --- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Send until the exporter is closed."""
        self._send(b"", 0)  # says at once, in the log, when the receiver is not there or does not know us
        while not self._stop.is_set():
            self._wake.wait(FLUSH_S)
            self._wake.clear()
            self.turn()
        self.turn()
        self._sender.close()

    def turn(self) -> None:
        """Encode and send what has come."""
        count = len(self._pending)
        parts: list[bytes] = []
        size = 0
        for at in range(1, count + 1):
            try:
                parts.append(self._encode(self._pending.popleft()))
                size += len(parts[-1])
            except Exception as error:  # noqa: BLE001 - a trace is worth no request, whatever goes wrong here
                self._failed += 1
                self._taken += 1
                self._complain(f"a Record cannot be encoded ({type(error).__name__})", "report this as a defect of Tidegate")
            if parts and (size >= MAX_BATCH_BYTES or at == count):
                self._deliver(b"".join(parts), len(parts))
                parts, size = [], 0
            if at % SLICE == 0 and not self._stop.is_set():
                self._stop.wait(PAUSE_S)

    def _deliver(self, body: bytes, records: int) -> None:
        """Send a batch, more than once if need be."""
        until, pause_s = self._clock() + GIVEN_UP_AFTER_S, FIRST_PAUSE_S
        while (again_s := self._send(body, records)) is not None:
            wait_s = max(again_s, pause_s)
            if self._stop.is_set() or self._clock() + wait_s > until:
                self._failed += records
                break
            self._stop.wait(wait_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._taken += records

    def _send(self, body: bytes, records: int) -> float | None:
        """Post once, and count; the seconds after which to try again, None where the batch is done with."""
        left_s = self._closing_at - self._clock()
        if left_s <= 0:
            self._failed += records
            return None
        answered = self._sender.send(body, left_s)
        if answered.taken:
            rejected = min(records, answered.rejected)
            self._sent += records - rejected
            self._rejected += rejected
            if answered.reason:
                self._complain(f"the receiver says: {answered.reason}", answered.advice)
            elif self._away:
                log.info("the OTLP receiver answers again", exporter=self.name, endpoint=self._sender.place)
                self._complained_of = ""
            self._away = False
            return None
        self._away = True
        self._complain(answered.reason, answered.advice)
        if answered.again_s is None:
            self._failed += records
        return answered.again_s

    def _complain(self, reason: str, advice: str) -> None:
        now = self._clock()
        if now - self._complained_at >= (REPEAT_EVERY_S if advice == self._complained_of else COMPLAIN_EVERY_S):
            self._complained_at = now
            self._complained_of = advice
            log.warning(
                "the OTLP receiver does not take everything", exporter=self.name, endpoint=self._sender.place, reason=reason, advice=advice
            )
