"""What `tidegate check` says of detectors and of the rules that ask them."""

from collections.abc import Mapping
from typing import Any

from gateway.cli.detectors import MAX_NAMED, detectors_in_words, unused_detectors
from gateway.config.load import Settings
from policies.compile import PolicySet, compiled
from policies.schema import PolicyDocument

POOLS = [{"name": "guards", "model": "llama-guard-3", "backends": [{"id": "a", "url": "http://10.0.0.1:8000"}]}]
MODELS = [{"name": "sim", "pool": "guards"}]
HARM = {"harm": {"kind": "guard_model", "pool": "guards", "form": "llama_guard"}}


def settings(detectors: Mapping[str, Mapping[str, Any]]) -> Settings:
    return Settings.model_validate({"pools": POOLS, "guards": {"detectors": detectors}})


def policies(**tenants: Mapping[str, Any]) -> PolicySet:
    named = {tenant.replace("everyone", "*"): fields for tenant, fields in tenants.items()}
    return compiled([PolicyDocument.model_validate({"tenant": tenant, "models": MODELS, **fields}) for tenant, fields in named.items()])


def rule(name: str, detector: str) -> dict[str, Any]:
    return {"guards": {"rules": [{"id": name, "kind": "detector", "detector": detector, "mode": "flag"}]}}


def test_a_detector_that_no_rule_asks_is_a_note() -> None:
    found = settings({**HARM, "own": {"kind": "moderations", "pool": "guards"}, "other": {"kind": "moderations", "pool": "guards"}})
    asked = policies(everyone=rule("flagged", "own"), acme={"for_project": {"web": rule("harmful", "harm")}})
    (note,) = unused_detectors(found, asked)
    assert "asks the detector other (guards.detectors.other)" in note
    assert len(unused_detectors(found, policies(everyone={}))) == 3
    assert unused_detectors(settings({}), asked) == []


def test_the_summary_says_where_texts_go_and_shows_no_query() -> None:
    found = settings(
        {
            **HARM,
            "hosted": {"kind": "moderations", "url": "https://api.example.com/v1/moderations", "api_key": {"env": "K"}},
            "own": {"kind": "webhook", "url": "https://guard.example.com:8443/classify?team=a", "secret": {"env": "S"}},
            "pooled": {"kind": "moderations", "pool": "guards"},
            "names": {"kind": "presidio", "url": "http://127.0.0.1:5002/analyze", "private": True},
        }
    )
    assert list(detectors_in_words(found, None)) == [
        "detector harm: guard_model, texts go to pool guards",
        "detector hosted: moderations, texts go to https://api.example.com",
        "detector own: webhook, texts go to https://guard.example.com:8443",
        "detector pooled: moderations, texts go to pool guards",
        "detector names: presidio, texts go to http://127.0.0.1:5002",
    ]


def test_the_summary_names_the_rules_that_send_texts_each_once() -> None:
    asked = policies(
        everyone=rule("safe", "harm"), acme=rule("safer", "harm"), bolt={"for_model": {"sim": rule("safer", "harm")}}, crane={}
    )
    (line,) = detectors_in_words(settings(HARM), asked)
    assert line.endswith(", asked by rule safe of every tenant, rule safer of tenant acme, rule safer of tenant bolt")
    many = {f"t{at}": rule("safer", "harm") for at in range(MAX_NAMED + 2)}
    (line,) = detectors_in_words(settings(HARM), policies(**many))
    assert line.endswith(f"rule safer of tenant t{MAX_NAMED - 1} and 2 more")
