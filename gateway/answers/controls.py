"""What a request says of the cache: the headers `cache-control` and `x-tidegate-cache-*`, and LiteLLM's body member `cache`. Pure."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from domain.faults import Fault, Kind

TTL_HEADER: Final = b"x-tidegate-cache-ttl"
NAMESPACE_HEADER: Final = b"x-tidegate-cache-namespace"
CONTROL_HEADER: Final = b"cache-control"
MEMBER: Final = "cache"
"""The member of a body by which clients of LiteLLM steer its cache."""

MAX_NAMESPACE_CHARS: Final = 64
NAMESPACE_PATTERN: Final = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"
_NAMESPACE: Final = re.compile(NAMESPACE_PATTERN)
_SECONDS: Final = re.compile(r"\s*([0-9]{1,9})\s*s?\s*")


class CacheControls(msgspec.Struct, frozen=True, gc=False):
    """The wishes of one request."""

    read: bool = True
    """Whether the request may be answered from the cache."""
    write: bool = True
    """Whether its answer may be kept."""
    only: bool = False
    """Whether it may be answered from the cache alone."""
    max_age_s: float | None = None
    """The oldest answer that it takes, in seconds."""
    ttl_s: float | None = None
    """How long its answer is kept, in seconds, where that is shorter than the policy says."""
    namespace: str = ""


NO_CONTROLS: Final = CacheControls()


def controls_of(headers: Mapping[bytes, bytes], member: object = None) -> CacheControls:
    """What a request says of the cache.

    Args:
        member: the value of the body's member `cache`; None without one.

    Raises:
        Fault: INVALID_VALUE for a directive that is not understood in one of our own headers, or in the member. Of `cache-control` unknown
            directives are passed over, as HTTP wants it.
    """
    if member is None and CONTROL_HEADER not in headers and TTL_HEADER not in headers and NAMESPACE_HEADER not in headers:
        return NO_CONTROLS
    said: dict[str, object] = {}
    _read_control(headers.get(CONTROL_HEADER, b"").decode("latin-1"), said)
    if TTL_HEADER in headers:
        said["ttl_s"] = _seconds(headers[TTL_HEADER].decode("latin-1"), TTL_HEADER.decode())
    if NAMESPACE_HEADER in headers:
        said["namespace"] = _namespace(headers[NAMESPACE_HEADER].decode("latin-1"), NAMESPACE_HEADER.decode())
    if member is not None:
        _read_member(member, said)
    return msgspec.convert(said, CacheControls)


def _read_control(text: str, said: dict[str, object]) -> None:
    for directive in text.lower().split(","):
        name, _, value = directive.strip().partition("=")
        if name == "no-cache":
            said["read"] = False
        elif name == "no-store":
            said["read"] = said["write"] = False
        elif name == "only-if-cached":
            said["only"] = True
        elif name == "max-age" and _SECONDS.fullmatch(value):
            said["max_age_s"] = float(value)


def _read_member(member: object, said: dict[str, object]) -> None:
    """LiteLLM's member: `{"no-cache": true, "no-store": true, "ttl": 60, "s-maxage": 60, "namespace": "…", "use-cache": true}`."""
    if not isinstance(member, dict):
        raise Fault(Kind.INVALID_VALUE, '\'cache\' is an object such as {"no-cache": true} or {"ttl": 60}.', param=MEMBER)
    for name, value in member.items():
        at = f"{MEMBER}.{name}"
        if name in ("no-cache", "no-store", "use-cache"):
            if not isinstance(value, bool):
                raise Fault(Kind.INVALID_VALUE, f"'{at}' is true or false.", param=at)
            if name == "no-cache" and value:
                said["read"] = False
            elif name == "no-store" and value:
                said["write"] = False
        elif name in ("ttl", "s-maxage", "s-max-age"):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10**9:
                raise Fault(Kind.INVALID_VALUE, f"'{at}' is a number of seconds.", param=at)
            said["ttl_s" if name == "ttl" else "max_age_s"] = float(value)
        elif name == "namespace":
            said["namespace"] = _namespace(value if isinstance(value, str) else "", at)
        else:
            shown = ", ".join(("no-cache", "no-store", "ttl", "s-maxage", "namespace"))
            raise Fault(Kind.UNSUPPORTED_PARAMETER, f"'cache' has no member of this name. It may have {shown}.", param=MEMBER)


def _seconds(text: str, at: str) -> float:
    match = _SECONDS.fullmatch(text)
    if match is None:
        raise Fault(Kind.INVALID_VALUE, f"'{at}' is a whole number of seconds.", param=at)
    return float(match[1])


def _namespace(text: str, at: str) -> str:
    if _NAMESPACE.fullmatch(text) is None:
        raise Fault(
            Kind.INVALID_VALUE,
            f"'{at}' has 1 to {MAX_NAMESPACE_CHARS} letters, digits, dots, colons, dashes and underlines, and begins with a letter or "
            "digit.",
            param=at,
        )
    return text
