"""Guardrails become rules and detectors where there is an equivalent; everything else is told."""

from typing import Any

import pytest
import yaml

from gateway.importing.litellm_guardrails import OLDER, OWN_CODE, PROTOCOL, SERVICE
from gateway.importing.litellm_people import carry_keys, carry_teams
from gateway.importing.litellm_sections import carry_sections
from gateway.importing.plan import ImportPlan, files_of
from guardrails.policy import GuardPolicy
from policies.yaml.located import Located, parse_yaml

ANALYZER = "http://127.0.0.1:5002/"


def located(**sections: object) -> Located:
    return parse_yaml(yaml.safe_dump(sections, sort_keys=False).encode(), "config.yaml", None)


def carried(*guardrails: dict[str, Any], **sections: object) -> ImportPlan:
    plan = ImportPlan(models={"a": "pool-a"})
    carry_sections(located(guardrails=list(guardrails), **sections), plan)
    if plan.guards:
        GuardPolicy.model_validate({"rules": plan.guards})
    return plan


def guardrail(kind: str, name: str = "mine", mode: Any = "pre_call", **params: Any) -> dict[str, Any]:
    return {"guardrail_name": name, "litellm_params": {"guardrail": kind, "mode": mode, **params}}


def left(plan: ImportPlan) -> list[str]:
    return [f"{remark.path}: {remark.text}" for remark in plan.left]


@pytest.mark.parametrize(
    ("mode", "on"),
    [
        ("pre_call", ["input", "tool_results", "documents"]),
        ("during_call", ["input", "tool_results", "documents"]),
        ("post_call", ["output"]),
        (["pre_call", "post_call"], ["input", "tool_results", "documents", "output"]),
        ({"default": "post_call", "tags": {"x": "pre_call"}}, ["output"]),
    ],
)
def test_modes_are_the_texts_that_rules_look_at(mode: Any, on: list[str]) -> None:
    plan = carried(guardrail("hide-secrets", mode=mode, default_on=True))
    assert plan.guards == [{"id": "mine", "kind": "secrets", "mode": "redact", "on": on}]
    assert bool(plan.left) is isinstance(mode, dict)


def test_what_only_logs_is_noted_and_what_is_off_is_asked_for() -> None:
    plan = carried(guardrail("hide_secrets", mode="logging_only"), guardrail("hide-secrets", "On", default_on=True))
    assert plan.guards[0] == {"id": "mine", "kind": "secrets", "mode": "flag", "on": ["input", "output"], "default_on": False}
    assert plan.guards[1]["id"] == "on"
    assert plan.guard_names == {"mine": ["mine"], "On": []}
    assert any("the guardrail 'On' is on in guards of the policy for everyone" in remark.text for remark in plan.notes)
    assert plan.left == []


def test_presidios_entities_are_rules_of_their_own_and_the_rest_asks_presidio() -> None:
    entities = {"CREDIT_CARD": "BLOCK", "EMAIL_ADDRESS": "MASK", "US_SSN": "MASK", "PERSON": "MASK", "LOCATION": "BLOCK", "UK_NHS": "MASK"}
    plan = carried(
        guardrail(
            "presidio",
            "pii",
            default_on=True,
            pii_entities_config=entities,
            presidio_analyzer_api_base=ANALYZER,
            presidio_language="de",
            output_parse_pii=True,
            presidio_score_thresholds={"PERSON": 0.8, "ALL": 0.5},
            presidio_anonymizer_api_base="http://127.0.0.1:5001",
        )
    )
    on = ["input", "tool_results", "documents"]
    local = {"kind": "pii", "on": on}
    asking = {"kind": "detector", "on": on, "detector": "pii"}
    assert plan.guards == [
        {"id": "pii", **local, "mode": "redact", "types": ["email", "national_id"], "regions": ["US", "GB"], "restore": True},
        {"id": "pii-2", **local, "mode": "block", "types": ["card"]},
        {"id": "pii-3", **asking, "mode": "redact", "categories": ["PERSON"], "threshold": 0.8, "on_error": "open", "restore": True},
        {"id": "pii-4", **asking, "mode": "block", "categories": ["LOCATION"], "threshold": 0.5, "on_error": "closed"},
    ]
    url = "http://127.0.0.1:5002/analyze"
    entities_asked = ["PERSON", "LOCATION"]
    assert plan.detectors == {"pii": {"kind": "presidio", "url": url, "private": True, "entities": entities_asked, "language": "de"}}
    assert plan.left == []


def test_presidio_without_its_address_leaves_what_needs_it() -> None:
    plan = carried(guardrail("presidio", pii_entities_config={"PERSON": "MASK", "IBAN_CODE": "MASK", "X": "HIDE"}, default_on=True))
    assert [rule["types"] for rule in plan.guards] == [["iban"]]
    assert plan.detectors == {}
    at = "guardrails[0].litellm_params"
    assert left(plan) == [
        f"{at}.pii_entities_config.X: is neither MASK nor BLOCK",
        f"{at}: PERSON would need Presidio's analyzer, and presidio_analyzer_api_base is not written; "
        "write a detector of the kind presidio",
    ]
    whole = carried(guardrail("presidio", default_on=True, presidio_analyzer_api_base="os.environ/ANALYZER", mask_pii_fail_closed=True))
    assert [(rule["kind"], rule.get("types"), rule.get("categories"), rule.get("on_error")) for rule in whole.guards] == [
        ("pii", None, None, None),
        ("detector", None, None, "closed"),
    ]
    assert whole.detectors["mine"]["url"] == "${ANALYZER}/analyze"


@pytest.mark.parametrize(("scope", "on"), [("input", ["input", "tool_results", "documents"]), ("output", ["output"]), ("both", None)])
def test_presidios_scope_narrows_its_mode(scope: str, on: list[str] | None) -> None:
    both = ["pre_call", "post_call"]
    plan = carried(guardrail("presidio", mode=both, pii_entities_config={"EMAIL_ADDRESS": "MASK"}, presidio_filter_scope=scope))
    assert plan.guards[0]["on"] == (on or ["input", "tool_results", "documents", "output"])
    none = carried(guardrail("presidio", mode="post_call", presidio_run_on="input", pii_entities_config={"EMAIL_ADDRESS": "MASK"}))
    assert (none.guards, len(none.left)) == ([], 1)


def test_openais_moderations_are_a_detector_whose_key_is_not_copied() -> None:
    secret = "sk-" + "abcdefghij" * 3
    plan = carried(
        guardrail("openai_moderation", "mod", "post_call", model="omni-moderation-latest", default_on=True),
        guardrail("openai_moderation", "own", api_key=secret, api_base="https://moderate.example.com/v1"),
    )
    assert plan.detectors == {
        "mod": {
            "kind": "moderations",
            "url": "https://api.openai.com/v1/moderations",
            "api_key": {"env": "OPENAI_API_KEY"},
            "model": "omni-moderation-latest",
        },
        "own": {"kind": "moderations", "url": "https://moderate.example.com/v1/moderations", "api_key": {"env": "GUARD_OWN_KEY"}},
    }
    assert plan.guards[0] == {"id": "mod", "kind": "detector", "mode": "block", "on": ["output"], "detector": "mod", "on_error": "closed"}
    written = "".join(files_of(plan, "config.yaml").values())
    assert secret not in written + "".join(map(str, plan.notes + plan.left))
    assert any("put it into the environment as GUARD_OWN_KEY" in remark.text for remark in plan.notes)


def test_words_and_patterns_of_the_content_filter_are_rules() -> None:
    plan = carried(
        guardrail(
            "litellm_content_filter",
            "filter",
            "post_call",
            default_on=True,
            blocked_words=[
                {"keyword": "falcon", "action": "BLOCK"},
                {"keyword": "heron", "action": "block", "description": "a bird"},
                {"keyword": "x"},
            ],
            patterns=[
                {"pattern_type": "prebuilt", "pattern_name": "us_ssn", "action": "BLOCK"},
                {"pattern_type": "prebuilt", "pattern_name": "visa", "action": "BLOCK"},
                {"pattern_type": "prebuilt", "pattern_name": "github_token", "action": "MASK"},
                {"pattern_type": "prebuilt", "pattern_name": "passport_us", "action": "MASK"},
                {"pattern_type": "regex", "pattern": "ORD-[0-9]{6}", "name": "orders", "action": "MASK"},
                {"pattern_type": "regex", "pattern": "(?=ORD)x", "action": "MASK"},
            ],
            categories=[{"category": "harmful_self_harm", "action": "BLOCK"}],
        )
    )  # fmt: skip
    assert [(rule["id"], rule["kind"], rule["mode"]) for rule in plan.guards] == [
        ("filter", "words", "block"),
        ("filter-2", "pii", "block"),
        ("filter-3", "secrets", "redact"),
        ("filter-4", "pattern", "redact"),
    ]
    assert plan.guards[0]["words"] == ["falcon", "heron"]
    assert (plan.guards[1]["types"], plan.guards[1]["regions"]) == (["national_id", "card"], ["US"])
    at = "guardrails[0].litellm_params"
    assert [line.partition(": ")[0] for line in left(plan)] == [
        f"{at}.blocked_words[2]",
        f"{at}.patterns[3]",
        at,
        f"{at}.categories",
    ]
    assert "the rule 'filter-5' cannot be used here: RE2 refuses the pattern" in left(plan)[2]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bedrock", SERVICE),
        ("lakera_v2", SERVICE),
        ("aim", SERVICE),
        ("generic_guardrail_api", PROTOCOL),
        ("custom_code", OWN_CODE),
        ("my_file.MyGuardrail", OWN_CODE),
    ],
)
def test_services_and_code_are_left_with_their_reason(kind: str, why: str) -> None:
    plan = carried(guardrail(kind, api_key="os.environ/KEY"))
    assert (plan.guards, plan.detectors) == ([], {})
    assert left(plan) == [f"guardrails[0].litellm_params.guardrail: {why}"]


def test_nothing_is_dropped_unsaid() -> None:
    entry = {**guardrail("hide-secrets", timeout=3, made_up=None), "guardrail_info": {"a": 1}, "other": 1}
    plan = carried(entry, {"guardrail_name": "x"}, guardrail("hide-secrets", mode="pre_mcp_call"), guardrail("hide-secrets", mode=None))
    assert [line.partition(": ")[0] for line in left(plan)] == [
        "guardrails[0].other",
        "guardrails[0].litellm_params.timeout",
        "guardrails[1]",
        "guardrails[2].litellm_params.mode",
        "guardrails[3].litellm_params.mode",
    ]
    assert len(plan.guards) == 1
    strange = ImportPlan()
    carry_sections(located(guardrails="x"), strange)
    assert left(strange) == ["guardrails: is no list of guardrails"]


def test_the_older_form_and_callbacks_are_left_with_what_to_write() -> None:
    older = {"guardrails": [{"x": {"callbacks": ["presidio"]}}], "callbacks": ["presidio", "prometheus"]}
    told = left(carried(litellm_settings=older))
    assert f"litellm_settings.guardrails: {OLDER}" in told
    assert f"litellm_settings.callbacks: presidio: {OLDER}" in told
    assert len(told) == 3


def test_keys_and_teams_ask_for_rules_by_tags() -> None:
    long = "a-guardrail-with-a-rather-long-name"
    plan = carried(*(guardrail("hide-secrets", name) for name in ("one", "two", long)), guardrail("hide-secrets", "on", default_on=True))
    team = {"team_id": "t", "team_alias": "lab", "metadata": {"guardrails": ["one", "on"]}}
    tenants = carry_teams(located(teams=[team]), plan)
    keys = [
        {"key_alias": "k", "team_id": "t", "guardrails": ["two"]},
        {"key_alias": "alone", "metadata": {"guardrails": ["gone", long], "x": 1}},
    ]
    carry_keys(located(keys=keys), plan, tenants)
    assert [key.get("tags") for key in plan.keys] == [{"guard.one": "on", "guard.two": "on"}, None]
    assert any("keys of this team have the tags guard.one: on" in remark.text for remark in plan.notes)
    assert [line.partition(": ")[0] for line in left(plan)] == ["keys[1].guardrails", "keys[1].guardrails", "keys"]
    assert "'gone' is no guardrail that was carried" in left(plan)[0]
    assert "is too long" in left(plan)[1]


def test_rules_and_detectors_are_written_into_policy_and_settings() -> None:
    plan = carried(guardrail("openai_moderation", default_on=True))
    files = {name: yaml.safe_load(text) for name, text in files_of(plan, "config.yaml").items() if name.endswith(".yaml")}
    assert files["tidegate.yaml"]["guards"] == {"detectors": plan.detectors}
    assert files["policies/everyone.yaml"]["guards"] == {"rules": plan.guards}
