"""What rules make of their detectors' answers, and of detectors that are away."""

from collections.abc import Sequence

import pytest

from gateway.guards.detect import GROUP_TEXTS, MAX_TEXTS, Sample, judged_by, parted, verdict_of
from guardrails.guard_set import GuardSet
from guardrails.policy import DetectorRule, GuardPolicy
from guardrails.ports import Detected, DetectorAway


def detector_rule(**fields: object) -> DetectorRule:
    written = {"id": "safe", "kind": "detector", "detector": "guard", "mode": "block", "on_error": "closed", "on": ["input"], **fields}
    (rule,) = GuardPolicy.model_validate({"rules": [written]}).rules
    assert isinstance(rule, DetectorRule)
    return rule


class Saying:
    """A detector that says what its text holds, and writes down what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append((text, direction, tenant))
        if "away" in text:
            raise DetectorAway("timeout")
        at = text.find("Ann")
        return [Detected("person", 0.9, at, at + 3)] if at >= 0 else [Detected("hate", 0.6, 0, 0)] if "bad" in text else []


class Finding:
    """A detector that finds a word, wherever it stands."""

    def __init__(self, word: str = "harm") -> None:
        self._word = word
        self.asked: list[str] = []

    async def detect(self, text: str, direction: str, tenant: str) -> Sequence[Detected]:
        self.asked.append(text)
        at = text.find(self._word)
        return [Detected("harm", 1.0, at, at + len(self._word))] if at >= 0 else []


def test_a_detection_without_a_place_concerns_the_whole_text() -> None:
    verdict = verdict_of(detector_rule(), "bad words", [Detected("hate", 0.6, 0, 0)])
    assert (verdict.ended, verdict.by, verdict.cut, verdict.text) == ("block", "safe", 0, "")
    assert [(found.begin, found.end, found.kind) for found in verdict.findings] == [(0, 9, "hate")]


@pytest.mark.parametrize(
    ("fields", "found"),
    [({}, 2), ({"threshold": 0.8}, 1), ({"categories": ["hate"]}, 1), ({"categories": ["hate"], "threshold": 0.8}, 0)],
)
def test_categories_and_threshold_decide_what_is_a_finding(fields: dict[str, object], found: int) -> None:
    detected = [Detected("hate", 0.6, 0, 0), Detected("person", 0.9, 0, 3)]
    assert len(verdict_of(detector_rule(mode="flag", on_error=None, **fields), "Ann", detected).findings) == found


def test_places_are_redacted_and_overlapping_ones_once() -> None:
    detected = [Detected("person", 0.9, 0, 3), Detected("name", 0.9, 0, 7), Detected("person", 1.0, 12, 15)]
    assert verdict_of(detector_rule(mode="redact"), "Ann Lee and Bob", detected).text == "[NAME] and [PERSON]"
    assert verdict_of(detector_rule(mode="replace", replacement="-"), "Ann Lee and Bob", detected).text == "- and -"


async def test_each_rule_sees_its_texts_and_the_tenant() -> None:
    saying = Saying()
    samples: list[Sample] = [("a", "input", "fine"), ("b", "tool_results", "bad"), ("c", "input", "")]
    judged = await judged_by((detector_rule(on=["tool_results"]), detector_rule()), samples, "acme", {"guard": saying})
    assert saying.asked == [("bad", "tool_results", "acme"), ("fine", "input", "acme")]
    assert [(sample[0], verdict.ended) for sample, verdict in judged] == [("b", "block"), ("a", "")]


@pytest.mark.parametrize(("on_error", "ended"), [("closed", "unavailable"), ("open", "")])
@pytest.mark.parametrize("detectors", [{"guard": Saying()}, {}], ids=["away", "not there"])
async def test_without_an_answer_the_rule_says_what_happens(on_error: str, ended: str, detectors: dict[str, Saying]) -> None:
    ((_, verdict),) = await judged_by((detector_rule(on_error=on_error),), [("a", "input", "away")], "acme", detectors)
    assert (verdict.ended, verdict.failed) == (ended, ("safe",))


@pytest.mark.parametrize("at", [0, 5, 63, 64, 127])
@pytest.mark.parametrize("mode", ["block", "redact"])
async def test_no_text_of_a_request_with_many_texts_passes_unseen(at: int, mode: str) -> None:
    texts = [(f"m{n}", "input", "harm" if n == at else f"text {n}") for n in range(2 * MAX_TEXTS)]
    saying = Finding()
    judged = await judged_by((detector_rule(mode=mode),), texts, "acme", {"guard": saying})
    assert [sample[0] for sample, verdict in judged if verdict.findings] == [f"m{at}"]
    assert len(saying.asked) <= MAX_TEXTS + 2 * GROUP_TEXTS + MAX_TEXTS // GROUP_TEXTS


async def test_of_a_conversation_that_grows_the_early_questions_stay_the_same() -> None:
    before, after = Finding(), Finding()
    texts = [(f"m{n}", "output" if n % 3 else "input", f"text {n}") for n in range(MAX_TEXTS + 100)]
    rule = detector_rule(on=["input", "output"])
    await judged_by((rule,), texts[:-10], "acme", {"guard": before})
    await judged_by((rule,), texts, "acme", {"guard": after})
    assert len(set(after.asked) - set(before.asked)) <= 10 + 2, "the new texts, and the last group of each direction"
    assert len(after.asked) <= MAX_TEXTS + GROUP_TEXTS + 100 // GROUP_TEXTS + 1


async def test_what_is_found_only_in_texts_together_refuses_and_changes_nothing() -> None:
    texts = [(f"m{n}", "input", "ha" if n == 0 else "rm" if n == 1 else "x") for n in range(MAX_TEXTS + GROUP_TEXTS)]
    together = {"guard": Finding("ha\nrm")}
    ((sample, verdict),) = [one for one in await judged_by((detector_rule(),), texts, "acme", together) if one[1].findings]
    assert (sample[0], verdict.ended) == ("m0", "block")
    ((_, verdict),) = [one for one in await judged_by((detector_rule(mode="redact"),), texts, "acme", together) if one[1].findings]
    assert verdict.text == "ha"


def test_rules_that_change_texts_come_before_the_others() -> None:
    rules = [detector_rule(id="a"), detector_rule(id="b", mode="redact"), detector_rule(id="c", mode="flag", on_error=None)]
    first, others = parted(GuardSet(rules, 4096))
    assert ([rule.id for rule in first], [rule.id for rule in others]) == (["b"], ["a", "c"])
