"""Keeps the texts of requests whose tenants' policies say so: collects an answer on its way, and redacts and seals both texts in a thread.

The request path refers to the request's body, which is there anyway, and to the bytes of the answer; everything else happens behind the
answer. Bytes of answers under way and texts that wait are bounded; what finds no room is not kept, and counted.
"""

import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Final

import msgspec

from gateway.record import Record
from gateway.request_log.reader import sealed_content
from gateway.request_log.redaction import Redactor
from gateway.request_log.ring import RequestRing
from gateway.story import Story
from guardrails.guard_set import GuardSet
from policies.prompts.prompt import RegisteredPrompt
from policies.schema import RequestLogPolicy
from tenancy.request_log import LoggedRequest, SealedContent
from tenancy.responses import ResponseSealer

BYTES_PER_CHAR: Final = 64
"""Bytes of a stream of events for each character of its text: events of 250 bytes carry four characters."""
MOST_REPLY_BYTES: Final = 2 * 1024 * 1024
"""Bytes that are collected of one answer."""
ROOM_BYTES: Final = 64 * 1024 * 1024
"""Bytes of answers of one worker that are collected at once, and of texts that wait to be redacted."""


class CapturedReply:
    """A tap that lets everything go on, and remembers the beginning of it."""

    __slots__ = ("_captures", "_most", "_parts", "body", "cut", "fault", "guards", "over", "prompted", "size", "terms")

    def __init__(self, captures: "Captures", terms: RequestLogPolicy, body: bytes, guards: GuardSet | None) -> None:
        self._captures = captures
        self._most = min(terms.max_bytes * BYTES_PER_CHAR, MOST_REPLY_BYTES) if "answer" in terms.content else 0
        self._parts: list[bytes] = []
        self.terms = terms
        self.body = body
        self.guards = guards
        self.prompted: tuple[RegisteredPrompt, Mapping[str, object]] | None = None
        """The prompt of the registry in front of its messages, and the values for it; None for none."""
        self.size = 0
        self.cut = False
        """Whether the answer went on behind what is remembered."""
        self.over = False
        self.fault = None

    def feed(self, data: bytes) -> bytes:
        """Remember, and pass on."""
        if self.size + len(data) <= self._most and self._captures.take(len(data)):
            self._parts.append(data)
            self.size += len(data)
        else:
            self._most = 0
            self.cut = True
        return data

    def end(self) -> bytes:
        """Nothing is ever held."""
        return b""

    def reply(self) -> bytes:
        """What is remembered."""
        return b"".join(self._parts)

    def drop(self) -> None:
        """Forget it."""
        self._captures.give_back(self.size)
        self._parts.clear()
        self.size = 0

    def __del__(self) -> None:
        """Give the room back of an attempt that failed, or lost against another one."""
        self._captures.give_back(self.size)


class Captures:
    """The texts of one worker's requests that are to be kept. Its methods belong to the event loop's thread.

    Args:
        ring: gets the sealed texts, in the loop.
        executor: of one thread.
        soon: `loop.call_soon_threadsafe`.
        log_defect: gets errors of the thread.
    """

    def __init__(
        self,
        ring: RequestRing,
        sealer: ResponseSealer,
        executor: Executor,
        soon: Callable[..., object],
        digest_of_user: Callable[[str], str],
        log_defect: Callable[[BaseException, str], None],
    ) -> None:
        self._ring = ring
        self._sealer = sealer
        self._executor = executor
        self._soon = soon
        self._digest_of_user = digest_of_user
        self._log_defect = log_defect
        self._redactor = Redactor()
        self._taken = 0

    def begin(self, body: bytes, story: Story) -> CapturedReply | None:
        """The tap of an attempt whose request's texts are kept; None for any other."""
        policy = story.asked.tenant_policy
        terms = None if policy is None else policy.request_log
        if terms is None or not terms.content or story.asked.shadow:
            return None
        if terms.share < 1.0 and zlib.crc32(story.gateway_id.encode()) >= terms.share * 2**32:
            return None
        captured = CapturedReply(self, terms, body, story.asked.guards)
        if story.asked.template is not None and story.asked.variables is not None:
            captured.prompted = (story.asked.template, story.asked.variables)
        return captured

    def take(self, size: int) -> bool:
        """Whether there is room for so many bytes more, which are taken."""
        if self._taken + size > ROOM_BYTES:
            return False
        self._taken += size
        return True

    def give_back(self, size: int) -> None:
        """Give room back."""
        self._taken -= size

    def keep(self, captured: CapturedReply, record: Record) -> None:
        """Redact, seal and keep the texts of a finished request, in the thread. Nothing is kept of a request that a guard rule refused, or
        whose answer it cut."""
        prompt = captured.body if "prompt" in captured.terms.content else None
        if record.guards is not None and record.guards.word in ("block", "unavailable", "too_long"):
            captured.drop()
            return
        if not self.take(len(captured.body)):
            self._ring.lost_contents += 1
            captured.drop()
            return
        at = datetime.fromtimestamp(record.at_unix, UTC)
        at_us = round(at.timestamp() * 1e6)
        request = LoggedRequest(
            at_us=at_us,
            id=record.gateway_id or record.request_id,
            duration_us=0,
            tenant=record.tenant,
            end_user=self._digest_of_user(record.user) if record.user else "",
            expires_us=at_us + int(captured.terms.hours * 3.6e9),
        )
        self._executor.submit(self._redact, captured, prompt, request)

    def _redact(self, captured: CapturedReply, prompt: bytes | None, request: LoggedRequest) -> None:
        try:
            reply = (captured.reply(), captured.cut) if "answer" in captured.terms.content else None
            content = self._redactor.content(prompt, reply, captured.guards, captured.terms.max_bytes)
            if prompt is not None and captured.prompted is not None:
                prompted = self._redactor.prompted(prompt, *captured.prompted, captured.guards, captured.terms.max_bytes)
                content = msgspec.structs.replace(content, prompted=prompted)
            sealed = sealed_content(self._sealer, request, content)
        except Exception as error:  # noqa: BLE001 - a text that cannot be redacted is not kept, whatever the reason
            self._log_defect(error, request.id)
            self._soon(self._done, captured, None)
            return
        self._soon(self._done, captured, sealed)

    def _done(self, captured: CapturedReply, sealed: SealedContent | None) -> None:
        self.give_back(len(captured.body))
        captured.drop()
        if sealed is None:
            self._ring.lost_contents += 1
        else:
            self._ring.note_content(sealed)
