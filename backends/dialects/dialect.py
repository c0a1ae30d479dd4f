"""What is known of a kind of engine."""

from collections.abc import Callable

import msgspec

from backends.signals import Signals


class LoraCalls(msgspec.Struct, frozen=True):
    """How adapters are loaded into and taken out of a running engine: two POSTs with a small JSON object each."""

    load_path: str
    unload_path: str
    name_field: str
    """Field of the adapter's name, in both calls; requests then name the adapter as their model."""
    path_field: str
    """Field of the load call for where the engine finds the weights."""


class Dialect(msgspec.Struct, frozen=True):
    """One kind of engine. Paths are below the backend's URL."""

    name: str
    health_path: str
    """Answers 200 when the process is up; it says little about whether tokens come."""
    models_path: str
    answers_as_listed: bool
    """Whether replies name a model of the model list, so that another name means another model behind the port."""
    takes_cache_salt: bool
    """Whether requests may carry `cache_salt`, which keeps tenants' prefixes apart in the engine's cache."""
    signals_path: str | None
    """Where it reports its load; None when it reports none."""
    read_signals: Callable[[bytes, float], Signals] | None
    """What was read there, and when (monotonic seconds), as Signals. Raises ValueError when it is something else."""
    lora: LoraCalls | None
    """How adapters are loaded and unloaded at run time; None when the engine cannot, or only over another port."""
    proven: bool
    """Whether it was run against the real engine, not only against recordings."""
