"""How much a request is likely to generate: online quantiles of what requests like it generated. Pure.

    expected = quantile of the finest group that has been seen often enough, at most the request's own cap

Groups, finest first: (tenant, route, template, size of its cap), (tenant, route, template), (tenant, route), (route), everything. A route
is an endpoint and a model; a template is a keyed hash of the opening system message and tools, the same for all requests of one program.
Answers that were cut off by their cap count as such (`domain.lengths`). One per worker: it learns from its own requests.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from domain.lengths import Lengths

MIN_ANSWERS: Final = 16
"""Below that a group says nothing, and the next coarser one is asked."""
REFRESH: Final = 8
"""Answers after which a group's quantiles are computed anew; an eighth of all once those are more, and at most `RARELY`."""
RARELY: Final = 64
KNOWN_WELL: Final = 512
"""Answers from which on the finest group takes one in `ONE_IN` only, and those above it with it: an answer takes 5 us to note."""
ONE_IN: Final = 4
MAX_GROUPS: Final = 2048
"""Of each kind, 0.7 to 1.2 KB each; the one unused for longest is forgotten first. Kinds are bounded apart, so that a program that writes
the time into its system message pushes out finer groups and no coarser one."""

MEDIAN, HIGH = 0.5, 0.9


class Expected(NamedTuple):
    """Output tokens of one sequence."""

    median: int
    high: int
    """Nine in ten stay within it."""


PRIOR: Final = Expected(256, 1024)
"""While nothing was seen: chats of published traces have medians of 130 to 350 tokens."""


class OutputLengths:
    """What answers took, by what is known of a request before it is answered."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._kinds: tuple[OrderedDict[object, _Group], ...] = tuple(OrderedDict() for _ in range(5))
        self._max_groups = max_groups

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def note(self, tenant: str, route: str, template: int, tokens: int, cap: int | None) -> None:
        """A sequence ended after `tokens` output tokens, of `cap` it was allowed."""
        cut = cap is not None and tokens >= cap
        keys = _keys(tenant, route, template, cap)
        finest = self._kinds[0].get(keys[0])
        if finest is not None and finest.passes_over():
            return
        for kind, key in zip(self._kinds, keys, strict=True):
            group = kind.get(key)
            if group is None:
                group = kind[key] = _Group()
                if len(kind) > self._max_groups:
                    kind.popitem(last=False)
            kind.move_to_end(key)
            group.add(tokens, cut)

    def expect(self, tenant: str, route: str, template: int, cap: int | None) -> Expected:
        """What one sequence of such a request is likely to take."""
        found = PRIOR
        for kind, key in zip(self._kinds, _keys(tenant, route, template, cap), strict=True):
            group = kind.get(key)
            if group is not None and group.expected is not None:
                found = group.expected
                break
        if cap is None or cap >= found.high:
            return found
        return Expected(min(found.median, cap), cap)


class _Group:
    __slots__ = ("_due", "_lengths", "_longest", "_passed", "expected")

    def __init__(self) -> None:
        self._lengths = Lengths()
        self._longest = 0
        self._due = MIN_ANSWERS
        self._passed = 0
        self.expected: Expected | None = None

    def passes_over(self) -> bool:
        """Whether it is known so well that this answer need not be looked at."""
        if self._lengths.noted < KNOWN_WELL:
            return False
        self._passed += 1
        return self._passed % ONE_IN != 0

    def add(self, tokens: int, cut: bool) -> None:
        lengths = self._lengths
        lengths.add(tokens, cut=cut)
        self._longest = max(self._longest, tokens)
        if lengths.noted >= self._due:
            self._due += min(max(REFRESH, self._due // 8), RARELY)
            # where too many were cut off for a quantile, answers are at least as long as the longest
            median, high = lengths.quantile(MEDIAN), lengths.quantile(HIGH)
            self.expected = Expected(self._longest if median is None else median, self._longest if high is None else high)


def _keys(tenant: str, route: str, template: int, cap: int | None) -> tuple[object, ...]:
    size = cap.bit_length() if cap is not None else 0
    return (tenant, route, template, size), (tenant, route, template), (tenant, route), route, None
