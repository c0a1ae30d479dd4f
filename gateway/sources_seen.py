"""Where backends come from, as all workers together see it: each worker reads the sources itself."""

from collections.abc import Iterable

from domain.membership import SourceState
from gateway.worker_link import WorkerSnapshot


def sources_seen(workers: Iterable[WorkerSnapshot]) -> list[SourceState]:
    """Every source as all workers together see it: in trouble when one of them is, with the oldest answer."""
    found: dict[tuple[str, str], SourceState] = {}
    for worker in workers:
        for seen in worker.sources:
            known = found.get((seen.pool, seen.name))
            worse = known is None or (not known.trouble and (seen.trouble != "" or (seen.age_s or 0.0) > (known.age_s or 0.0)))
            found[seen.pool, seen.name] = seen if known is None or worse else known
    return [found[key] for key in sorted(found)]


def clashes_seen(workers: Iterable[WorkerSnapshot]) -> list[str]:
    """What any worker finds contradictory."""
    return sorted({clash for worker in workers for clash in worker.clashes})
