"""The guard rules that look at one request and its answer, made ready. Pure, immutable, shared by all requests under the same rules."""

import copy
import hashlib
import json
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Final

from guardrails.build import chain_of, shared_scanner_of
from guardrails.chain import Chain
from guardrails.classifier.model import packaged_version
from guardrails.policy import CHANGING, MEANING, ClassifierRule, DetectorRule, Direction, GuardRule, PiiRule
from guardrails.ports import Bindable

REQUEST: Final[tuple[Direction, ...]] = ("input", "tool_arguments", "tool_results", "documents")
"""The directions of texts in requests; arguments of tools stand in earlier turns."""
REPLY: Final[tuple[Direction, ...]] = ("output", "tool_arguments")
"""The directions of texts in answers."""


MAX_KEPT_PROMPTS: Final = 32
"""System prompts of which a set keeps the rules made ready; at the bound the oldest goes."""
MAX_KEPT_CHARS: Final = 64 * 1024
"""The longest system prompt that is kept, so that a set keeps a few MB at most."""


class GuardSet:
    """Rules of all levels that apply to a request, in their order: the operator's first.

    Args:
        rules: at least one; each id stands once.
        held_bytes: the most bytes of an answer that are held until its rules have seen it.

    Raises:
        RuleUnusable: a rule names something that there is not.
    """

    def __init__(self, rules: Sequence[GuardRule], held_bytes: int) -> None:
        self.rules: Final = tuple(rules)
        self.held_bytes: Final = held_bytes
        self._scanners = [shared_scanner_of(rule) for rule in self.rules if not isinstance(rule, DetectorRule)]  # kept for the chains
        self.needs_system: Final = any(isinstance(scanner, Bindable) for scanner in self._scanners)
        """Whether a rule compares answers with the system prompt of their request (`bound`)."""
        self._chains: dict[tuple[Direction, bool], Chain] = {}
        self._bound: dict[tuple[str, tuple[str, ...]], GuardSet] = {}

    def chain(self, direction: Direction, *, reasoning: bool = False) -> Chain:
        """The rules for a direction that this process evaluates; made when they are asked for first.

        Args:
            reasoning: whether the text is a model's reasoning, or a text in a call of a tool that is not its arguments: of such a text
                nobody asks that it is JSON.
        """
        key = (direction, reasoning)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = chain_of(self.rules, direction, reasoning=reasoning)
        return chain

    def bound(self, system: Sequence[str], tenant: str) -> "GuardSet":
        """The set for one request, whose rules know its system prompt; this set where none needs it.

        Args:
            tenant: whose request it is. Applications send the same system prompt again and again, and making rules ready for 8 KiB takes a
                millisecond, so the last ones are kept; for each tenant apart, since the time would tell what others have sent.
        """
        if not self.needs_system:
            return self
        key = (tenant, tuple(system))
        bound = self._bound.get(key)
        if bound is None:
            bound = copy.copy(self)
            bound._chains = {
                (direction, reasoning): self.chain(direction, reasoning=reasoning).bound(system)
                for direction in REPLY
                for reasoning in (False, True)
            }
            if sum(map(len, system)) <= MAX_KEPT_CHARS:
                if len(self._bound) >= MAX_KEPT_PROMPTS:
                    del self._bound[next(iter(self._bound))]
                self._bound[key] = bound
        return bound

    def detectors(self, direction: Direction) -> tuple[DetectorRule, ...]:
        """The rules for a direction that ask a detector."""
        return tuple(rule for rule in self.rules if isinstance(rule, DetectorRule) and direction in rule.on)

    def on(self, directions: Sequence[Direction]) -> tuple[GuardRule, ...]:
        """The rules that look at texts of any of the directions."""
        return tuple(rule for rule in self.rules if not set(directions).isdisjoint(rule.on))

    def personal(self, detectors: Container[str]) -> frozenset[str]:
        """The ids of the rules whose findings are personal data. A rule on trial (`shadow`) is none of them, since it changes nothing.

        Args:
            detectors: the names of the detectors that look for personal data.
        """
        return frozenset(
            rule.id
            for rule in self.rules
            if rule.mode != "shadow" and (isinstance(rule, PiiRule) or (isinstance(rule, DetectorRule) and rule.detector in detectors))
        )

    @cached_property
    def reads_requests(self) -> bool:
        """Whether any rule looks at requests."""
        return bool(self.on(REQUEST))

    @cached_property
    def reads_replies(self) -> bool:
        """Whether any rule looks at answers."""
        return bool(self.on(REPLY))

    @cached_property
    def changes_replies(self) -> bool:
        """Whether any rule can change or cut an answer."""
        return any(rule.mode in CHANGING for rule in self.on(REPLY))

    @cached_property
    def version(self) -> str:
        """A digest of everything that decides what these rules let pass: part of the key of cached answers. 64 hexadecimal digits."""
        parts = [MEANING, [rule.model_dump(mode="json") for rule in self.rules]]
        if any(isinstance(rule, ClassifierRule) for rule in self.rules):
            parts.append(packaged_version())  # other weights let other texts pass
        written = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()
