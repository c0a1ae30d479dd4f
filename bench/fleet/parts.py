"""What of a workload runs and what is scored: the sealed part of a trace, tenants, and the requests that warm the caches up."""

from collections import defaultdict
from typing import Final

import msgspec

from routing.simulation.draws import zipf, zipf_weights
from routing.simulation.figures import Figures, figures
from routing.simulation.fleet_file import FleetFile
from routing.simulation.outcomes import Outcomes
from routing.simulation.turns import Dice, Workload

SEALED: Final = 0.2
"""Share of a trace's requests, the last ones, that only a final report may run."""
WARM_UP: Final = 0.2
"""Share of the requests, the earliest, that are not scored: they meet empty caches."""
TENANTS: Final = 20


def split(workload: Workload, *, sealed: bool) -> Workload:
    """The open part of a trace, or the sealed one, which begins at 0. Conversations stay whole.

    The cut goes by the order of the trace, not by times, which may be drawn: it is the same for every seed.
    """
    turns = workload.turns
    cut = round(len(turns) * (1.0 - SEALED))
    # all turns of a session have the time of its beginning
    while 0 < cut < len(turns) and (turns[cut].after >= 0 or turns[cut].at_s == turns[cut - 1].at_s):
        cut += 1
    root: list[int] = []
    for at, turn in enumerate(turns):
        root.append(at if turn.after < 0 else root[turn.after])
    chosen = [at for at in range(len(turns)) if (root[at] >= cut) == sealed]
    place = {old: new for new, old in enumerate(chosen)}
    start = min((turns[at].at_s for at in chosen), default=0.0)
    kept = [
        msgspec.structs.replace(
            turns[at], at_s=turns[at].at_s - start, after=place.get(turns[at].after, -1) if turns[at].after >= 0 else -1
        )
        for at in chosen
    ]
    name = "sealed" if sealed else "open"
    return Workload(workload.name, kept, workload.block_tokens, [*workload.notes, f"the {name} part: {len(kept):,} of {len(turns):,}"])


def dealt(workload: Workload, dice: Dice) -> Workload:
    """The workload with requests that have no tenant dealt to `TENANTS` by Zipf, a session to one of them."""
    rng, weights = dice("tenants"), zipf_weights(TENANTS)
    owner: defaultdict[int, str] = defaultdict(lambda: f"tenant-{zipf(rng, weights)}")
    turns = [
        turn if turn.tenant else msgspec.structs.replace(turn, tenant=owner[turn.session or -at - 1])
        for at, turn in enumerate(workload.turns)
    ]
    return Workload(workload.name, turns, workload.block_tokens, workload.notes)


def scored(workload: Workload) -> list[int]:
    """The positions of the requests that count: all but the earliest, by when each would arrive if answers took no time."""
    starts = workload.starts()
    by_time = sorted(range(len(starts)), key=lambda at: (starts[at], at))
    return sorted(by_time[round(len(starts) * WARM_UP) :])


def scored_figures(workload: Workload, fleet: FleetFile, outcomes: Outcomes, chosen: list[int]) -> Figures:
    """The figures of these requests alone."""
    columns = {
        name: [getattr(outcomes, name)[at] for at in chosen]
        for name in ("arrived", "first", "ended", "cached", "predicted", "engine", "state")
    }
    only = Outcomes(**columns, preemptions=outcomes.preemptions, retries=outcomes.retries, finished_at=outcomes.finished_at)
    return figures(Workload(workload.name, [workload.turns[at] for at in chosen], workload.block_tokens), fleet, only)
