"""Makes scanners and chains of the rules of a policy. Pure; compiling costs milliseconds, so it is done once for each policy."""

from typing import assert_never

from guardrails.chain import Chain, ChainRule
from guardrails.policy import (
    CHANGING,
    ClassifierRule,
    Direction,
    GuardPolicy,
    GuardRule,
    InjectionRule,
    LinksRule,
    PatternRule,
    PiiRule,
    SecretsRule,
    WordsRule,
)
from guardrails.ports import Scanner
from guardrails.rules.classifier import Classifier
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


def chain_of(policy: GuardPolicy, direction: Direction) -> Chain:
    """The rules of a policy that look at texts of a direction, in their order.

    Raises:
        RuleUnusable: a rule names a type or region that there is not.
    """
    rules = [
        ChainRule(scanner_of(rule), rule.mode, rule.replacement, rule.closed, rule.restore and direction in ("input", "tool_results"))
        for rule in policy.on(direction)
    ]
    return Chain(rules, Text)


def scanner_of(rule: GuardRule) -> Scanner:
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
        if isinstance(rule, ClassifierRule):
            return Classifier(rule.id, sensitivity=rule.sensitivity)
    except ValueError as error:
        raise RuleUnusable(rule.id, str(error)) from None
    assert_never(rule)
