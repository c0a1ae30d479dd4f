"""Whether the answer of the nearest question is given: the port, and the decision by a fixed threshold."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cache.semantic.guard import difference, near_copy, profile
from cache.semantic.ports import Neighbour

Guard = Callable[[Neighbour, bool], str]
"""`guard(neighbour, strict)`: a word for what differs between the question that is asked and a neighbour's, so that the kept answer may not
be given; empty where it may. `strict` refuses near copies too, which differ in a word or two."""


def guard_of(text: str) -> Guard:
    """The guard for one question that is asked (`cache.semantic.guard`); each neighbour's text is read when the guard is called on it."""
    asked = profile(text)

    def judge(neighbour: Neighbour, strict: bool) -> str:
        kept = profile(neighbour.question.text)
        return difference(asked, kept) or ("copy" if strict and near_copy(asked, kept) else "")

    return judge


def unguarded(neighbour: Neighbour, strict: bool) -> str:
    """Lets every neighbour pass."""
    return ""


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What to do with a question that has neighbours."""

    exploit: bool
    """The kept answer of `neighbour` is given. Otherwise the engine answers (explore)."""
    reason: str
    """One word. Given: `sure`, `threshold`. Explored: `none` (no neighbours), `cold` (too little is known), `unsure`, `audit`, `stopped`
    (audits found too many wrong answers), `guard`; of a threshold `below`, or what the guard found."""
    neighbour: Neighbour | None = None
    """Whose answer is given, or would be judged; None where there are no neighbours."""
    compare: tuple[Neighbour, ...] = ()
    """After an engine's answer to this question: the neighbours whose kept answers are to be compared with it, nearest first. Empty where
    nothing is to be learned."""
    features: tuple[float, ...] = ()
    """The decider's own, to be handed back by `observe`."""
    assured: float = 0.0
    """The bound of P(right) that was decided on, 0 to 1; the similarity where a threshold decides."""


class Fit(Protocol):
    """What was learned, to be fitted anew: some 20 ms at most, which no event loop should be held for."""

    def work(self) -> None:
        """Work it out; a thread may, and the decider goes on meanwhile."""
        ...

    def done(self) -> None:
        """Use it from now on; called where the decider is used."""
        ...


def fit_at_once(fit: Fit | None) -> None:
    """Work a fit out where there is no loop to hold."""
    if fit is not None:
        fit.work()
        fit.done()


class Decider(Protocol):
    """Decides on the nearest kept questions of one partition, and learns from the labels of what was explored.

    No method raises and none does I/O; a decider forgets what it has no room for.
    """

    def decide(self, partition: bytes, asked: str, near: Sequence[Neighbour], draw: float, now: float, guard: Guard) -> Decision:
        """Decide on neighbours, nearest first.

        Args:
            partition: 32 bytes.
            asked: the question that is asked.
            near: what the index found, up to 8.
            draw: a random number in [0, 1).
            now: seconds of the wall clock.
            guard: judges a neighbour; an answer is given only of one that passes.
        """
        ...

    def observe(self, partition: bytes, decision: Decision, labels: Sequence[bool | None], added: bytes, now: float) -> Fit | None:
        """Learn what was found out behind the reply to an explored request. Returns a fit where one is due, which the caller works out.

        Args:
            partition: as at `decide`.
            decision: what `decide` gave.
            labels: for each of `decision.compare`, in its order: whether its kept answer agrees with the engine's fresh one; None where
                that is not known. A shorter sequence means None for the rest.
            added: the key under which the fresh answer was kept as an entry of its own; empty where it was not kept.
            now: seconds of the wall clock.
        """
        ...

    def forget(self, partition: bytes, key: bytes) -> None:
        """Forget an entry whose answer has gone."""
        ...

    def forget_owner(self, owner: str) -> None:
        """Forget all partitions of a tenant or sharing group: its answers were removed."""
        ...


class ThresholdDecider:
    """Gives the nearest answer from a similarity on. It learns nothing and has no bound of its error.

    Args:
        threshold: the least cosine, 0 to 1.
    """

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"a threshold of similarity lies in (0, 1], not at {threshold}")
        self._threshold = threshold

    def decide(self, partition: bytes, asked: str, near: Sequence[Neighbour], draw: float, now: float, guard: Guard) -> Decision:
        """Give the nearest answer that is near enough and passes the strict guard; a similarity hardly tells a near copy from others."""
        if not near:
            return Decision(exploit=False, reason="none")
        refused = ""
        for neighbour in near:
            if neighbour.similarity < self._threshold:
                break
            if not (word := guard(neighbour, True)):
                return Decision(exploit=True, reason="threshold", neighbour=neighbour, assured=neighbour.similarity)
            refused = refused or word
        return Decision(exploit=False, reason=refused or "below", neighbour=near[0], assured=near[0].similarity)

    def observe(self, partition: bytes, decision: Decision, labels: Sequence[bool | None], added: bytes, now: float) -> Fit | None:
        """Nothing is learned."""
        return None

    def forget(self, partition: bytes, key: bytes) -> None:
        """Nothing was learned."""

    def forget_owner(self, owner: str) -> None:
        """Nothing was learned."""
