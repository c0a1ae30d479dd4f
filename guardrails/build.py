"""Makes scanners and chains of the rules of a policy. Pure; compiling costs milliseconds, so it is done once for each policy."""

from collections.abc import Iterable
from typing import Final, assert_never
from weakref import WeakValueDictionary

from guardrails.chain import Chain, ChainRule
from guardrails.policy import (
    CHANGING,
    DetectorRule,
    Direction,
    GuardRule,
    InjectionRule,
    LinksRule,
    LocalRule,
    PatternRule,
    PiiRule,
    SecretsRule,
    WordsRule,
)
from guardrails.ports import Scanner
from guardrails.rules.injection import Injection
from guardrails.rules.links import Links
from guardrails.rules.pattern import Pattern
from guardrails.rules.pii import Pii
from guardrails.rules.secrets import Secrets
from guardrails.rules.words import Words
from guardrails.text import Text


class RuleUnusable(ValueError):
    """A rule that no scanner can be made of; `rule` is its id, the text says why."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule


def chain_of(rules: Iterable[GuardRule], direction: Direction) -> Chain:
    """Those of the rules that look at texts of a direction and are evaluated here, in their order.

    Raises:
        RuleUnusable: a rule names a type or region that there is not.
    """
    chosen = [
        ChainRule(
            shared_scanner_of(rule), rule.mode, rule.replacement, rule.closed, rule.restore and direction in ("input", "tool_results")
        )
        for rule in rules
        if direction in rule.on and not isinstance(rule, DetectorRule)
    ]
    return Chain(chosen, Text)


_SHARED: Final[WeakValueDictionary[str, Scanner]] = WeakValueDictionary()
"""Scanners in use, by their rules."""


def shared_scanner_of(rule: LocalRule) -> Scanner:
    """The scanner of one rule; equal rules get the same object as long as somebody uses it. So operators' rules cost time and memory once,
    however many tenants add rules of their own to them. Raises RuleUnusable."""
    key = rule.model_dump_json()
    scanner = _SHARED.get(key)
    if scanner is None:
        scanner = _SHARED[key] = scanner_of(rule)
    return scanner


def scanner_of(rule: LocalRule) -> Scanner:
    """The scanner of one rule. Raises RuleUnusable."""
    try:
        if isinstance(rule, SecretsRule):
            return Secrets(rule.id, rule.types)
        if isinstance(rule, PiiRule):
            return Pii(rule.id, rule.types, rule.regions)
        if isinstance(rule, WordsRule):
            return Words(rule.id, rule.words, whole=rule.whole_words)
        if isinstance(rule, PatternRule):
            streams = rule.mode in CHANGING and not {"output", "tool_arguments"}.isdisjoint(rule.on)
            return Pattern(rule.id, rule.pattern, ignore_case=rule.ignore_case, bounded=streams)
        if isinstance(rule, LinksRule):
            return Links(rule.id, rule.allow)
        if isinstance(rule, InjectionRule):
            return Injection(rule.id)
    except ValueError as error:
        raise RuleUnusable(rule.id, str(error)) from None
    assert_never(rule)
