"""Every way a request can be refused or fail, on three axes: kind, source, retry.

The kinds form a closed vocabulary: they are the `outcome` of Records, the label of metrics and the rows of
`docs/reference/faults.md`. How a Fault looks on the wire is decided in `gateway/http/faults.py` and nowhere else.
"""

from enum import Enum
from typing import Final

import msgspec


class Source(Enum):
    """Whose side the cause is on."""

    CALLER = "caller"
    """The request, its key or its connection; sending the same again cannot help."""
    GATEWAY = "gateway"
    """The gateway: draining, out of its own capacity, or a defect."""
    ENGINE = "engine"
    """A backend, or the network to it."""


class Kind(Enum):
    """What went wrong. The value is the word used in Records, metrics and docs."""

    # the caller's connection and bytes
    MALFORMED_HTTP = "malformed_http"
    HEADERS_TOO_LARGE = "headers_too_large"
    BODY_TOO_LARGE = "body_too_large"
    UNSUPPORTED_MEDIA = "unsupported_media"
    EXPECTATION_FAILED = "expectation_failed"
    REQUEST_TIMEOUT = "request_timeout"
    CLIENT_GONE = "client_gone"
    SLOW_READER = "slow_reader"
    # the caller's identity and target
    KEY_MISSING = "key_missing"
    KEY_INVALID = "key_invalid"
    KEY_REVOKED = "key_revoked"
    UNKNOWN_PATH = "unknown_path"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    PROMPT_NOT_FOUND = "prompt_not_found"
    OBJECT_NOT_FOUND = "object_not_found"
    NOT_PERMITTED = "not_permitted"
    # the caller's limits
    REQUEST_LIMIT = "request_limit"
    TOKEN_LIMIT = "token_limit"
    CONCURRENCY_LIMIT = "concurrency_limit"
    QUOTA_SPENT = "quota_spent"
    ADDRESS_LIMIT = "address_limit"
    EXCEEDS_LIMIT = "exceeds_limit"
    # the caller's document
    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    MISSING_PARAMETER = "missing_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    CONTEXT_TOO_LONG = "context_too_long"
    REFUSED_BY_ENGINE = "refused_by_engine"
    CONTENT_FILTERED = "content_filtered"
    CRASHES_ENGINES = "crashes_engines"
    NOT_CACHED = "not_cached"
    GUARD_BLOCKED = "guard_blocked"
    # the gateway's
    OVERLOADED = "overloaded"
    SHUTTING_DOWN = "shutting_down"
    DEADLINE_PASSED = "deadline_passed"
    INTERNAL = "internal"
    IDENTITY_UNAVAILABLE = "identity_unavailable"
    QUOTA_UNKNOWN = "quota_unknown"
    GUARD_UNAVAILABLE = "guard_unavailable"
    GUARD_LIMIT = "guard_limit"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    # the engines'
    NO_BACKEND = "no_backend"
    ENGINE_BUSY = "engine_busy"
    CONNECT_FAILED = "connect_failed"
    RESET_BEFORE_REPLY = "reset_before_reply"
    ENGINE_ERROR = "engine_error"
    INVALID_REPLY = "invalid_reply"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"
    TOKEN_GAP_TIMEOUT = "token_gap_timeout"
    BROKEN_STREAM = "broken_stream"
    ENGINE_ABORTED = "engine_aborted"
    WRONG_MODEL = "wrong_model"
    BACKEND_LOST = "backend_lost"
    MODEL_NOT_SERVED = "model_not_served"
    LORA_UNAVAILABLE = "lora_unavailable"
    BACKEND_DRAINED = "backend_drained"


SOURCE: Final[dict[Kind, Source]] = (
    dict.fromkeys(Kind, Source.CALLER)
    | dict.fromkeys(
        (
            Kind.OVERLOADED,
            Kind.SHUTTING_DOWN,
            Kind.DEADLINE_PASSED,
            Kind.INTERNAL,
            Kind.QUOTA_UNKNOWN,
            Kind.IDENTITY_UNAVAILABLE,
            Kind.GUARD_UNAVAILABLE,
            Kind.GUARD_LIMIT,
            Kind.STORAGE_UNAVAILABLE,
        ),
        Source.GATEWAY,
    )
    | dict.fromkeys(
        (
            Kind.NO_BACKEND,
            Kind.ENGINE_BUSY,
            Kind.CONNECT_FAILED,
            Kind.RESET_BEFORE_REPLY,
            Kind.ENGINE_ERROR,
            Kind.INVALID_REPLY,
            Kind.FIRST_TOKEN_TIMEOUT,
            Kind.TOKEN_GAP_TIMEOUT,
            Kind.BROKEN_STREAM,
            Kind.ENGINE_ABORTED,
            Kind.WRONG_MODEL,
            Kind.BACKEND_LOST,
            Kind.MODEL_NOT_SERVED,
            Kind.LORA_UNAVAILABLE,
            Kind.BACKEND_DRAINED,
        ),
        Source.ENGINE,
    )
)
"""The source axis. A kind always has the same source, so it is a table and not an argument."""


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Whether the *caller* should send the request again."""

    should: bool
    after_s: float | None = None
    """Seconds to wait before; None when waiting makes no difference."""


NEVER: Final = Retry(should=False)
"""The same request will fail again; official clients obey `x-should-retry: false`."""


class Fault(Exception):
    """A refusal or failure, raised anywhere and rendered once.

    Args:
        kind: what went wrong.
        message: for the caller; says what was wrong and what to do. Never holds engine text, addresses,
            prompt parts or secrets.
        param: path of the offending field (`messages.0.role`), or None.
        retry: whether the caller should try again.
        detail: for operators only (log, Record); never sent to the caller.
        alone_s: seconds for which the engine asked to get no more requests; 0 when it did not ask.
        code: a more precise word for clients than the kind's own code; None for the kind's.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        param: str | None = None,
        retry: Retry = NEVER,
        detail: str | None = None,
        alone_s: float = 0.0,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.retry = retry
        self.detail = detail
        self.alone_s = alone_s
        self.code = code

    @property
    def source(self) -> Source:
        """Whose side the cause is on."""
        return SOURCE[self.kind]

    def drop_traceback(self) -> None:
        """Drop the traceback, cause and context; to be called once the Fault is handled. A stored Fault would otherwise keep alive the
        frames it was raised through and all that they refer to, a request's body too. The frames refer to the Fault in turn, so only the
        cycle collector would free them, hundreds of requests later."""
        self.__traceback__ = self.__cause__ = self.__context__ = None

    def __repr__(self) -> str:
        return f"Fault({self.kind.value}, {self.message!r}, param={self.param!r}, detail={self.detail!r})"
