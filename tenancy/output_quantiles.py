"""The usual length of the answers to a tenant's requests to a model, from which statistical reservations are made. Pure.

One histogram per tenant and model (`domain.lengths`).
"""

from collections import OrderedDict
from typing import Final

from domain.lengths import Lengths

SHARE: Final = 0.95
"""Share of the finished answers that are no longer than the usual length."""
MIN_ANSWERS: Final = 32
"""Answers below which there is no usual length: the twentieth part of fewer is one answer."""
REFRESH: Final = 16
"""Answers after which the figure is computed anew."""
MAX_PAIRS: Final = 2048
"""Pairs of tenant and model remembered, 0.7 KB each; the one unused for longest is forgotten first."""


class OutputQuantiles:
    """Learns from finished answers the length that 95 in 100 stay within. One per worker: it learns from its own requests."""

    def __init__(self, max_pairs: int = MAX_PAIRS) -> None:
        self._pairs: OrderedDict[tuple[str, str], _Pair] = OrderedDict()
        self._max_pairs = max_pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def note(self, tenant: str, model: str, tokens: int, cap: int) -> None:
        """Note an answer that ended after `tokens` output tokens, of `cap` it was allowed.

        An answer that was cut off by its cap would have been longer by an unknown amount. It counts only where it is already longer
        than the usual length; otherwise a series of small caps would make the answers seem short.
        """
        pair = (tenant, model)
        lengths = self._pairs.get(pair)
        if tokens >= cap and (lengths is None or lengths.usual is None or tokens <= lengths.usual):
            return
        if lengths is None:
            lengths = self._pairs[pair] = _Pair()
            if len(self._pairs) > self._max_pairs:
                self._pairs.popitem(last=False)
        self._pairs.move_to_end(pair)
        lengths.add(tokens)

    def usual(self, tenant: str, model: str) -> int | None:
        """Tokens that 95 in 100 finished answers stayed within; None while too few were seen."""
        lengths = self._pairs.get((tenant, model))
        return lengths.usual if lengths is not None else None


class _Pair:
    """The answers of one pair of tenant and model."""

    __slots__ = ("_lengths", "usual")

    def __init__(self) -> None:
        self._lengths = Lengths()
        self.usual: int | None = None

    def add(self, tokens: int) -> None:
        lengths = self._lengths
        lengths.add(tokens)
        if lengths.noted >= MIN_ANSWERS and lengths.noted % REFRESH == 0:
            self.usual = lengths.quantile(SHARE)
