"""What callgrind wrote: instructions by thread, of each part of a run."""

import re
from collections.abc import Iterable
from typing import NamedTuple

_FIELD = re.compile(r"^(thread|part|totals|summary): (\d+)|^(desc): Trigger: (.*)$", re.MULTILINE)


class Dump(NamedTuple):
    """One file: what one thread did in one part of a run."""

    trigger: str
    """What the part was ended by, in the words that `callgrind_control --dump=…` was given."""
    thread: int
    """From 1 in the order in which threads began; 1 is the main thread, which serves."""
    instructions: int


def read_dump(text: str) -> Dump:
    """One file that callgrind wrote with `--separate-threads=yes`. Raises ValueError for anything else."""
    found = {name or desc: number or words for name, number, desc, words in _FIELD.findall(text)}
    if missing := {"thread", "desc"} - found.keys():
        raise ValueError(f"no {' and no '.join(sorted(missing))} line: this is no dump of one thread")
    if "totals" not in found:
        raise ValueError("no totals line: the dump was cut short")
    return Dump(found["desc"].removeprefix("dump "), int(found["thread"]), int(found["totals"]))


def by_thread(dumps: Iterable[Dump], trigger: str) -> dict[int, int]:
    """Instructions by thread of the part that ended with these words."""
    return {one.thread: one.instructions for one in dumps if one.trigger == trigger}


def per_request(busy: dict[int, int], idle: dict[int, int], requests: int) -> dict[int, float]:
    """Thousands of instructions by thread that one request cost: those of a stretch of time with requests, less those of one as long
    without, by the number of requests."""
    return {thread: (busy[thread] - idle.get(thread, 0)) / requests / 1000 for thread in sorted(busy)}
