"""The same piece of text many times in a row, as a model writes it that has lost its way. Pure; linear in the text's length.

A row is a stretch of the folded text in which every character is the one a unit before it, the unit being the shortest for which that
holds. `max_times` units of it may stand there, and `min_chars` characters in any case. The finding is the first unit behind them: the place
where a text has to end, so that a stream is cut there and has released what stands before.

How rows are found: of a unit of up to 2^k characters, a piece of 2^k characters of the row stands again exactly one unit later (Fine and
Wilf: were it sooner, the unit would not be the shortest). A row is much longer than its unit, so for each k a piece is looked up only
every so often, and its row is measured once.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.text import held_from, last_sure

VERSION: Final = "repetition 1"
LEAST_TIMES: Final = 5
"""With fewer a row would be too short to be met by the look-ups."""


class Repetition:
    """Finds where the same is said too often.

    Args:
        rule: the id of the rule.
        max_times: units that may stand in a row, at least `LEAST_TIMES`.
        max_unit_chars: characters of the longest unit.
        min_chars: characters of a row that may stand in any case.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    version = VERSION

    def __init__(self, rule: str, *, max_times: int = 20, max_unit_chars: int = 200, min_chars: int = 200) -> None:
        if max_times < LEAST_TIMES:
            raise ValueError(f"max_times is {max_times}; at least {LEAST_TIMES} times can be told from common writing")
        if max_unit_chars < 1 or min_chars < 1:
            raise ValueError("max_unit_chars and min_chars are at least 1")
        self._rule = rule
        self._times = max_times
        self._unit = max_unit_chars
        self._least = min_chars
        scales = [1]
        while scales[-1] < max_unit_chars:
            scales.append(min(2 * scales[-1], max_unit_chars))
        # a row of the shortest unit of a scale has to hold one look-up wherever it begins
        self._scales = [(scale, self._allowed(scale // 2 + 1) - scale) for scale in scales]

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> int:
        """What may stand, the unit behind it, and the unit in front that shows where the row begins."""
        return self._allowed(self._unit) + 2 * self._unit + 2

    def scan(self, text: Scanned) -> Sequence[Finding]:
        folded = text.folded
        places = set()
        for scale, step in self._scales:
            for begin, end, unit in _rows(folded, scale, step):
                cut = begin + self._allowed(unit)
                if cut + unit <= end:
                    places.add((cut, cut + unit))
        return [Finding(self._rule, "repetition", *text.span(*place)) for place in sorted(places)]

    @property
    def before(self) -> int:
        return self.longest

    @property
    def stirred_by(self) -> None:
        """None: what such a rule looks for may begin with any character."""
        return None

    def opens_at(self, text: Scanned) -> int:
        """Where a finding may begin that more text would make or unmake: one that reaches the last character, which a combining mark may
        still change."""
        folded = text.folded
        opens = last = last_sure(text)
        for scale, _ in self._scales:
            piece = folded[max(0, last - scale) : last]
            again = folded.rfind(piece, max(0, last - 2 * scale), last - 1) if len(piece) == scale else -1
            if again >= 0:
                unit = last - scale - again
                opens = min(opens, max(_row_begin(folded, again, unit) + self._allowed(unit), last - unit))
        return held_from(text, opens)

    def _allowed(self, unit: int) -> int:
        """Characters of a row that may stand."""
        return max(self._times * unit, self._least)


def _rows(text: str, scale: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Begin, end and unit of the rows whose unit has at most `scale` characters, of which a look-up every `step` characters meets one."""
    at = 0
    while at + scale < len(text):
        again = text.find(text[at : at + scale], at + 1, at + 2 * scale)
        if again < 0:
            at += step
            continue
        unit = again - at
        begin, end = _row_begin(text, at, unit), _row_end(text, at, unit)
        yield begin, end, unit
        # the look-ups that would meet the same row are left out
        at += step * max(1, -(-(end - unit - scale - at + 1) // step))


def _row_end(text: str, at: int, unit: int) -> int:
    """Where the characters from `at` on stop to be the ones a unit before them."""
    size, behind = 64, at + unit
    while text[at : at + size] == text[behind : behind + size]:
        if behind + size >= len(text):
            return len(text)
        at, behind, size = at + size, behind + size, 2 * size
    while size > 1:
        size //= 2
        if text[at : at + size] == text[behind : behind + size]:
            at, behind = at + size, behind + size
    return behind


def _row_begin(text: str, at: int, unit: int) -> int:
    """Where the row begins to which the unit at `at` and the one behind it belong."""
    size = 64
    while at - size >= 0 and text[at - size : at] == text[at - size + unit : at + unit]:
        at, size = at - size, 2 * size
    while size > 1:
        size //= 2
        if at - size >= 0 and text[at - size : at] == text[at - size + unit : at + unit]:
            at -= size
    return at
