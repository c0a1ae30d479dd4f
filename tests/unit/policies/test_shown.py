from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.compile import PolicySet, compiled
from policies.prompts.prompt import prompt_of
from policies.prompts.schema import PromptDocument
from policies.schema import PolicyDocument
from policies.shown import differences, meaning, rule_in_words, tag_report, treatment

CHAT = {"name": "chat", "pool": "chat"}


def read(**documents: dict[str, Any]) -> PolicySet:
    named = {"*" if name == "everyone" else name: one for name, one in documents.items()}
    return compiled([PolicyDocument.model_validate({"tenant": tenant, **one}) for tenant, one in named.items()])


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return list(differences(read(acme=before), read(acme=after)))


def test_every_kind_of_change_is_told_with_what_was_and_what_will_be() -> None:
    before = {"models": [CHAT, {"name": "old", "pool": "x"}], "class": "batch", "rules": [rule("a", "stream"), rule("b", "tools")]}
    after = {
        "models": [
            {"name": "chat", "pools": [{"pool": "chat", "weight": 3}, {"pool": "y", "weight": 1}]},
            {"name": "z", "alias_of": "chat"},
        ],
        "class": "default",
        "for_project": {"lab": {"max_wait_s": 5}},
        "rules": [rule("b", "tools"), rule("c", "choices > 1"), rule("a", "!stream")],
    }
    assert changes(before, after) == [
        "acme: model chat -> chat becomes chat -> 75 % chat, 25 % y",
        "acme: model old removed",
        "acme: model z = chat added",
        "acme: class batch -> default",
        "acme, project lab: max_wait_s none -> 5.0",
        "acme: rule a becomes if !stream: priority 1.0 (was if stream: priority 1.0)",
        "acme: rule c added, if choices > 1: priority 1.0",
        "acme: the rules' order becomes b, c, a",
    ]


def test_parameters_with_members_are_told_by_their_paths() -> None:
    written = {
        "refused": ["chat_template_kwargs.style"],
        "allowed": ["temperature", "chat_template_kwargs.budget"],
        "at_most": {"chat_template_kwargs.budget": 8},
        "opened": ["media_io_kwargs.video"],
    }
    assert changes({"models": [CHAT]}, {"models": [CHAT], "parameters": written}) == [
        "acme: parameters as they come -> chat_template_kwargs.budget at most 8, no chat_template_kwargs.style, "
        "media_io_kwargs.video opened, only chat_template_kwargs.budget media_io_kwargs.video temperature"
    ]


def rule(name: str, condition: str) -> dict[str, Any]:
    return {"name": name, "if": condition, "then": {"priority": 1.0}}


def test_a_change_for_everyone_is_told_of_all_who_inherit_it() -> None:
    tenants: dict[str, Any] = {"acme": {"models": [CHAT]}, "lab": {"class": "critical"}}
    before, after = (read(everyone={"models": [CHAT], "class": word}, **tenants) for word in ("default", "batch"))
    assert list(differences(before, after)) == ["everyone else: class default -> batch", "acme: class default -> batch"]


def test_tenants_come_and_go() -> None:
    before, after = read(everyone={}, acme={}), read(everyone={}, lab={"models": [CHAT]})
    assert list(differences(before, after)) == [
        "acme: no policy any more; that of everyone else counts",
        "lab: a policy of its own, with 1 models",
    ]
    assert next(differences(read(everyone={}), read(lab={}))) == "everyone else: no policy any more"


def test_other_ways_to_write_the_same_are_no_change() -> None:
    said = {"models": [CHAT, {"name": "b", "pool": "x"}], "class": "default", "degrade": [{"model": "b"}]}
    other = {
        "models": [{"name": "b", "pool": "x"}, CHAT],
        "degrade": [{"model": "b", "after_s": 0}],
        "for_model": {"chat": {"class": "default"}},
    }
    assert changes(said, other) == []


@given(st.sampled_from(["critical", "batch"]), st.one_of(st.none(), st.floats(0, 100)), st.booleans())
def test_what_differs_is_never_left_out(word: str, wait_s: float | None, shown: bool) -> None:
    before = {"models": [CHAT]}
    after = {**before, "class": word, "max_wait_s": wait_s, "expose_headers": shown}
    assert len(changes(before, after)) == 1 + (wait_s is not None) + shown


def test_words_for_people() -> None:
    policy = read(acme={"models": [{**CHAT, "lora": "l"}], "degrade": [{"trim_output_tokens": 9, "after_s": 2}, "queue"]}).for_tenant(
        "acme"
    )
    assert policy is not None
    assert meaning("chat", policy.models["chat"]) == "chat -> chat with l"
    assert treatment(policy)["degrade"] == "trim_output_tokens 9 after 2 s, queue"
    assert treatment(policy)["class"] == "default"
    book = read(acme={"models": [CHAT], "rules": [{"name": "x", "models": ["chat"], "share": 0.5, "then": {"model": "chat"}}]}).for_tenant(
        "acme"
    )
    assert book is not None
    assert book.rules is not None
    assert rule_in_words(book.rules.rules[0]) == "for chat for 50 % of conversations: model chat"


def prompts(*versions: int, text: str = "x") -> Any:
    one = {"id": "p", "messages": [{"role": "user", "content": text}]}
    return {"p": {version: prompt_of(PromptDocument.model_validate({**one, "version": version}))[0] for version in versions}}


def test_prompts_come_go_are_dealt_out_and_say_something_else() -> None:
    def site(there: Any, *entries: Any) -> PolicySet:
        return compiled([PolicyDocument.model_validate({"tenant": "acme", "prompts": list(entries)})], there)

    both = {"id": "p", "versions": [{"version": 1, "weight": 3}, {"version": 2, "weight": 1}]}
    assert list(differences(site(prompts(1)), site(prompts(1), "*"))) == ["acme: prompt p@1 added"]
    assert list(differences(site(prompts(1), "p"), site(prompts(1, 2), both))) == ["acme: prompt p@1 becomes 75 % p@1, 25 % p@2"]
    assert list(differences(site(prompts(1), "p"), site(prompts(1)))) == ["acme: prompt p removed"]
    assert list(differences(site(prompts(1), "p"), site(prompts(1, text="y"), "p"))) == ["acme: prompt p@1 says something else"]


def guards(*rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rules": [{"kind": "words", "mode": "block", "words": ["falcon"], **rule} for rule in rules], **more}


def test_guard_rules_come_go_and_change_at_their_level() -> None:
    before = {
        "models": [CHAT],
        "guards": guards({"id": "a"}, {"id": "b"}, {"id": "c"}),
        "for_project": {"lab": {"guards": guards({"id": "d"}, held_bytes=4096)}},
        "rules": [{"name": "r", "if": "tools", "then": {"guards": guards({"id": "f"})}}],
    }
    after = {
        "models": [CHAT],
        "guards": guards({"id": "c"}, {"id": "b", "mode": "flag", "words": [f"word{n}" for n in range(100)]}, held_bytes=8192),
        "for_project": {"lab": {"guards": guards({"id": "d", "on": ["output"]})}},
        "for_model": {"chat": {"guards": guards({"id": "e", "kind": "words", "default_on": False})}},
        "rules": [{"name": "r", "if": "tools", "then": {"guards": guards({"id": "g"})}}],
    }
    told = changes(before, after)
    digest = told[1].partition("(")[2].partition(")")[0]
    words = f"flag words on input, output; words of 100 entries ({digest})"
    block = 'block words on input, output; words ["falcon"]'
    assert told == [
        f"acme, guards of acme: a removed (was {block})",
        f"acme, guards of acme: b becomes {words} (was {block})",
        "acme, guards of acme: the order becomes c, b",
        "acme, guards of acme: held_bytes none of its own -> 8192",
        f'acme, guards of acme, project lab: d becomes block words on output; words ["falcon"] (was {block})',
        "acme, guards of acme, project lab: held_bytes 4096 -> none of its own",
        f"acme, guards of rule r: f removed (was {block})",
        f"acme, guards of rule r: g added, {block}",
        f"acme, guards of acme, model chat: e added, {block}; where a key or a request asks for it",
    ]


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "mode": st.sampled_from(["flag", "redact"]),
            "on": st.just(["output"]),
            "words": st.lists(st.text("abc", min_size=1, max_size=9), min_size=1, max_size=40),
            "whole_words": st.just(False),
            "on_error": st.just("open"),
            "default_on": st.just(False),
        },
    )
)
def test_no_change_of_a_guard_rule_is_left_out(change: dict[str, Any]) -> None:
    before, after = ({"models": [CHAT], "guards": guards({"id": "a", **more})} for more in ({}, change))
    same = change.get("words", ["falcon"]) == ["falcon"] and not change.keys() - {"words"}
    assert len(changes(before, after)) == (0 if same else 1)
    assert changes(after, after) == []


def test_tags_that_ask_for_guard_rules_are_reserved_as_those_of_rules() -> None:
    rules = ({"id": "a"}, {"id": "b", "default_on": False}, {"id": "n" * 40, "default_on": False})
    assert tag_report(read(acme={"models": [CHAT], "guards": guards(*rules)})) == (["guard.b"], [])


def test_the_cache_and_stored_responses_are_told_by_their_members() -> None:
    with_both = {"models": [CHAT], "cache": {"ttl_s": 60}, "responses": {"keep_days": 7}}
    told = changes({"models": [CHAT]}, with_both)
    assert "acme: responses none -> store true, keep_days 7, max_bytes 268435456, max_background 20" in told
    assert [line for line in told if line.startswith("acme: cache none -> exact true, ttl_s 60.0, ")]
