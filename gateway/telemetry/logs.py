"""The process's own log on stderr through structlog, JSON lines or lines for people, with secrets removed before a line is made.

`configure_logs` also takes in the messages of libraries that use `logging`. `redact` knows patterns of secrets, not where they come from;
every caller has to keep secrets away from loggers in the first place, this is the second safeguard (requirement R37). `Thresholds` logs a
line when a request crosses a soft limit, at most one per limit and minute.
"""

import logging
import re
import sys
from collections.abc import Mapping
from typing import Final, Protocol, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from domain.clock import Clock
from gateway.record import Record
from gateway.telemetry.access_log import without_hidden

_people = False
"""Set once, before the fork."""

REDACTED: Final = "[redacted]"
MAX_TEXT_CHARS: Final = 8192
"""Characters kept of one value: a traceback fits, a request body does not."""
MAX_DEPTH: Final = 4
"""Levels of nesting that are searched for secrets; deeper values are left out, because unsearched values are unsafe."""
MAX_ITEMS: Final = 100
"""Members of a list or mapping that are written."""

CHATTY: Final = ("alembic", "uvicorn", "asyncio", "httpx", "httpcore")
"""Libraries that log every step; only their warnings are written. httpx writes whole URLs, which may be signed ones of callers' images."""

SECRET_NAMES: Final = frozenset(
    {"authorization", "proxy-authorization", "x-api-key", "api-key", "apikey", "cookie", "set-cookie"}
    | {"key", "secret", "pepper", "password", "passwd", "token", "credential", "credentials", "private-key"}
)
"""Names (lower case, `_` as `-`) whose values are never written. Whole names: `key_id` and `prompt_tokens` are no secrets."""

_SECRET_TEXT: Final = (
    # Our API keys keep their public id, which operators search for: gw_<env>_<id10>_<secret43><crc6>.
    (re.compile(r"\b(gw_[A-Za-z0-9]{1,16}_[A-Za-z0-9]{10}_)[A-Za-z0-9_\-]+"), rf"\g<1>{REDACTED}"),
    (re.compile(r"\bgw_(?!\w{1,16}_[A-Za-z0-9]{10}_\[)[A-Za-z0-9_\-]{12,}"), f"gw_{REDACTED}"),
    (re.compile(r"\bsk-[A-Za-z0-9_\-]{8,}"), f"sk-{REDACTED}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), REDACTED),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/\-]+=*"), rf"\g<1> {REDACTED}"),
    (re.compile(r"(?i)\b((?:authorization|(?:x-)?api-key|cookie|set-cookie)\b['\"]?\s*[:=]\s*)[^\r\n]+"), rf"\g<1>{REDACTED}"),
    (re.compile(r"(://[^/\s:@]*:)[^/\s@]+@"), rf"\g<1>{REDACTED}@"),
)


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: removes secrets, hidden characters and excess length from every value, at any depth that is written."""
    return {_clean_text(name): _clean_named(name, value, 0) for name, value in list(event.items())[:MAX_ITEMS]}


def redact_text(text: str) -> str:
    """`text` with everything that looks like a secret replaced by `[redacted]`."""
    for pattern, replacement in _SECRET_TEXT:
        text = pattern.sub(replacement, text)
    return text


def _clean_named(name: object, value: object, depth: int) -> object:
    if str(name).lower().replace("_", "-") in SECRET_NAMES:
        return REDACTED
    return _clean(value, depth)


def _clean(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        value = value[:MAX_TEXT_CHARS].decode("utf-8", "replace")
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= MAX_DEPTH:
        return "[too deep]"
    if isinstance(value, Mapping):
        return {_clean_text(k): _clean_named(k, v, depth + 1) for k, v in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        pairs = list(value)[:MAX_ITEMS]
        return [_clean(item, depth + 1) for item in pairs]
    return _clean_text(value)


def _clean_text(value: object) -> str:
    # Redacted before it is cut, else half a secret at the cut would no longer be recognised. Ten times the limit is
    # searched, to bound the work.
    return without_hidden(redact_text(str(value)[: MAX_TEXT_CHARS * 10]))[:MAX_TEXT_CHARS]


def _render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return msgspec.json.encode(event).decode()


def write_for_people(wanted: bool) -> None:
    """Choose lines for people, or JSON lines (the default), for this process and those that are forked from it."""
    global _people
    _people = wanted


def for_people() -> bool:
    """Whether the log is for people, and not for programs."""
    return _people


def configure_logs(level: str = "info", stream: TextIO | None = None, **fields: str | int) -> None:
    """Sends structlog and `logging` to `stream` (stderr) as JSON lines, or as lines for people; call once per process, after the fork.

    Args:
        level: debug, info, warning or error. Raises ValueError for anything else.
        fields: written in every line, for instance `worker=0`.
    """
    numbers = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level not in numbers:
        raise ValueError(f"log level {level!r}: must be one of {', '.join(numbers)}")
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.contextvars.clear_contextvars()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(numbers[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )

    def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**fields, **event}

    target = stream or sys.stderr
    render = structlog.dev.ConsoleRenderer(colors=target.isatty()) if for_people() else _render
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            # `redact` comes last before rendering, so no field that is added on the way escapes it.
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, add_fields, redact, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(numbers[level])
    for name in CHATTY:
        logging.getLogger(name).setLevel(max(numbers[level], logging.WARNING))


SOFT_LIMIT_QUIET_S: Final = 60.0
"""The shortest time between two lines about one limit: a rate's threshold may be crossed many times a second."""
MAX_LOGGED_LIMITS: Final = 2000
"""Limits that are remembered as logged; beyond it the one logged longest ago is logged again."""


class Tells(Protocol):
    """A logger."""

    def warning(self, event: str, **fields: object) -> object:
        """Write one line."""
        ...


class Thresholds:
    """Watches finished requests for crossed soft limits; one per worker."""

    def __init__(self, log: Tells, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._quiet_until: dict[tuple[str, str], float] = {}

    def observe(self, record: Record) -> None:
        """Log the soft limits that a request has crossed. The end user is not named."""
        now = self._clock()
        for limit in record.soft_limits:
            key = (record.tenant, limit)
            if now < self._quiet_until.get(key, now):
                continue
            self._quiet_until.pop(key, None)
            if len(self._quiet_until) >= MAX_LOGGED_LIMITS:
                del self._quiet_until[next(iter(self._quiet_until))]
            self._quiet_until[key] = now + SOFT_LIMIT_QUIET_S
            self._log.warning(
                "soft threshold crossed",
                limit=limit,
                tenant=record.tenant,
                project=record.project,
                key_id=record.key_id,
                model=record.model,
            )
