from collections import Counter
from types import MappingProxyType

import pytest

from policies.prompts.allowed import allowed_of
from policies.prompts.prompt import prompt_of
from policies.prompts.schema import PromptDocument
from policies.schema import PolicyDocument


def registry(**prompts):
    def made(name, version):
        text = {"role": "system", "content": f"{name} {version}"}
        return prompt_of(PromptDocument.model_validate({"id": name, "version": version, "messages": [text]}))[0]

    return {name: {version: made(name, version) for version in versions} for name, versions in prompts.items()}


THERE = registry(greeting_a=[1, 2], greeting_b=[7], refunds=[1, 2, 3])


def allowed(*entries):
    return allowed_of(PolicyDocument.model_validate({"tenant": "acme", "prompts": list(entries)}).prompts, THERE)


def name_of(found, wanted, key="k"):
    prompt = found.version(wanted, key)
    return None if prompt is None else prompt.name


def test_of_an_id_or_a_pattern_the_highest_version_counts_and_all_exist():
    found = allowed("greeting_*", "refunds")
    assert sorted(found) == ["greeting_a", "greeting_b", "refunds"]
    assert [name_of(found["refunds"], wanted) for wanted in (None, 1, 3, 4)] == ["refunds@3", "refunds@1", "refunds@3", None]
    assert allowed() == MappingProxyType({})
    assert sorted(allowed("*")) == sorted(THERE)


def test_what_is_written_out_comes_before_what_a_pattern_matches():
    found = allowed({"id": "refunds", "version": 2}, "*")
    assert [name_of(found["refunds"], wanted) for wanted in (None, 2, 3)] == ["refunds@2", "refunds@2", None]
    assert name_of(found["greeting_a"], None) == "greeting_a@2"


def dealt(first, second, key_count=2000):
    entry = {"id": "refunds", "versions": [{"version": 1, "weight": first}, {"version": 2, "weight": second}]}
    found = allowed(entry)["refunds"]
    return {f"c{n}": name_of(found, None, f"c{n}") for n in range(key_count)}


def test_conversations_are_dealt_out_by_weight_stay_and_join_as_a_weight_grows():
    before = dealt(95, 5)
    assert before == dealt(95, 5)
    assert 60 <= Counter(before.values())["refunds@2"] <= 140  # 100, give or take four standard deviations
    after = dealt(75, 25)
    assert {key for key, name in before.items() if name == "refunds@2"} <= {key for key, name in after.items() if name == "refunds@2"}
    assert set(dealt(1, 0).values()) == {"refunds@1"}


def test_a_version_without_weight_is_for_who_names_it():
    found = allowed({"id": "refunds", "versions": [{"version": 1, "weight": 1}, {"version": 3, "weight": 0}]})["refunds"]
    assert [name_of(found, wanted) for wanted in (None, 1, 2, 3)] == ["refunds@1", "refunds@1", None, "refunds@3"]


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"id": "a"}, "says nothing of versions"),
        ({"id": "a", "version": 1, "versions": [{"version": 1, "weight": 1}]}, "has version and versions"),
        ({"id": "a", "versions": [{"version": 1, "weight": 0}]}, "gives no version any weight"),
        ({"id": "a", "versions": [{"version": 1, "weight": 1}, {"version": 1, "weight": 2}]}, "lists version 1 twice"),
        ("A b", "pattern"),
    ],
)
def test_entries_that_make_no_sense_are_refused(entry, words):
    with pytest.raises(ValueError, match=words):
        allowed(entry)
