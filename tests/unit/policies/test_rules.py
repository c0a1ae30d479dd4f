from collections.abc import Mapping
from typing import Any

from policies.rules import ALWAYS, Rule, RuleBook

FACTS: Mapping[str, Any] = {"stream": True, "choices": 1, "headers": {}}


def rule(name: str, condition: str = ALWAYS, models: tuple[str, ...] = (), share: float = 1.0) -> Rule:
    return Rule(name, frozenset(models), condition, share, "", {"priority": 1.0})


def names(book: RuleBook, model: str = "m", key: str = "k") -> list[str]:
    return [found.name for found in book.matching(model, key, FACTS)]


def test_rules_match_in_their_order_by_model_and_condition() -> None:
    book = RuleBook([rule("a", "!stream"), rule("b", "stream", ("other",)), rule("c", "choices == 1"), rule("d")], "t")
    assert names(book) == ["c", "d"]
    assert names(book, "other") == ["b", "c", "d"]


def test_what_cannot_be_said_does_not_match() -> None:
    assert names(RuleBook([rule("a", 'headers["x"] == "y"'), rule("b")], "t")) == ["b"]


def test_a_share_is_of_keys_and_stays() -> None:
    book = RuleBook([rule("some", share=0.25)], "t")
    chosen = {key for key in map(str, range(1_000)) if names(book, key=key)}
    assert 180 <= len(chosen) <= 320  # five standard deviations
    assert chosen == {key for key in map(str, range(1_000)) if names(book, key=key)}
    wider = RuleBook([rule("some", share=0.5)], "t")
    assert all(names(wider, key=key) for key in chosen)
    other = RuleBook([rule("some", share=0.25)], "u")
    assert chosen != {key for key in map(str, range(1_000)) if names(other, key=key)}


def test_nothing_is_asked_where_no_rule_is_for_the_model() -> None:
    book = RuleBook([rule("a", "stream", ("other",))], "t")
    asked: list[str] = []

    class Noted(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            asked.append(name)
            return False

    assert list(book.matching("m", "k", Noted())) == []
    assert asked == []
    assert list(book.matching("other", "k", Noted())) == []
    assert asked == ["stream"]
