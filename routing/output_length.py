"""Expected output length of a request: online quantiles of the output tokens of similar requests. Pure.

    expected = quantile of the finest group that has been seen often enough, at most the request's own cap

Groups, finest first: (tenant, route, template, size of its cap), (tenant, route, template), (tenant, route), (route), everything. A route
is an endpoint and a model; a template is a keyed hash of the opening system message and tools, the same for all requests of one program.
Answers that were cut off by their cap are counted as censored (`domain.lengths`). Each worker learns from its own requests.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from domain.lengths import MAX_TOKENS, Lengths, bucket

MIN_ANSWERS: Final = 16
"""Answers below which a group is not used, and the next coarser one is."""
REFRESH: Final = 8
"""Answers after which a group's quantiles are computed anew; later after every eighth of its answers, at most `RARELY`."""
RARELY: Final = 64
"""Answers between two computations at most."""
KNOWN_WELL: Final = 512
"""Answers of the finest group after which only one in `ONE_IN` is noted, in it and in the coarser groups: noting takes 5 us."""
ONE_IN: Final = 4
"""Sampling of answers of a well-known group."""
MAX_GROUPS: Final = 2048
"""Groups of each kind, 0.7 to 1.2 KB each; the least recently used is forgotten first. Each kind has its own bound, so that a program that
writes the time into its system message evicts finer groups and no coarser one."""

MEDIAN: Final = 0.5
HIGH: Final = 0.9


class Expected(NamedTuple):
    """Expected output tokens of one sequence."""

    median: int
    high: int
    """90th percentile."""


PRIOR: Final = Expected(256, 1024)
"""Used before any answer was seen: chats of published traces have medians of 130 to 350 tokens."""


class OutputLengths:
    """Quantiles of output lengths, by the features of a request that are known before it is answered."""

    def __init__(self, max_groups: int = MAX_GROUPS) -> None:
        self._kinds: tuple[OrderedDict[object, _Group], ...] = tuple(OrderedDict() for _ in range(5))
        self._max_groups = max_groups

    def __len__(self) -> int:
        return sum(map(len, self._kinds))

    def note(self, tenant: str, route: str, template: int, tokens: int, cap: int | None) -> None:
        """Learn from a sequence that ended after `tokens` output tokens, with at most `cap` allowed (None: no cap)."""
        cut = cap is not None and tokens >= cap
        at = bucket(min(tokens, MAX_TOKENS))
        keys = _keys(tenant, route, template, cap)
        finest = self._kinds[0].get(keys[0])
        if finest is not None and finest.skips():
            return
        for kind, key in zip(self._kinds, keys, strict=True):
            group = kind.get(key)
            if group is None:
                group = kind[key] = _Group()
                if len(kind) > self._max_groups:
                    kind.popitem(last=False)
            kind.move_to_end(key)
            group.add(tokens, at, cut)

    def expect(self, tenant: str, route: str, template: int, cap: int | None) -> Expected:
        """The expected output tokens of one sequence of such a request, at most `cap`."""
        expected = PRIOR
        size = cap.bit_length() if cap is not None else 0
        keys = (tenant, route, template, size), (tenant, route, template), (tenant, route), route, None  # those of `_keys`, without a call
        for kind, key in zip(self._kinds, keys, strict=True):
            group = kind.get(key)
            if group is not None and group.expected is not None:
                expected = group.expected
                break
        if cap is None or cap >= expected.high:
            return expected
        return Expected(min(expected.median, cap), cap)


class _Group:
    __slots__ = ("_due", "_lengths", "_longest", "_sampled", "expected")

    def __init__(self) -> None:
        self._lengths = Lengths()
        self._longest = 0
        self._due = MIN_ANSWERS
        self._sampled = 0
        self.expected: Expected | None = None

    def skips(self) -> bool:
        """Whether the group is known so well that this answer is not noted."""
        if self._lengths.noted < KNOWN_WELL:
            return False
        self._sampled += 1
        return self._sampled % ONE_IN != 0

    def add(self, tokens: int, at: int, cut: bool) -> None:
        lengths = self._lengths
        lengths.add_to(at, cut)
        if tokens > self._longest:
            self._longest = tokens
        if lengths.noted >= self._due:
            self._due += min(max(REFRESH, self._due // 8), RARELY)
            # None: too many were cut off for a quantile, and the longest answer seen is a lower bound
            median, high = lengths.quantiles(MEDIAN, HIGH)
            self.expected = Expected(self._longest if median is None else median, self._longest if high is None else high)


def _keys(tenant: str, route: str, template: int, cap: int | None) -> tuple[object, ...]:
    size = cap.bit_length() if cap is not None else 0
    return (tenant, route, template, size), (tenant, route, template), (tenant, route), route, None
