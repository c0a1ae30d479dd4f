"""The reply chain: several taps as one, each fed with what the one before it lets go on. Sans-io.

`taps.py` has the taps that judge whether an answer is whole, and makes the chain of each attempt (`taps_for`).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from domain.faults import Fault
from domain.usage import Usage
from gateway.guards.plain_reply import GuardPlainTap
from gateway.guards.reply_tap import GuardTap


class Tap(Protocol):
    """One stage of a reply's way to the caller, or a chain of them."""

    @property
    def over(self) -> bool:
        """Whether the answer is whole, or `fault` says what is wrong with it: nothing that comes after it goes on."""
        ...

    @property
    def fault(self) -> Fault | None:
        """The fault of the reply; None as long as nothing is wrong with it."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the reply's body, return what may go on."""
        ...

    def end(self) -> bytes:
        """The reply is complete; return the bytes that were held back. Not called after a fault."""
        ...


class Metering(Protocol):
    """The judging tap of a chain, as far as others read what it has heard from the engine."""

    @property
    def usage(self) -> Usage | None:
        """The usage that the engine reported last."""
        ...

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the engine says it had cached."""
        ...


class ReplyChain:
    """Several taps as one. What a tap lets go on is fed to the next; when one is over, or the reply ends, the taps after it are ended in
    order, each fed first with what the one before it still held.

    A fault of any tap ends the reply. The good bytes before it pass the taps after it; what those hold back then stays with them: it was
    never released.

    Args:
        judge: the one of `taps` that judges whether the answer is whole and reads the engine's usage.
        guard: the one of `taps` that may let bytes go on by itself, when detectors of guard rules have answered; None for none.
    """

    __slots__ = ("_guard", "_judge", "_taps", "fault", "over", "pending")

    def __init__(self, taps: Sequence[Tap], judge: Metering, guard: GuardTap | GuardPlainTap | None = None) -> None:
        self._taps = tuple(taps)
        self._judge = judge
        self._guard = guard
        self.pending = False
        """Whether the engine's reply is whole, and guard rules still hold its end."""
        self.over = False
        self.fault: Fault | None = None

    @property
    def usage(self) -> Usage | None:
        """The usage that the engine reported last."""
        return self._judge.usage

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the engine says it had cached."""
        return self._judge.cached

    def feed(self, data: bytes) -> bytes:
        """Bytes of the reply in, what the last tap lets go on out."""
        if self.over or self.pending:
            return b""
        for tap in self._taps:
            data = tap.feed(data)
            if tap.over:
                self.fault = tap.fault
                return self._pass(self._taps[self._taps.index(tap) + 1 :], data, ending=True)
            if not data:
                return b""
        return data

    def end(self) -> bytes:
        """The reply is complete: end every tap, in order."""
        return b"" if self.over or self.pending else self._pass(self._taps, b"", ending=True)

    def go_on(self) -> None:
        """Expect another engine's reply, which goes on with the answer of a stream that was cut."""
        self.over, self.fault = False, None

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when `more` may give something."""
        if self._guard is not None:
            self._guard.listen(wake)

    def more(self) -> bytes:
        """What goes on now that a tap has what it waited for."""
        guard = self._guard
        if guard is None or self.over:
            return b""
        data = guard.more()
        self.fault = self.fault or guard.fault
        ending = guard.over or guard.fault is not None or (self.pending and not guard.pending)
        if ending:
            self.pending = False
        behind = self._taps[self._taps.index(guard) + 1 :]
        return self._pass(behind, data, ending=ending) if data or ending else b""

    def close(self) -> None:
        """The reply is over, or nobody waits for it any more: what it waits for is given up."""
        if self._guard is not None:
            self._guard.close()

    def _pass(self, taps: Sequence[Tap], data: bytes, *, ending: bool) -> bytes:
        for tap in taps:
            if data:
                data = tap.feed(data)
            if ending and self.fault is None and tap.fault is None:
                data += tap.end()
                if tap is self._guard and self._guard.pending and tap.fault is None:
                    self.pending, ending = True, False
            if ending or tap.over:
                self.fault = self.fault or tap.fault
                ending = ending or tap.over
            elif not data:
                return b""
        self.over = ending
        return data
