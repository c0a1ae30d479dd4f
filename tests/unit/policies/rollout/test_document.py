from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from policies.rollout.document import RolloutDocument, document_of, text_of
from policies.rollout.plan import DEFAULT_STEPS, OnTimeout, StepNeeds
from policies.rollout.verdict import DEFAULT_MARGINS
from policies.yaml.located import read_yaml
from policies.yaml.problems import ConfigError
from policies.yaml.validate import validated

POOLS = {"name": "chat-v2", "baseline": "chat", "canary": "chat-v2"}


def made(**fields: Any) -> RolloutDocument:
    return RolloutDocument.model_validate(POOLS | fields)


def test_two_pools_are_enough() -> None:
    plan = made().plan("ro_1")
    assert (plan.salt, plan.steps, plan.shadow, plan.acts) == ("ro_1", DEFAULT_STEPS, None, True)
    assert plan.terms.margins == dict(DEFAULT_MARGINS)


def test_everything_that_is_written_holds() -> None:
    steps = [{"share": 0.1, "needs": "good_enough", "gate": True, "min_s": 5.0}, {"share": 1.0}]
    document = made(steps=steps, shadow={"share": 0.2, "gate": True}, on_timeout="hold", margins={"itl": 0.1}, interval_s=2.0, alpha=0.05)
    plan = document.plan("ro_1")
    assert (plan.steps[0].share, plan.steps[0].needs, plan.steps[0].gate, plan.steps[0].min_s) == (0.1, StepNeeds.GOOD_ENOUGH, True, 5.0)
    assert plan.shadow is not None
    assert plan.shadow.gate
    assert plan.on_timeout is OnTimeout.HOLD
    assert plan.terms.margins == {**DEFAULT_MARGINS, "itl": 0.1}
    assert (plan.terms.alpha, plan.terms.interval_s) == (0.05, 2.0)


def test_an_experiment_has_one_share_and_does_nothing_by_its_verdict() -> None:
    plan = made(experiment={"share": 0.3}).plan("ro_1")
    assert (plan.steps[0].share, plan.steps[0].gate, plan.acts) == (0.3, True, False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"canary": "chat"}, "are the same"),
        ({"experiment": {}, "shadow": {"share": 0.1}}, "has experiment and steps or shadow"),
        ({"steps": [{"share": 0.5}, {"share": 0.1}]}, "shares have to grow"),
        ({"steps": [{"share": 0.1}, {"share": 0.5}]}, "end with 1"),
        ({"steps": [{"share": 0.1, "min_s": 60.0, "max_s": 1.0}, {"share": 1.0}]}, "min_s <= max_s"),
        ({"margins": {"latency": 0.1}}, "there is no metric 'latency'"),
        ({"margins": {"errors": 2.0}}, "the margin of errors is 2.0"),
        ({"of": "prompt"}, "two versions of one prompt"),
        ({"of": "prompt", "baseline": "a@1", "canary": "b@2"}, "two versions of one prompt"),
        ({"of": "prompt", "baseline": "a@1", "canary": "a@0"}, "two versions of one prompt"),
        ({"of": "prompt", "baseline": "a@1", "canary": "a@2", "shadow": {"share": 0.1}}, "shadow, which is for pools"),
        ({"tenants": ["*"]}, "tenants.0"),
        ({"weight": 3}, "weight"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        made(**fields)


def test_what_is_stored_is_what_was_written() -> None:
    document = made(shadow={"share": 0.2}, margins={"itl": 0.1})
    assert document_of(text_of(document)) == document
    assert "alpha" not in text_of(document)


def test_mistakes_in_a_file_have_their_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("name: chat-v2\nbaseline: chat\ncanary: chat-v2\nsteps:\n  - share: 2\n  - {share: 1.0, gates: true}\n")
    with pytest.raises(ConfigError) as caught:
        validated(RolloutDocument, read_yaml(file, None))
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [(5, "steps[0].share"), (6, "steps[1].gates")]
