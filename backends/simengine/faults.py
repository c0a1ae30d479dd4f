"""The faults of the simulated engine, by name, and the rules that decide when each happens.

A rule comes from the command line (standing), from `POST /sim/faults` (standing, or for the next requests), or from the
request itself in the body field `sim_fault`, which passes through a gateway because unknown fields do.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from domain.clock import Rng

FAULTS: Final[Mapping[str, str]] = {
    # before the reply
    "frozen": "takes the request and never answers; /health goes on saying 200",
    "half_open": "stops reading and writing and keeps the socket open",
    "close_before_headers": "closes the connection instead of answering",
    "reset_before_headers": "resets the connection instead of answering",
    "slow_start": "waits `delay_s` before it begins",
    "status_500": "answers 500 in the dialect's shape",
    "status_502": "answers 502 with a proxy's HTML page",
    "status_503": "answers 503 as a full queue does; `retry_after` adds the header",
    "status_429": "answers 429; `retry_after` adds the header",
    "status_401": "answers 401 as for a wrong engine key",
    "wrong_model": "answers in the name of another model",
    "wrong_content_type": "answers 200 with text/html",
    "restart_empty_kv": "resets every other connection and forgets its cache and counters, as a restart does, then answers",
    "lose_kv_events": "does not publish its next `after` batches of KV events; replays have them",
    "lose_load_reports": "does not push its next `after` reports of load",
    "exit_process": "ends its process after `after` events",
    # how a stream breaks
    "crash_mid_stream": "closes the connection after `after` events",
    "reset_mid_stream": "resets the connection after `after` events",
    "frozen_mid_stream": "falls silent after `after` events and keeps the socket",
    "slow_drip": "sends `bytes_per_s` bytes a second",
    "comments_only": "sends comments for ever instead of events",
    "abort_finish": "ends with finish_reason abort, then [DONE]",
    "unknown_finish": "ends with a finish_reason nobody knows, then [DONE]",
    "missing_finish": "ends with [DONE] and no finish_reason",
    "eof_without_done": "ends the message cleanly after `after` events, with neither finish_reason nor [DONE]",
    "no_done": "sends every event and no [DONE]",
    "done_after_error": "sends an error event after `after` events, then [DONE]",
    "error_event": "sends an error event after `after` events and ends",
    "hang_after_done": "sends [DONE] and never ends the message",
    "extra_bytes_after_done": "sends another event after [DONE]",
    # what is wrong with the bytes
    "malformed_sse": "sends an event that is not JSON after `after` events",
    "truncated_json_event": "sends half a JSON object as an event after `after` events",
    "broken_utf8": "sends an event with an invalid byte after `after` events",
    "split_utf8": "sends its events in pieces that cut characters; nothing is wrong with them",
    "mixed_newlines": "ends lines with CRLF, CR and LF in turn; nothing is wrong with them",
    "one_byte_writes": "sends every byte by itself; nothing is wrong with them",
    "oversize_event": "sends an event of more than 1 MiB after `after` events",
    "garbage_chunk": "breaks the chunked framing after `after` events",
    "clean_close": "closes a realtime session in order after `after` events",
    # usage
    "no_usage": "never reports usage",
    "duplicate_usage": "reports usage twice, the second time with other numbers",
    "usage_every_event": "reports running usage in every event",
    # plain replies and connections
    "plain_truncated": "announces more bytes than it sends, then closes",
    "plain_not_json": "sends a body that is not JSON",
    "plain_error_200": "sends an error object with status 200",
    "connection_close_framing": "sends no length and no chunks and closes at the end; nothing is wrong with it",
    "close_idle": "closes the connection right after the reply without saying so",
    "huge_headers": "sends a reply head of 100 KiB",
    "garbage_http": "sends bytes that are not HTTP",
}
"""The effect of each fault by its name. Parameters not named here: `p` (probability), `first` (only that many requests), `every` (every
n-th)."""


class FaultRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault with its parameters. Raises ValueError for a name that does not exist."""

    name: str
    after: int = 3
    """Whole events sent before it happens."""
    delay_s: float = 1.0
    bytes_per_s: float = 1.0
    retry_after: int | None = None
    p: float = 1.0
    """Probability per request."""
    first: int | None = None
    """Only for the first n requests that the rule could apply to."""
    every: int = 1
    """Only for every n-th request."""

    def __post_init__(self) -> None:
        """Refuse unknown names."""
        if self.name not in FAULTS:
            raise ValueError(f"no fault {self.name!r}; there are: {', '.join(FAULTS)}")


def parse_rule(text: str) -> FaultRule:
    """`name` or `name:key=value,key=value`, as on the command line.

    Raises:
        ValueError: a name or parameter is unknown, or a value has the wrong type.
    """
    name, _, rest = text.partition(":")
    fields: dict[str, Any] = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, separator, value = pair.partition("=")
        if not separator:
            raise ValueError(f"fault {name!r}: {pair!r} must be key=value")
        try:
            fields[key] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            raise ValueError(f"fault {name!r}: {value!r} is no number") from None
    return rule_of(fields)


def rule_of(fields: object) -> FaultRule:
    """A rule from decoded JSON. Raises ValueError."""
    try:
        return msgspec.convert(fields, FaultRule)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


class FaultPlan:
    """Decides the fault of each request: its own, else the next queued one, else the first standing rule that applies."""

    def __init__(self, standing: Iterable[FaultRule], rng: Rng) -> None:
        self._standing = tuple(standing)
        self._seen = 0
        self._queue: deque[FaultRule] = deque(maxlen=10_000)
        self._rng = rng

    def stand(self, rules: Iterable[FaultRule]) -> None:
        """Replace the standing rules."""
        self._standing = tuple(rules)
        self._seen = 0

    def enqueue(self, rules: Iterable[FaultRule]) -> None:
        """Queue one rule for each of the next requests."""
        self._queue.extend(rules)

    def next(self, own: FaultRule | None) -> FaultRule | None:
        """The fault of a new request, whose own fault is `own`; None for none."""
        if own is not None:
            return own
        if self._queue:
            return self._queue.popleft()
        self._seen += 1
        for rule in self._standing:
            if self._seen % rule.every or (rule.first is not None and self._seen > rule.first * rule.every):
                continue
            if rule.p >= 1.0 or self._rng.random() < rule.p:
                return rule
        return None
