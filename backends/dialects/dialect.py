"""What is known of a kind of engine."""

import msgspec


class Dialect(msgspec.Struct, frozen=True):
    """One kind of engine. Paths are below the backend's URL."""

    name: str
    health_path: str
    """Answers 200 when the process is up; it says little about whether tokens come."""
    models_path: str
    takes_cache_salt: bool
    """Whether requests may carry `cache_salt`, which keeps tenants' prefixes apart in the engine's cache."""
    proven: bool
    """Whether it was run against the real engine, not only against recordings."""
