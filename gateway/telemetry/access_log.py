"""The access log: one JSON line per finished request, written without ever making a request wait.

Lines are gathered in the event loop and written by a daemon thread, because a pipe that nobody reads and a full or slow disk block the
writer, and `O_NONBLOCK` on stdout would be set for every process that shares it. Lines that do not fit are dropped and counted. Knows no
prompt and no secret: a Record has none.
"""

import os
import select
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from math import trunc
from queue import SimpleQueue
from typing import Final

import msgspec

from domain.usage import NO_USAGE
from gateway.guards.facts import GuardRecord
from gateway.record import Record, RoutedPrompt
from routing.prefix.sampled import sampled

FLUSH_AFTER_S: Final = 0.2
"""The longest time that a line is held back to be written with others; a person watching the log does not notice it."""
FLUSH_BYTES: Final = 64 * 1024
"""Gathered bytes that are written at once: the capacity of a Linux pipe."""
MAX_PENDING_BYTES: Final = 1024 * 1024
"""Bytes of lines that the reader has not taken yet (about 2,500 lines); beyond that new lines are dropped."""
MAX_FIELD_CHARS: Final = 512
"""Characters kept of one field: at most 2 KiB as UTF-8."""
SHORT_FIELD_CHARS: Final = 8
"""Characters kept of each field when a line would not fit `MAX_LINE_BYTES`: 50 fields of JSON's longest escape (6 bytes)
and the rest of the line are below it."""
MAX_LINE_BYTES: Final = 4096
"""PIPE_BUF on Linux: writes up to it are never mixed with those of other workers on the same pipe."""
WAIT_FOR_READER_MS: Final = 1000
"""How long the thread waits before it tries a descriptor again that is non-blocking and full."""

_UINT64: Final = (1 << 64) - 1

# DEL and C1 controls, the marks and overrides that reorder text, line and paragraph separators, byte-order mark, and
# halves of surrogate pairs, which are no UTF-8. C0 controls need no removal: JSON escapes them.
_HIDDEN: Final = dict.fromkeys(
    (*range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFEFF, *range(0xD800, 0xE000))
)


def without_hidden(text: str) -> str:
    """`text` without the characters that can deceive a reader or a terminal and that JSON would pass on."""
    return text.translate(_HIDDEN)


class AccessLogEntry(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The keys of one line, flat. Times are whole microseconds; keys that do not apply to the request are left out."""

    at: datetime
    request_id: str
    outcome: str
    status: int
    duration_us: int
    overhead_us: int
    endpoint: str = ""
    model: str = ""
    tenant: str = ""
    project: str = ""
    key_id: str = ""
    pool: str = ""
    revision: str = ""
    backend: str = ""
    attempts: int = 0
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    closing: str = ""
    ttft_us: int | None = None
    decode_us: int | None = None
    events: int = 0
    queue_us: int = 0
    request_bytes: int = 0
    reply_bytes: int = 0
    policy: str = ""
    engine_request_id: str = ""
    failed: str = ""
    detail: str = ""
    lora: str = ""
    lora_wait_us: int = 0
    cost_nanousd: int = 0
    price_id: str = ""
    degraded: bool = False
    prefill: str = ""
    hedged: str = ""
    priority_class: str = ""
    retry: bool = False
    queued: str = ""
    queued_ahead: int = 0
    asked_model: str = ""
    steps: str = ""
    passed_over: str = ""
    rule: str = ""
    pulled_back: bool = False
    rollout: str = ""
    arm: str = ""
    prompt: str = ""
    fell_back: str = ""
    reported: str = ""
    method: str = ""
    path: str = ""
    user: str = ""
    client: str = ""
    user_agent: str = ""
    trace_id: str = ""
    caller_request_id: str = ""
    cache: str = ""
    saved_tokens: int = 0
    caller_ttft_us: int | None = None
    guard: str = ""
    guard_by: str = ""
    guard_direction: str = ""
    guard_late: bool = False
    guard_found: str = ""
    guard_failed: str = ""
    guard_unread: str = ""
    guard_version: str = ""
    chain: str = ""
    chain_key: str = ""
    block_tokens: int = 0
    known_tokens: int = 0
    session: str = ""
    audio_seconds: int = 0
    audio_bytes: int = 0
    body_us: int = 0
    lost_us: int = 0
    continued: int = 0
    limits: str = ""
    slo_missed: str = ""


_TEXT_FIELDS: Final = tuple(f.name for f in msgspec.structs.fields(AccessLogEntry) if f.type is str)
_encode: Final = msgspec.json.Encoder().encode


def line_of(record: Record, *, end_user: bool = False, chain_key: str = "") -> bytes:
    """One line with its newline, at most `MAX_LINE_BYTES`: exactly one JSON object whatever the Record's strings hold.

    Args:
        end_user: whether the line names the end user.
        chain_key: the generation of chains (`routing.prefix.chain`); empty for lines without what a replay needs of the prompt.
    """
    line = _flat(record, end_user, chain_key)
    try:
        encoded = _encode(line)
    except UnicodeEncodeError:  # a lone surrogate
        encoded = b""
    # Plain ASCII without DEL, and short: nothing to clean. True for all but hostile or exotic names.
    # The chain and the session are this gateway's own letters and digits.
    if encoded.isascii() and 0 < len(encoded) - len(line.chain) <= MAX_FIELD_CHARS * 2 and b"\x7f" not in encoded:
        return encoded + b"\n"
    for keep in (MAX_FIELD_CHARS, SHORT_FIELD_CHARS):
        cleaned = {name: without_hidden(getattr(line, name)[: 2 * keep])[:keep] for name in _TEXT_FIELDS}
        encoded = _encode(msgspec.structs.replace(line, **cleaned))
        if len(encoded) < MAX_LINE_BYTES:
            break
    return encoded + b"\n"


def _flat(record: Record, end_user: bool, chain_key: str) -> AccessLogEntry:
    usage = record.usage
    ttft_s = record.ttft_s
    decode_s = record.decode_s
    word, by, direction, late, found, failed, unread, version = NOTHING_SAID if record.guards is None else _guarded(record.guards)
    chain, key, block_tokens, known_tokens, session = (
        NOT_ROUTED if record.routed is None or not chain_key else _routed(record.routed, chain_key)
    )
    rollout, arm = NOT_DEALT if record.dealt is None and record.dealt_prompt is None else _dealt(record)
    gateway_id = record.gateway_id or record.request_id
    # by place, in the order of the keys: names would fill a dictionary for each line
    return AccessLogEntry(
        datetime.fromtimestamp(record.at_unix, UTC),
        gateway_id,
        record.outcome,
        record.status,
        trunc(record.duration_s * 1e6),
        trunc(record.overhead_s * 1e6),
        record.endpoint,
        record.model,
        record.tenant,
        record.project,
        record.key_id,
        record.pool,
        record.revision,
        record.backend,
        record.attempts,
        record.stream,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.reasoning_tokens,
        record.closing,
        None if ttft_s is None else trunc(ttft_s * 1e6),
        None if decode_s is None else trunc(decode_s * 1e6),
        record.events,
        trunc(record.queue_s * 1e6) if record.queue_s else 0,
        record.request_bytes,
        record.reply_bytes,
        record.policy,
        record.engine_request_id if record.engine_request_id != gateway_id else "",
        ",".join(record.failed) if record.failed else "",
        record.detail,
        record.lora,
        trunc(record.lora_wait_s * 1e6) if record.lora_wait_s else 0,
        record.cost_nanousd,
        record.price_id,
        record.degraded,
        record.prefill,
        ",".join(record.hedged) if record.hedged else "",
        record.priority_class,
        record.retry,
        record.queued,
        record.queued_ahead,
        record.asked_model,
        ", ".join(record.steps) if record.steps else "",
        "; ".join(record.passed_over) if record.passed_over else "",
        record.rule,
        record.pulled_back,
        rollout,
        arm,
        record.prompt,
        "; ".join([step.words for step in record.fell_back]) if record.fell_back else "",
        record.reported,
        record.method,
        record.path,
        record.user if end_user else "",
        record.client,
        record.user_agent,
        record.trace_id,
        record.request_id if record.request_id != gateway_id else "",
        f"{record.cache}:{record.not_kept}" if record.not_kept else record.cache,
        0 if record.saved is NO_USAGE else record.saved.total_tokens,
        None if record.caller_ttft_s is None else trunc(record.caller_ttft_s * 1e6),
        word,
        by,
        direction,
        late,
        found,
        failed,
        unread,
        version,
        chain,
        key,
        block_tokens,
        known_tokens,
        session,
        usage.audio_seconds,
        usage.audio_bytes,
        trunc(record.body_s * 1e6) if record.body_s else 0,
        trunc(record.lost_s * 1e6) if record.lost_s else 0,
        record.continued,
        "; ".join(record.soft_limits) if record.soft_limits else "",
        ",".join([level for level, met in record.promises if not met]) if record.promises else "",
    )


def _routed(routed: RoutedPrompt, chain_key: str) -> tuple[str, str, int, int, str]:
    """What a replay needs of the prompt and the conversation, in the order of the keys. Keyed hashes and numbers, never a text."""
    request, known_blocks = routed
    session = f"{request.session & _UINT64:016x}" if request.session else ""
    if not request.chain:
        return "", "", 0, 0, session
    return sampled(request.chain), chain_key, request.block_tokens, known_blocks * request.block_tokens, session


NOT_DEALT: Final = ("", "")
NOT_ROUTED: Final[tuple[str, str, int, int, str]] = ("", "", 0, 0, "")
NOTHING_SAID: Final[tuple[str, str, str, bool, str, str, str, str]] = ("", "", "", False, "", "", "", "")


def _guarded(said: GuardRecord) -> tuple[str, str, str, bool, str, str, str, str]:
    """What guard rules said, in the order of the keys. Rules, kinds and numbers, never a text."""
    return (
        said.word,
        said.by,
        said.direction,
        said.late,
        said.found,
        ",".join(said.failed),
        ",".join(said.unread),
        said.version,
    )


def _dealt(record: Record) -> tuple[str, str]:
    dealt = [assignment for assignment in (record.dealt, record.dealt_prompt) if assignment is not None]
    return ",".join([assignment.running.name for assignment in dealt]), ",".join([assignment.arm.value for assignment in dealt])


class AccessLog:
    """Writes Records to a file descriptor. `write` and `flush` belong to the event loop's thread.

    Args:
        fd: where lines go; stays open when the log closes. Pass a regular file opened with O_APPEND, a pipe or a socket.
        later: `loop.call_later`; called with `FLUSH_AFTER_S` when a line starts a new batch.
        end_user: whether lines name end users.
    """

    def __init__(self, fd: int, later: Callable[[float, Callable[[], None]], object], *, end_user: bool = False) -> None:
        self._end_user = end_user
        self.chain_key = ""
        """The generation of chains, for lines with what a replay needs of the prompt; empty for lines without it."""
        self._fd = fd
        self._later = later
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._accepted_bytes = 0
        self._queue: SimpleQueue[list[bytes] | None] = SimpleQueue()
        # Written by the thread only, read by the loop: one writer each, so neither needs a lock.
        self._done_bytes = 0
        self._failed = 0
        self._refused = 0
        self._closed = False
        whole = stat.S_ISREG(os.fstat(fd).st_mode)
        self._thread = threading.Thread(target=self._run, args=(FLUSH_BYTES if whole else MAX_LINE_BYTES,), daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost so far, because the reader was too slow or the descriptor failed."""
        return self._refused + self._failed

    def write(self, record: Record) -> bytes:
        """Takes one Record; never blocks, and never raises whatever the Record holds. Returns its line."""
        line = line_of(record, end_user=self._end_user, chain_key=self.chain_key)
        if self._closed or self._accepted_bytes - self._done_bytes + len(line) > MAX_PENDING_BYTES:
            self._refused += 1
            return line
        if not self._batch:
            self._later(FLUSH_AFTER_S, self.flush)
        self._batch.append(line)
        self._accepted_bytes += len(line)
        self._batch_bytes += len(line)
        if self._batch_bytes >= FLUSH_BYTES:
            self.flush()
        return line

    def flush(self) -> None:
        """Hands gathered lines to the writing thread."""
        if self._batch:
            self._queue.put(self._batch)
            self._batch = []
            self._batch_bytes = 0

    def close(self, timeout_s: float = 1.0) -> None:
        """Writes the lines that are left, waiting for the reader at most `timeout_s`; later Records are counted as dropped."""
        if not self._closed:
            self.flush()
            self._closed = True
            self._queue.put(None)
            self._thread.join(timeout_s)

    def _run(self, most: int) -> None:
        while (batch := self._queue.get()) is not None:
            for start, end in slices(batch, most):
                data = b"".join(batch[start:end])
                try:
                    _write_all(self._fd, data)
                except OSError:  # the reader is gone or the disk is full: the next batch may fare better
                    self._failed += end - start
                self._done_bytes += len(data)


def slices(batch: list[bytes], most: int) -> list[tuple[int, int]]:
    """Slices of `batch` of at most `most` bytes each, whole lines, in order."""
    runs = []
    start = 0
    size = 0
    for at, line in enumerate(batch):
        if size and size + len(line) > most:
            runs.append((start, at))
            start = at
            size = 0
        size += len(line)
    return [*runs, (start, len(batch))]


def _write_all(fd: int, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        try:
            unwritten = unwritten[os.write(fd, unwritten) :]
        except BlockingIOError:  # another process that shares the descriptor made it non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(WAIT_FOR_READER_MS)
