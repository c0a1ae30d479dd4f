"""What `tidegate check` says of detectors and of the rules that ask them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.cli.detectors import detectors_in_words, unknown_detectors, unused_detectors
from gateway.config.load import Settings
from guardrails.policy import GuardPolicy
from policies.yaml.located import read_yaml
from policies.yaml.validate import validated

POOLS = [{"name": "guards", "model": "llama-guard-3", "backends": [{"id": "a", "url": "http://10.0.0.1:8000"}]}]
RULES = """rules:
  - {id: keys, kind: secrets, mode: block}
  - {id: harm, kind: detector, detector: modration, mode: flag}
  - {id: names, kind: detector, detector: names, mode: flag}
"""


def settings(detectors: Mapping[str, Mapping[str, Any]]) -> Settings:
    return Settings.model_validate({"pools": POOLS, "guards": {"detectors": detectors}})


def test_a_rule_with_an_unknown_detector_is_a_mistake_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    located = read_yaml(tmp_path / "rules.yaml", None)
    rules = [(located, ("rules", at), rule) for at, rule in enumerate(validated(GuardPolicy, located).rules)]
    (problem,) = unknown_detectors(rules, ["moderation", "names"])
    assert (problem.line, problem.path) == (3, "rules[1].detector")
    assert problem.message == "there is no detector 'modration'"
    assert problem.hint == "did you mean 'moderation'?"
    assert [problem.line for problem in unknown_detectors(rules, [])] == [3, 4]
    assert "tidegate.yaml has no guards.detectors" in unknown_detectors(rules, [])[0].hint


def test_a_detector_that_no_rule_asks_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    rules = validated(GuardPolicy, read_yaml(tmp_path / "rules.yaml", None)).rules
    (note,) = unused_detectors(rules, ["names", "own"])
    assert "detector own (guards.detectors.own)" in note
    assert unused_detectors(rules, ["names"]) == []
    assert len(unused_detectors((), ["names", "own"])) == 2


def test_the_summary_says_where_texts_go_and_shows_no_query() -> None:
    found = settings(
        {
            "harm": {"kind": "guard_model", "pool": "guards", "form": "llama_guard"},
            "hosted": {"kind": "moderations", "url": "https://api.example.com/v1/moderations", "api_key": {"env": "K"}},
            "own": {"kind": "webhook", "url": "https://guard.example.com:8443/classify?team=a", "secret": {"env": "S"}},
            "pooled": {"kind": "moderations", "pool": "guards"},
            "names": {"kind": "presidio", "url": "http://127.0.0.1:5002/analyze", "private": True},
        }
    )
    assert list(detectors_in_words(found)) == [
        "detector harm: guard_model, texts go to pool guards",
        "detector hosted: moderations, texts go to https://api.example.com",
        "detector own: webhook, texts go to https://guard.example.com:8443",
        "detector pooled: moderations, texts go to pool guards",
        "detector names: presidio, texts go to http://127.0.0.1:5002",
    ]
