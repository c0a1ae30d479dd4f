"""Makes scanners and chains of the rules of a policy. Pure; compiling costs milliseconds, so it is done once for each policy."""

from collections.abc import Iterable
from typing import Final, assert_never
from weakref import WeakValueDictionary

from guardrails.chain import CallRule, Chain, ChainRule
from guardrails.policy import (
    CHANGING,
    SENT,
    CanaryRule,
    ClassifierRule,
    DetectorRule,
    Direction,
    GuardRule,
    InjectionRule,
    JsonSchemaRule,
    LanguageRule,
    LinksRule,
    LocalRule,
    PatternRule,
    PiiRule,
    PromptLeakRule,
    RepetitionRule,
    SecretsRule,
    TextRule,
    ToolsRule,
    WordsRule,
)
from guardrails.ports import CallScanner, Scanner
from guardrails.rules.canary import Canary
from guardrails.rules.classifier import Classifier
from guardrails.rules.injection import Injection
from guardrails.rules.inside import Inside
from guardrails.rules.json_schema import JsonSchema
from guardrails.rules.language import Language
from guardrails.rules.links import Links
from guardrails.rules.pattern import Pattern
from guardrails.rules.pii import Pii
from guardrails.rules.prompt_leak import PromptLeak
from guardrails.rules.repetition import Repetition
from guardrails.rules.secrets import Secrets
from guardrails.rules.tools import Tools
from guardrails.rules.words import Words
from guardrails.text import Text


class RuleUnusable(ValueError):
    """A rule that no scanner can be made of; `rule` is its id, the text says why."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(why)
        self.rule = rule


def chain_of(rules: Iterable[GuardRule], direction: Direction, *, reasoning: bool = False) -> Chain:
    """A chain of the rules that look at texts of a direction and are evaluated here, in their order.

    Args:
        reasoning: whether the chain is for the reasoning of an answer, which is never the JSON that a rule asks for.

    Raises:
        RuleUnusable: a rule names a type or region that there is not, has a schema that is none, or needs a package that is not installed.
    """
    texts: list[ChainRule] = []
    calls: list[CallRule] = []
    local = [rule for rule in rules if direction in rule.on and not isinstance(rule, DetectorRule)]
    for at, rule in enumerate(local):
        scanner = shared_scanner_of(rule)
        if isinstance(scanner, CallScanner):
            calls.append(CallRule(scanner, rule.mode, at, rule.closed))
        elif not (reasoning and isinstance(rule, JsonSchemaRule)):
            restore = rule.restore and direction in SENT
            joins = isinstance(rule, PromptLeakRule) and not restore
            texts.append(ChainRule(scanner, rule.mode, rule.replacement, rule.closed, restore, joins))
    return Chain(texts, Text, calls)


_SHARED: Final[WeakValueDictionary[str, Scanner | CallScanner]] = WeakValueDictionary()
"""Scanners in use, by their rules."""


def shared_scanner_of(rule: LocalRule) -> Scanner | CallScanner:
    """The scanner of one rule; equal rules get the same object as long as somebody uses it. So operators' rules cost time and memory once,
    however many tenants add rules of their own to them. Raises RuleUnusable."""
    key = rule.model_dump_json()
    scanner = _SHARED.get(key)
    if scanner is None:
        scanner = _SHARED[key] = call_scanner_of(rule) if isinstance(rule, ToolsRule) else text_scanner_of(rule)
    return scanner


def call_scanner_of(rule: ToolsRule) -> CallScanner:
    """The scanner of a rule over calls of tools. Raises RuleUnusable."""
    try:
        return Tools(rule.id, rule.allow, rule.arguments)
    except ValueError as error:
        raise RuleUnusable(rule.id, str(error)) from None


def text_scanner_of(rule: TextRule) -> Scanner:
    """The scanner of a rule over texts. Raises RuleUnusable."""
    depth = getattr(rule, "decode", 0)
    return Inside(_plain_scanner_of(rule), depth) if depth else _plain_scanner_of(rule)


def _plain_scanner_of(rule: TextRule) -> Scanner:
    """The scanner of a rule that looks at a text as it stands. Raises RuleUnusable."""
    try:
        if isinstance(rule, SecretsRule):
            return Secrets(rule.id, rule.types)
        if isinstance(rule, PiiRule):
            return Pii(rule.id, rule.types, rule.regions)
        if isinstance(rule, WordsRule):
            return Words(rule.id, rule.words, whole=rule.whole_words, kind=rule.topic or "word")
        if isinstance(rule, PatternRule):
            streams = rule.mode in CHANGING and not {"output", "tool_arguments"}.isdisjoint(rule.on)
            return Pattern(rule.id, rule.pattern, ignore_case=rule.ignore_case, bounded=streams)
        if isinstance(rule, LinksRule):
            return Links(rule.id, rule.allow)
        if isinstance(rule, InjectionRule):
            return Injection(rule.id)
        if isinstance(rule, ClassifierRule):
            return Classifier(rule.id, sensitivity=rule.sensitivity)
        if isinstance(rule, LanguageRule):
            return Language(rule.id, rule.allow, min_chars=rule.min_chars, min_confidence=rule.min_confidence)
        if isinstance(rule, JsonSchemaRule):
            return JsonSchema(rule.id, rule.json_schema, fenced=rule.fenced)
        if isinstance(rule, PromptLeakRule):
            return PromptLeak(rule.id, min_words=rule.min_words)
        if isinstance(rule, CanaryRule):
            return Canary(rule.id, rule.tokens)
        if isinstance(rule, RepetitionRule):
            return Repetition(rule.id, max_times=rule.max_times, max_unit_chars=rule.max_unit_chars, min_chars=rule.min_chars)
    except ValueError as error:
        raise RuleUnusable(rule.id, str(error)) from None
    assert_never(rule)
