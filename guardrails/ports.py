"""The ports of guardrails: what scans a text, and what it finds."""

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import msgspec


class Finding(msgspec.Struct, frozen=True, gc=False):
    """Something that a rule looks for, in one text."""

    rule: str
    """The id of the rule."""
    kind: str
    """What was found, in one word: `card`, `aws_key`, `word`."""
    begin: int
    """Where it begins in the original text, in characters."""
    end: int
    """Where it ends; the character at `end` is not part of it."""


class Scanned(Protocol):
    """A text with its normalised form, made once for all rules (`guardrails.text.Text`)."""

    @property
    def original(self) -> str:
        """As the caller or the engine wrote it."""
        ...

    @property
    def folded(self) -> str:
        """NFKC, casefold, without zero-width characters, homoglyphs as the ASCII letters that they look like."""
        ...

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The span of `original` that a span of `folded` was made from."""
        ...


class Scanner(Protocol):
    """One rule made ready. Pure: no I/O, no clock, no state between texts."""

    @property
    def id(self) -> str:
        """The id of the rule."""
        ...

    @property
    def longest(self) -> int | None:
        """The most characters of the original that one finding, with what has to stand around it, spans: what a stream has to hold back.
        None for a rule that has to see the whole text."""
        ...

    def scan(self, text: Scanned) -> Sequence[Finding]:
        """Every finding, in order of `begin`."""
        ...


class Detected(msgspec.Struct, frozen=True, gc=False):
    """Something that a detector says of one text."""

    kind: str
    """The detector's category: `violence`, `PERSON`, `S9`."""
    score: float
    """How sure the detector is, 0 to 1; 1 where it only says yes."""
    begin: int
    """Where it begins in the text, in characters; 0 where it concerns the whole."""
    end: int
    decided: bool = True
    """Whether the detector itself calls it a finding; False for a score below its own threshold, which counts only for rules that have a
    threshold of their own."""


class DetectorAway(Exception):
    """A detector has given no answer; the text is one word: `timeout`, `open` (its breaker), `busy`, `error`, `unreadable`."""


class Detector(Protocol):
    """A classifier that runs elsewhere. Its adapters do I/O and stand in `guardrails/detectors/`."""

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        """What the detector finds in one text, its own decisions and scores, whatever rules make of them.

        Args:
            direction: what the text is, a `guardrails.policy.Direction`.
            tenant: whose text it is; no result that was remembered for one tenant answers for another.

        Raises:
            DetectorAway: there is no answer within the detector's time.
        """
        ...


@runtime_checkable
class Bindable(Scanner, Protocol):
    """A scanner that needs the texts of the request whose answer it judges. Without them it finds nothing."""

    def bound(self, system: Sequence[str]) -> Scanner:
        """The scanner for one request.

        Args:
            system: the texts of the request's system prompt.
        """
        ...


@runtime_checkable
class CallScanner(Protocol):
    """One rule over calls of tools, made ready. Pure, as a scanner of texts is."""

    @property
    def id(self) -> str:
        """The id of the rule."""
        ...

    def reads_arguments(self, name: str) -> bool:
        """Whether what is wrong with a call of this tool may depend on its arguments."""
        ...

    def scan_call(self, name: str, arguments: str | None) -> Sequence[Finding]:
        """What is wrong with a call.

        Args:
            name: the tool's name.
            arguments: as the model wrote them, mostly JSON text; None while only the name is known.
        """
        ...


CALM_RUN: Final = 16
"""So many characters without a blank between them may be a key, whatever they are."""


@runtime_checkable
class Opening(Scanner, Protocol):
    """A scanner that can also tell where a match may be open, so that a stream passes on what stands in front of that place."""

    before: int
    """Characters in front of a finding that may decide whether it is one."""
    stirred_by: tuple[str, str, str] | None
    """Two sets of ASCII characters, each as the inside of a class of `re`, and an expression of which each match has a character of the
    second set; None where a rule has no such. Let a text begin where no match is open (`opens_at`), with calm characters alone
    (`guardrails.text.CALM`) and never `CALM_RUN` of them without a blank: where it has none of the first set and no match of the
    expression, no finding begins before the text's last blank, whatever follows. So most text needs no scan."""

    def opens_at(self, text: Scanned) -> int:
        """A position in the original: every finding that begins before it is one that `scan` of this text gives, and whatever follows
        the text makes and unmakes none."""
        ...
