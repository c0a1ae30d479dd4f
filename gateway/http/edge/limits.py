"""The bounds of a caller's connection, with the reason for each default. Filled from `data.limits` in tidegate.yaml."""

import msgspec


class EdgeLimits(msgspec.Struct, frozen=True):
    """Bounds of one connection and of all of them; sizes in bytes, times in seconds."""

    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body, declared or counted. Long prompts are about 1 MiB; the rest is room for inline images."""
    max_header_bytes: int = 16 * 1024
    """Largest head of a request: names and values, trailers included. nginx allows 4 x 8 KiB, llhttp's users mostly 16 KiB; a larger
    head towards an engine is a known way to crash one (CVE-2025-48956)."""
    max_headers: int = 64
    """Most header lines of one request; SDKs send under 25."""
    max_connections: int = 20_000
    """Most connections per worker; beyond it the longest idle one is closed, and with none idle the new one is refused."""
    header_timeout_s: float = 10.0
    """Longest time from the first byte of a request to the end of its head; ends a slowloris."""
    body_timeout_s: float = 30.0
    """Longest time from the end of the head to the end of the body."""
    min_body_rate_bytes_per_s: int = 1024
    """Least average rate of a body that has been coming for 5 s; below it the body is a slowloris too."""
    keepalive_s: float = 75.0
    """How long a connection may be idle between requests; nginx's value, above most clients' pools."""
    reply_buffer_bytes: int = 256 * 1024
    """Unsent reply bytes per connection at which reading from the engine pauses."""
    reply_buffers_total_bytes: int = 512 * 1024 * 1024
    """Unsent reply bytes of all of a worker's slow readers together; beyond it the ones slow for longest are cut off. Room for 2,048
    connections at the bound above: more are no accident."""
    slow_reader_s: float = 30.0
    """How long a reply may stay paused before its caller is cut off."""
