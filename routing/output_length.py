"""Expected output length of a request: online quantiles of the output tokens of similar requests. Pure.

    expected = quantile of the finest group that has been seen often enough, at most the request's own cap

Groups, finest first: (tenant, route, template, size of its cap), (tenant, route, template), (tenant, route), (route), everything. A route
is an endpoint and a model; a template is a keyed hash of the opening system message and tools, the same for all requests of one program.
Answers that were cut off by their cap are counted as censored (`domain.lengths`). Each worker learns from its own requests.

An answer costs each of its groups one byte. A group counts the answers it has gathered when its quantiles are due, and computes quantiles
when a request asks for them: the coarser groups of a known program are due as often as its finest one, and are not asked.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from domain.lengths import MAX_TOKENS, Lengths, bucket

MIN_ANSWERS: Final = 16
"""Answers below which a group is not used, and the next coarser one is."""
REFRESH: Final = 8
"""Answers after which a group's quantiles are due anew; later after every eighth of its answers, at most `RARELY`."""
RARELY: Final = 64
"""Answers between two computations at most."""
KNOWN_WELL: Final = 512
"""Answers of the finest group after which only one in `ONE_IN` is noted, in it and in the coarser groups: noting takes 5 us."""
ONE_IN: Final = 4
"""Sampling of answers of a well-known group."""
MAX_GROUPS: Final = 2048
"""Groups of each kind, 1.1 to 1.6 KB each; the least recently used is forgotten first. Each kind has its own bound, so that a program that
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
        self._everything = _Group(OrderedDict())
        self._kinds: tuple[_Kind, ...] = tuple(OrderedDict() for _ in range(4))
        """The groups of each kind below everything, the coarsest kind first; in each the least recently used group first."""
        self._max_groups = max_groups

    def __len__(self) -> int:
        """The groups below everything."""
        return sum(map(len, self._kinds))

    def note(self, tenant: str, route: str, template: int, tokens: int, cap: int | None) -> None:
        """Learn from a sequence that ended after `tokens` output tokens, with at most `cap` allowed (None: no cap)."""
        group = self._everything
        groups: list[_Group] = []
        for name in (route, tenant, template, _size(cap)):
            group = group.finer.get(name) or self._group(self._kinds[len(groups)], group, name)
            groups.append(group)
        if group.skips():
            return
        cut = cap is not None and tokens >= cap
        at = bucket(tokens if tokens < MAX_TOKENS else MAX_TOKENS)
        self._everything.add(tokens, at, cut)
        for group in groups:
            group.kind.move_to_end(group)
            group.add(tokens, at, cut)

    def expect(self, tenant: str, route: str, template: int, cap: int | None) -> Expected:
        """The expected output tokens of one sequence of such a request, at most `cap`."""
        finer: _Group | None = self._everything
        known = None
        for name in (route, tenant, template, _size(cap), None):
            if finer is None:
                break
            if finer.known:
                known = finer
            finer = finer.finer.get(name)
        expected = PRIOR if known is None else known.expected or known.compute()
        if cap is None or cap >= expected.high:
            return expected
        return Expected(min(expected.median, cap), cap)

    def _group(self, kind: "_Kind", coarser: "_Group", name: object) -> "_Group":
        """A new group of this kind, in the place of the least recently used one at the bound. Whatever is finer than a forgotten group is
        reached no more, and forgotten when its turn comes."""
        group = coarser.finer[name] = _Group(kind, coarser, name)
        kind[group] = None
        if len(kind) > self._max_groups:
            oldest, _ = kind.popitem(last=False)
            if oldest.coarser is not None:
                del oldest.coarser.finer[oldest.name]
        return group


_Kind = OrderedDict["_Group", None]


def _size(cap: int | None) -> int:
    return 0 if cap is None else cap.bit_length()


class _Group:
    __slots__ = (
        "_cut",
        "_due",
        "_ended",
        "_lengths",
        "_longest",
        "_longest_then",
        "_noted",
        "_sampled",
        "coarser",
        "expected",
        "finer",
        "kind",
        "known",
        "name",
    )

    def __init__(self, kind: "_Kind", coarser: "_Group | None" = None, name: object = None) -> None:
        self.kind = kind
        """The groups of its kind."""
        self.coarser = coarser
        """The group that it is a part of; None for everything."""
        self.name = name
        """Its key in that group's `finer`."""
        self.finer: dict[object, _Group] = {}
        """The groups that are parts of this one, by what distinguishes them."""
        self._lengths = Lengths()
        self._ended = bytearray()
        """Buckets of the answers that ended by themselves since the quantiles were last due."""
        self._cut = bytearray()
        """Buckets of the answers that their cap has cut off since then."""
        self._longest = self._longest_then = 0
        self._noted = 0
        self._due = MIN_ANSWERS
        self._sampled = 0
        self.known = False
        """Whether there were enough answers for quantiles."""
        self.expected: Expected | None = None
        """The quantiles when they were last due; None until `compute` is asked for them."""

    def skips(self) -> bool:
        """Whether the group is known so well that this answer is not noted."""
        if self._noted < KNOWN_WELL:
            return False
        self._sampled += 1
        return self._sampled % ONE_IN != 0

    def add(self, tokens: int, at: int, cut: bool) -> None:
        (self._cut if cut else self._ended).append(at)
        if tokens > self._longest:
            self._longest = tokens
        self._noted += 1
        if self._noted >= self._due:
            self._due += min(max(REFRESH, self._due // 8), RARELY)
            self._lengths.add_all(self._ended, self._cut)
            self._ended.clear()
            self._cut.clear()
            self._longest_then = self._longest
            self.known, self.expected = True, None

    def compute(self) -> Expected:
        """The quantiles when they were last due."""
        # None: too many were cut off for a quantile, and the longest answer seen is a lower bound
        median, high = self._lengths.quantiles(MEDIAN, HIGH)
        longest = self._longest_then
        self.expected = Expected(longest if median is None else median, longest if high is None else high)
        return self.expected
