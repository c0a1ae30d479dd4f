"""The limit of file descriptors (RLIMIT_NOFILE): raised to the hard limit at the start, and the callers' connections that fit below it.

A process without free descriptors accepts no connection, not even that of a probe, and cannot connect to an engine. So a worker accepts
only as many connections as it can serve, each with one to an engine.
"""

import resource
from typing import Final, Protocol

from gateway.config.load import Settings
from gateway.config.picker import MOST_CONNECTIONS

MOST_DESCRIPTORS: Final = 2**20
"""The limit that is asked for where the hard one is above it: more connections than a worker could serve."""
RESERVED: Final = 128
"""Descriptors that are not for requests: the process's own files, its stores, the polls of engines."""
FOR_EACH_CALLER: Final = 2
"""Descriptors of a request under way: the caller's connection, and the one to the engine."""
LEAST_CONNECTIONS: Final = 16
"""Connections that a worker accepts whatever the limit says."""


class Warns(Protocol):
    """A logger."""

    def warning(self, event: str, **fields: object) -> object:
        """Write one line."""
        ...


def raise_limit() -> int:
    """Raise the soft limit of this process, and of those that it starts, to the hard one; returns the limit that holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # a sandbox that forbids it: the limit stays as it is
            return soft
        return wanted
    return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def kept_descriptors(settings: Settings) -> int:
    """The descriptors of connections that are not callers': those of proxies that ask the endpoint picker."""
    return 0 if settings.picker is None else MOST_CONNECTIONS


def connections_within(descriptors: int, wanted: int, kept: int = 0) -> int:
    """The connections of callers that fit below a limit of descriptors, of which some are kept for others; at most `wanted`."""
    return min(wanted, max(LEAST_CONNECTIONS, (descriptors - RESERVED - kept) // FOR_EACH_CALLER))


def bounded_connections(wanted: int, log: Warns | None = None, *, kept: int = 0) -> int:
    """The connections of callers that this process may accept; at most `wanted`.

    Args:
        log: gets a warning where that is fewer than wanted.
        kept: descriptors for connections of others than callers: the endpoint picker's.
    """
    limit = raise_limit()
    fitting = connections_within(limit, wanted, kept)
    if fitting < wanted and log is not None:
        log.warning(
            "the limit of file descriptors bounds the connections of each worker",
            descriptors=limit,
            connections=fitting,
            max_connections=wanted,
            remedy=f"raise the hard limit to {wanted * FOR_EACH_CALLER + RESERVED + kept} (ulimit -Hn, LimitNOFILE= of systemd, "
            "--ulimit nofile= of containers), or lower data.limits.max_connections",
        )
    return fitting
