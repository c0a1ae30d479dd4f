"""The rules of a chain over a text that arrives in pieces, for one channel of an answer. Sans-I/O.

A channel is one choice's text, the arguments of one tool call, or one choice's reasoning. What a window releases is, put together, the
text that `Chain.judge` passes of the whole, however it was cut into pieces, where each rule is local: whether a span is a finding depends
on nothing but the `longest` characters around it. A rule that takes matches one after the other is local unless they can overlap
(`[0-9]{4}` in a long row of digits); of such a row the whole text and a stream may show different characters, each of no match.

What is held back: where every rule tells where a match may be open (`Opening`), the text from that place on, which in prose is the last
word. For a rule that does not, the last `longest` characters: one less could still belong to a match, and the last character is not known
while a combining mark may follow it. Characters that normalisation removes or joins to others (zero-width ones, combining marks) are held
in addition, so that a value with such characters inside is held as well.

What is scanned: nothing, where the held text and the piece have only calm characters and nothing in them stirs a rule
(`Opening.stirred_by`). Else the held characters, as many before them as a finding depends on, and the piece: at most
`longest + before + len(piece)` where nothing zero-width stands there, whatever came before.

Rules that flag or shadow delay nothing. They see the text when it ends, or whenever `NOTED_CHARS` of it have come.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from guardrails.chain import Chain, Spot, owned
from guardrails.ports import CALM_RUN, Scanned
from guardrails.text import WEIGHTLESS
from guardrails.verdict import Ended, GuardVerdict, Noted

NOTED_CHARS: Final = 256 * 1024
"""Characters that flagging and shadow rules look at in one go. A finding that lies across two of these parts is not noted."""

MOST_BEHIND: Final = 1024
"""Characters in front of the held ones that are kept before they are cut to what a scan needs; cutting them each time costs more."""

MOST_CALM: Final = 128
"""Characters without a blank that are held without a scan; more are scanned, so that a rule can say what is open."""

LONG_HELD: Final = 512
"""Characters that are held from which on more than one piece is gathered before they are scanned again: a 32nd of what is held. A text that
stays open for thousands of characters, such as `AKIAAKIA…`, is scanned in its own time and not in the square of it. What is open anyway
comes later by a 32nd of its length at most."""

MOST_WEIGHTLESS: Final = 4096
"""Zero-width characters and combining marks that are held in addition. No language has them in such numbers; without a bound, an answer
of nothing else would be scanned again as a whole with each piece."""

_BACK_CHARS: Final = 256
"""Characters that are looked through at a time for those that take room."""

_LONG_RUN: Final = re.compile(rf"\S{{{CALM_RUN}}}").search


class Released(msgspec.Struct, frozen=True, gc=False):
    """What may be passed on after a call of a window."""

    text: str = ""
    ended: Ended = ""
    """Why the channel is cut behind `text`; empty while it is not."""
    by: str = ""
    """The rule that cuts it."""
    doomed: str = ""
    """The rule that will cut the channel whatever follows, although text in front of its finding is still held. Whoever does not wait for
    that text ends the engine's answer now and calls nothing more."""


NOTHING: Final = Released()


class GuardWindow:
    """One channel of an answer, as it arrives.

    Args:
        chain: the rules. Those of `chain.needs_whole` make the window hold everything until the end.
        most_held: characters that may be held; where more would have to be, the channel is cut with `too_long`.
        stride: characters that are gathered before they are scanned. More than 1 saves scans and delays each piece by less than that.
    """

    __slots__ = (
        "_begin",
        "_buffer",
        "_chain",
        "_ended",
        "_failed",
        "_findings",
        "_frontier",
        "_known",
        "_most_held",
        "_noted_chars",
        "_noted_from",
        "_owner",
        "_owner_end",
        "_parts",
        "_stirred",
        "_stride",
        "_to_note",
        "_unscanned",
    )

    def __init__(self, chain: Chain, *, most_held: int = 1024 * 1024, stride: int = 1) -> None:
        self._chain = chain
        self._most_held = most_held
        self._stride = stride
        self._stirred = None if chain.needs_whole else chain.stirred
        self._buffer = ""
        self._begin = 0
        """Where the buffer begins in the whole text."""
        self._frontier = 0
        """Every character before it has been released or replaced."""
        self._known: list[Spot] = []
        """Decided findings that reach beyond the frontier."""
        self._owner: Spot | None = None
        """The finding that was replaced last; its characters behind the frontier are not replaced again."""
        self._owner_end = 0
        """Where the characters end that were replaced last."""
        self._unscanned = 0
        self._parts: list[str] = []
        self._to_note: list[str] = []
        self._noted_chars = 0
        self._noted_from = 0
        self._findings: list[Spot] = []
        self._failed: set[int] = set()
        self._ended: tuple[Ended, str, int | None] = ("", "", None)

    def feed(self, piece: str) -> Released:
        """The text that may be passed on now that `piece` has come."""
        if self._ended[0] or not piece:
            return self._after_end()
        if self._chain.noting:
            self._gather(piece)
        if not self._chain.changing:
            return Released(piece)
        if self._stirred is not None and not self._unscanned and not self._known:
            buffer = self._buffer + piece
            low = self._frontier - self._begin
            if _is_calm(self._stirred, buffer, low):
                cut = max(buffer.rfind(" ", low), buffer.rfind("\n", low))
                if cut > low:
                    self._buffer = buffer
                    self._frontier += cut - low
                    if cut > MOST_BEHIND:
                        self._trim()
                    return Released(buffer[low:cut])
                if len(buffer) - low <= MOST_CALM:
                    self._buffer = buffer
                    return NOTHING
        self._unscanned += len(piece)
        if self._chain.needs_whole:
            self._parts.append(piece)
            return NOTHING if self._unscanned <= self._most_held else self._cut("too_long", "", None)
        self._buffer += piece
        held = self._begin + len(self._buffer) - self._frontier
        stride = self._stride if held < LONG_HELD else max(self._stride, held // 32)
        return self._step(final=False) if self._unscanned >= stride else NOTHING

    def idle(self) -> Released:
        """The text that may be passed on when nothing has come for a while: what was only gathered is scanned. What may belong to a match
        stays held, however long nothing comes."""
        if self._ended[0] or not self._unscanned or self._chain.needs_whole or not self._chain.changing:
            return self._after_end()
        return self._step(final=False)

    def end(self) -> Released:
        """The rest of the text, once no piece follows."""
        if self._ended[0]:
            return self._after_end()
        released = NOTHING
        if self._chain.changing:
            if self._parts:
                self._buffer = "".join(self._parts)
                self._parts.clear()
            released = self._step(final=True)
        self._note()
        return released

    def verdict(self) -> GuardVerdict:
        """What the rules have said so far; after `end`, about the whole. It is the one of `Chain.judge` but for the text, and for flags
        and shadows of a channel that was cut: these rules saw only what had come."""
        ended, by, cut = self._ended
        names = tuple([self._chain.rules[at].scanner.id for at in sorted(self._failed)])
        findings: tuple[Noted, ...] = self._chain.noted(sorted(self._findings))
        return GuardVerdict(findings=findings, ended=ended, by=by, cut=cut, failed=names, text=None)

    @property
    def held(self) -> int:
        """Characters that have come and that have been neither released nor replaced."""
        return self._unscanned if self._parts else self._begin + len(self._buffer) - self._frontier

    def _step(self, *, final: bool) -> Released:
        """Scan what is held, and release what is decided: every character of which no finding can begin that is not known yet."""
        chain, buffer, begin, frontier = self._chain, self._buffer, self._begin, self._frontier
        self._unscanned = 0
        scanned = chain.read(buffer)
        spots, failed = chain.spots(chain.changing, scanned, begin)
        if failed:
            self._failed.update(failed)
            refuser = chain.refuser(failed)
            if refuser is not None:
                return self._cut("unavailable", refuser, None)
        closed = {} if final else self._closed(scanned)
        least = min(closed.values(), default=len(buffer))
        decided = begin + len(buffer) if final else max(frontier, begin + least)
        if spots or self._known:
            text, block, doomed = self._resolved(spots, decided, closed)
            if block is not None:
                self._cut("block", chain.rules[block.at].scanner.id, block.begin)
                return Released(text, *self._ended[:2])
        else:
            text, doomed = buffer[frontier - begin : decided - begin], ""
        self._frontier = decided
        self._trim()
        if begin + len(buffer) - decided > min(self._most_held, chain.longest + MOST_WEIGHTLESS) and not final:
            cut = self._cut("too_long", "", None)
            return Released(text, cut.ended)
        return Released(text, doomed=doomed) if text or doomed else NOTHING

    def _resolved(self, spots: list[Spot], decided: int, closed: Mapping[int, int]) -> tuple[str, Spot | None, str]:
        """The text up to the place that is decided, the finding that cuts it, and the rule that will cut it later."""
        chain, frontier = self._chain, self._frontier
        known = self._known
        fresh = [spot for spot in spots if spot.end > frontier and spot.begin < decided and spot not in known]
        known = known + fresh
        block = chain.first_block(known)
        limit = decided if block is None else max(frontier, block.begin)
        self._findings += fresh if block is None else [spot for spot in fresh if spot.begin <= block.begin]
        self._known = [spot for spot in known if spot.end > decided]
        text = self._changed(chain.edits(known), limit)
        doomed = ""
        if block is None:
            later = chain.first_block(
                [spot for spot in spots if spot.begin >= decided and spot.begin - self._begin < closed.get(spot.at, 0)]
            )
            doomed = "" if later is None else chain.rules[later.at].scanner.id
        return text, block, doomed

    def _changed(self, edits: list[Spot], limit: int) -> str:
        """The text from the frontier to `limit`, with replacements; each finding is replaced once, where its first character stands."""
        begin, done = self._begin, self._frontier
        parts = []
        for run in owned(edits, done, limit):
            parts.append(self._buffer[done - begin : run.begin - begin])
            if run.spot != self._owner:
                if run.begin > self._owner_end or not self._chain.joined(run.spot, self._owner):
                    parts.append(self._chain.mark(run.spot))
                self._owner = run.spot
            done = self._owner_end = run.end
        parts.append(self._buffer[done - begin : limit - begin])
        return "".join(parts)

    def _closed(self, scanned: Scanned) -> dict[int, int]:
        """For each rule by its place in the chain, the position in the buffer before which no finding begins that the scan did not give,
        and nothing that follows unmakes one."""
        chain, buffer = self._chain, self._buffer
        length = len(buffer)
        closed = {at: _back(buffer, length, scanner.longest or 0) for at, scanner in chain.changing}
        for at, scanner in chain.openings:
            try:
                closed[at] = max(closed[at], min(scanner.opens_at(scanned), length))
            except Exception:  # noqa: BLE001 - without this answer the window holds what it holds for any other rule
                self._failed.add(at)
        return closed

    def _trim(self) -> None:
        """Forget what no scan needs any more: all but the characters before the frontier that findings behind it depend on, and at most
        `MOST_BEHIND` of no width among them."""
        low, before = self._frontier - self._begin, self._chain.before
        keep = max(_back(self._buffer, low, before), low - before - MOST_BEHIND)
        if keep > 0:
            self._buffer = self._buffer[keep:]
            self._begin += keep

    def _gather(self, piece: str) -> None:
        """Keep a piece for the rules that only note."""
        self._to_note.append(piece)
        self._noted_chars += len(piece)
        if self._noted_chars >= NOTED_CHARS:
            self._note()

    def _note(self) -> None:
        """Let the rules that only note see what has come since they last did."""
        if not self._to_note:
            return
        text = "".join(self._to_note)
        spots, failed = self._chain.spots(self._chain.noting, self._chain.read(text), self._noted_from)
        self._findings += spots
        self._failed.update(failed)
        self._noted_from += len(text)
        self._noted_chars = 0
        self._to_note.clear()

    def _cut(self, ended: Ended, by: str, cut: int | None) -> Released:
        """End the channel; what is held is dropped."""
        self._ended = (ended, by, cut)
        self._buffer = ""
        self._begin = self._frontier
        self._parts.clear()
        self._known.clear()
        self._note()
        return self._after_end()

    def _after_end(self) -> Released:
        ended, by, _ = self._ended
        return Released("", ended, by) if ended else NOTHING


def _is_calm(stirred: tuple[re.Pattern[str], re.Pattern[str]], text: str, low: int) -> bool:
    """Whether nothing in a text from a place on stirs a rule."""
    hinted, either = stirred
    if hinted.search(text, low) is not None and either.search(text, low) is not None:
        return False
    return len(text) - low < CALM_RUN or _LONG_RUN(text, low) is None


def _back(text: str, end: int, count: int) -> int:
    """The place from which `count` characters that take room stand before `end`; 0 where there are not so many."""
    at = end - count
    if at <= 0:
        return 0
    if text.isascii() or WEIGHTLESS.search(text, 0, end) is None:
        return at
    at = end
    while at > 0 and count > 0:
        begin = max(0, at - max(count, _BACK_CHARS))
        taking_room = len(WEIGHTLESS.sub("", text[begin:at]))
        if taking_room < count:
            count -= taking_room
            at = begin
            continue
        light = {found.start() for found in WEIGHTLESS.finditer(text, begin, at)}
        while count > 0:
            at -= 1
            count -= at not in light
    return at
