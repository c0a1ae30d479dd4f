"""The verified decision: each answer's own boundary around its partition's, and a line that holds wrong answers per hit below a bound."""

from collections import OrderedDict
from collections.abc import Sequence
from math import inf

import msgspec

from cache.semantic.boundary import Boundary, Prior, at_rest, fit, sigmoid
from cache.semantic.control import AUDIT, DELTA_HIT, MOST_WEIGHT, HitControl, Proof
from cache.semantic.decision import Decision, Fit, Guard
from cache.semantic.groups import AnswerGroup, AnswerGroups
from cache.semantic.pooled import NEAR, WIDTH, Outcome, PooledBoundary, candidates, features
from cache.semantic.ports import Neighbour

HALF_LIFE_S = 7 * 86_400.0
CAP = 64
"""Observations of one answer that count, the newest."""
SURE_VOTES = 2
"""Votes by which a fresh answer has to belong to a group before that outweighs the label of the nearest entry alone."""
PRIOR = Prior(intercept=0.0, slope=1.0, intercept_precision=30.0, slope_precision=3000.0)
"""An answer's log odds lie around the pooled ones, with standard deviations of 0.18 in place and 0.018 in slope: most of what an answer's
own observations say is a feature of the pooled boundary already. On the tuning half of banking77, with right labels, precisions of (4, 400)
gave 24 % hits of the repeats, (30, 3000) 30 % at 0.98 % wrong per hit, (10, 1000) 31 % at 1.20 %, and (1000, 10000) 30 % at 1.10 %
(before `control` had a margin and first audits)."""


class VerifiedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the decision may do, and how much it remembers."""

    delta_hit: float = DELTA_HIT
    """Wrong answers per hit that are allowed."""
    audit: float = AUDIT
    """The share of would-be hits that is explored for ever."""
    half_life_s: float = HALF_LIFE_S
    partitions: int = 256
    partitions_of_owner: int = 32
    """So many of one tenant or sharing group, so that one with many system prompts pushes out only its own."""
    entries: int = 20_000
    """Entries of one partition whose answers' groups are remembered."""
    all_entries: int = 200_000
    """Entries of all partitions together: about 100 MB."""


class VerifiedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How a partition stands."""

    entries: int
    observed: int
    decisions: int
    hits: int
    risk: float
    """The most risk of a wrong answer that a single request may have to be a hit, 0 to 1; 0 while nothing is proven."""
    proof: Proof


class _Learned:
    """One partition."""

    def __init__(self, settings: VerifiedSettings, owner: str) -> None:
        self.owner = owner
        self.groups = AnswerGroups(settings.entries, CAP)
        self.pooled = PooledBoundary(settings.half_life_s)
        self.control = HitControl(settings.delta_hit, settings.audit, settings.half_life_s)
        self.decisions = self.hits = self.observed = 0


class _Fitting:
    """A fit of one partition that is due (`cache.semantic.decision.Fit`)."""

    def __init__(self, learned: _Learned, now: float) -> None:
        self._learned = learned
        self._fit = learned.pooled.begin_fit(now)
        self._line = inf

    def work(self) -> None:
        self._fit.work()
        self._line = self._learned.control.drawn(self._fit.weighed)

    def done(self) -> None:
        self._learned.pooled.take(self._fit)
        self._learned.control.take(self._line)


class VerifiedDecider:
    """Gives an answer where the bound of its risk is on the right side of the partition's line; otherwise explores and learns.

    A partition that is new explores everything, so no answer is given before some hundred labels are known. Memory is bounded: the
    partition that was asked longest ago is forgotten first, and so is an entry in its partition.
    """

    def __init__(self, settings: VerifiedSettings | None = None) -> None:
        self._settings = settings or VerifiedSettings()
        self._learned: OrderedDict[bytes, _Learned] = OrderedDict()

    def decide(self, partition: bytes, asked: str, near: Sequence[Neighbour], draw: float, now: float, guard: Guard) -> Decision:
        """See `Decider`; near copies are judged like other questions, as labels tell what they are worth."""
        if not near:
            return Decision(exploit=False, reason="none")
        learned = self._of(partition, near[0].question.owner)
        learned.decisions += 1
        compare = tuple(near[:NEAR])
        if len(near) < NEAR:
            return Decision(exploit=False, reason="cold", neighbour=near[0], compare=compare)
        groups = [learned.groups.of(neighbour.question.key) for neighbour in compare]
        places = candidates(compare, groups)
        chosen = next((place for place in places if not guard(compare[place], False)), None)
        if chosen is None:
            return Decision(exploit=False, reason="guard", neighbour=compare[places[0]], compare=compare)
        at = features(asked, compare, groups, chosen)
        score = learned.pooled.score(at)
        if score is None:
            return Decision(exploit=False, reason="cold", neighbour=compare[chosen], compare=compare, features=(0.0, 0.0, *at))
        bound = self._boundary(groups[chosen], now).assured(score)
        would_hit = bound >= learned.control.line
        share = learned.control.share()
        audited = would_hit and draw < share
        exploit = would_hit and not audited
        learned.hits += exploit
        reason = "sure" if exploit else "unsure" if not audited else "stopped" if learned.control.stopped else "audit"
        # what the observation needs later: how far this answer's own boundary moved the score, whether it is an audit, the features
        carried = (bound - score, 1 / share if would_hit else 0.0, *at)
        return Decision(
            exploit=exploit, reason=reason, neighbour=compare[chosen], compare=compare, features=carried, assured=sigmoid(bound)
        )

    def observe(self, partition: bytes, decision: Decision, labels: Sequence[bool | None], added: bytes, now: float) -> Fit | None:
        """See `Decider`."""
        if decision.neighbour is None:
            return None
        learned = self._of(partition, decision.neighbour.question.owner)
        groups = learned.groups
        group, votes = groups.join([neighbour.question.key for neighbour in decision.compare], labels)
        right = _verdict(groups, decision, labels, group if votes >= SURE_VOTES else None)
        if added:
            groups.add(added, group)
        if right is None or len(decision.features) != WIDTH + 2:
            return None
        learned.observed += 1
        shift, stands_for, *at = decision.features
        known = tuple(at)
        score = learned.pooled.score(known)
        learned.pooled.observe(Outcome(now, known, shift, right, min(MOST_WEIGHT, max(1.0, stands_for))))
        own = groups.of(decision.neighbour.question.key)
        if own is not None:
            own.observe(score, right, now, self._settings.half_life_s)
        if stands_for:
            learned.control.audited(right, now)
        if learned.pooled.due(now):
            return _Fitting(learned, now)
        return None

    def forget(self, partition: bytes, key: bytes) -> None:
        """See `Decider`."""
        if (learned := self._learned.get(partition)) is not None:
            learned.groups.forget(key)

    def forget_owner(self, owner: str) -> None:
        """See `Decider`."""
        for partition in [partition for partition, learned in self._learned.items() if learned.owner == owner]:
            del self._learned[partition]

    def figures(self, partition: bytes, now: float) -> VerifiedFigures | None:
        """How a partition stands; None where nothing is known of it."""
        learned = self._learned.get(partition)
        if learned is None:
            return None
        return VerifiedFigures(
            entries=len(learned.groups),
            observed=learned.observed,
            decisions=learned.decisions,
            hits=learned.hits,
            risk=sigmoid(-learned.control.line),
            proof=learned.control.proof(now),
        )

    def proofs(self, now: float) -> dict[str, Proof]:
        """What audits say of the hits of each owner, over its partitions; none for an owner of which none was audited."""
        found: dict[str, Proof] = {}
        for learned in self._learned.values():
            proof = learned.control.proof(now)
            if proof.audits:
                earlier = found.get(learned.owner)
                found[learned.owner] = proof if earlier is None else earlier.joined(proof)
        return found

    def _of(self, partition: bytes, owner: str) -> _Learned:
        learned = self._learned.get(partition)
        if learned is not None:
            self._learned.move_to_end(partition)
            return learned
        own = [key for key, other in self._learned.items() if other.owner == owner]
        if len(own) >= self._settings.partitions_of_owner:
            del self._learned[own[0]]
        while len(self._learned) >= self._settings.partitions or (self._learned and self._entries() >= self._settings.all_entries):
            self._learned.popitem(last=False)
        learned = self._learned[partition] = _Learned(self._settings, owner)
        return learned

    def _entries(self) -> int:
        return sum(len(learned.groups) for learned in self._learned.values())

    def _boundary(self, group: AnswerGroup | None, now: float) -> Boundary:
        if group is None or not group.watched:
            return _AT_REST
        half_life = self._settings.half_life_s
        if group.boundary is None or now - group.fitted_at > half_life / 8:
            group.boundary, group.fitted_at = fit(group.samples(now, half_life), PRIOR), now
        return group.boundary


_AT_REST = at_rest(PRIOR)


def _verdict(groups: AnswerGroups, decision: Decision, labels: Sequence[bool | None], joined: AnswerGroup | None) -> bool | None:
    """Whether the chosen answer was right, by the votes of its group where there are enough, else by its own label."""
    if decision.neighbour is None:
        return None
    chosen = decision.neighbour.question.key
    own = groups.of(chosen)
    if joined is not None:
        return joined is own
    keys = [neighbour.question.key for neighbour in decision.compare]
    votes = [label for key, label in zip(keys, labels, strict=False) if label is not None and groups.of(key) is own]
    if len(votes) >= 3:
        return 2 * sum(votes) > len(votes)
    return next((label for key, label in zip(keys, labels, strict=False) if key == chosen), None)
