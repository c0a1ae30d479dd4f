"""Parameters with members and with several spellings, and those that only a policy opens."""

from typing import Any

import pytest

from domain.faults import Fault, Kind
from gateway.http.openai.parameters import check_closed, with_parameters
from tests.unit.gateway.http.openai.test_parameters import chat, rules, sent


def refused(fields: dict[str, Any], **written: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        with_parameters(chat(**fields), rules(**written))
    return caught.value


def passes(fields: dict[str, Any], **written: Any) -> bool:
    asked = chat(**fields)
    return with_parameters(asked, rules(**written)) is asked


THINKING: list[dict[str, Any]] = [
    {"reasoning_effort": "none"},
    {"enable_thinking": False},
    {"thinking": {"type": "disabled"}},
    {"chat_template_kwargs": {"enable_thinking": False}},
    {"chat_template_kwargs": {"style": "x", "thinking": False}},
    {"chat_template_kwargs": {"reasoning_effort": "low"}},
]


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57")
def test_a_policy_narrows_or_forbids_the_variables_of_templates() -> None:
    free = {"chat_template_kwargs": {"enable_thinking": False, "style": "x", "budget": 5}}
    whole = refused(free, refused=["chat_template_kwargs"])
    assert (whole.kind, whole.param) == (Kind.NOT_PERMITTED, "chat_template_kwargs")
    assert refused(free, refused=["chat_template_kwargs.style"]).param == "chat_template_kwargs.style"
    assert refused(free, allowed=["temperature"]).param == "chat_template_kwargs"
    assert refused(free, allowed=["chat_template_kwargs.enable_thinking"]).param == "chat_template_kwargs.style"
    assert passes({"chat_template_kwargs": {"style": "x"}}, allowed=["chat_template_kwargs.style"])
    assert passes({"chat_template_kwargs": {"style": None}}, refused=["chat_template_kwargs.style"])
    assert passes(free, allowed=["chat_template_kwargs"])
    high = refused(free, at_most={"chat_template_kwargs.budget": 4})
    assert (high.kind, high.param) == (Kind.INVALID_VALUE, "chat_template_kwargs.budget")
    assert "at most 4 is allowed here" in high.message
    assert passes(free, at_most={"chat_template_kwargs.budget": 5})


@pytest.mark.parametrize("value", [-1, True, "5"])
def test_a_bound_of_a_member_holds_for_what_means_no_bound(value: object) -> None:
    fault = refused({"chat_template_kwargs": {"budget": value}}, at_most={"chat_template_kwargs.budget": 4})
    assert (fault.kind, fault.param) == (Kind.INVALID_VALUE, "chat_template_kwargs.budget")


@pytest.mark.parametrize("fields", THINKING)
def test_no_spelling_of_thinking_is_a_way_around_a_policy(fields: dict[str, Any]) -> None:
    for spelled in ("reasoning_effort", "enable_thinking", "chat_template_kwargs.thinking"):
        assert refused(fields, refused=[spelled]).kind is Kind.NOT_PERMITTED
        if len(fields.get("chat_template_kwargs", {})) < 2:
            assert passes(fields, allowed=[spelled])
    assert passes(fields, defaults={"reasoning_effort": "high"}), "the request has said it"
    always = refused(fields, defaults={"reasoning_effort": "none"}, refused=["reasoning_effort"])
    assert always.kind is Kind.NOT_PERMITTED


def test_a_default_of_the_effort_holds_where_no_spelling_is_set() -> None:
    made = sent(
        with_parameters(chat(chat_template_kwargs={"style": "x"}, enable_thinking=None), rules(defaults={"reasoning_effort": "low"}))
    )
    assert made["reasoning_effort"] == "low"


@pytest.mark.parametrize("spelled", ["guided_grammar", "ebnf", "grammar", "structured_outputs.grammar", "structured_outputs"])
def test_no_spelling_of_a_grammar_is_a_way_around_a_policy(spelled: str) -> None:
    text = 'root ::= "a"'
    for fields in ({"guided_grammar": text}, {"ebnf": text}, {"grammar": text}, {"structured_outputs": {"grammar": text}}):
        assert refused(fields, refused=[spelled]).kind is Kind.NOT_PERMITTED
        assert passes(fields, allowed=[spelled])
    other = {"structured_outputs": {"regex": "a"}}
    if spelled == "structured_outputs":
        assert refused(other, refused=[spelled]).param == spelled
    else:
        assert passes(other, refused=[spelled])
        assert refused(other, allowed=[spelled]).param == "structured_outputs.regex"


@pytest.mark.fault("expensive parameters")
@pytest.mark.req("R57")
@pytest.mark.parametrize("field", ["mm_processor_kwargs", "media_io_kwargs"])
def test_media_processing_is_the_operators_until_a_policy_opens_it(field: str) -> None:
    asked = chat(**{field: {"video": {"num_frames": 8, "fps": 1}}})
    for closed in (None, rules(refused=["seed"]), rules(allowed=[field]), rules(opened=[f"{field}.image"])):
        with pytest.raises(Fault) as caught:
            check_closed(asked, closed)
        assert caught.value.kind is Kind.UNSUPPORTED_PARAMETER
        assert (caught.value.param or "").partition(".")[0] == field
    for opened in ([field], [f"{field}.video"], [f"{field}.video.num_frames", f"{field}.video.fps"]):
        check_closed(asked, rules(opened=opened))
    with pytest.raises(Fault) as caught:
        check_closed(asked, rules(opened=[f"{field}.video.num_frames"]))
    assert caught.value.param == f"{field}.video.fps"
    check_closed(chat(**{field: {}}), None)
    bounded = {"opened": [field], "at_most": {f"{field}.video.num_frames": 8}}
    assert with_parameters(asked, rules(**bounded)) is asked
    for frames in (9, -1):
        assert refused({field: {"video": {"num_frames": frames}}}, **bounded).param == f"{field}.video.num_frames"


def test_a_strange_member_is_shown_as_text() -> None:
    with pytest.raises(Fault) as caught:
        check_closed(chat(mm_processor_kwargs={"a\nb": 1}), rules(opened=["mm_processor_kwargs.a"]))
    assert caught.value.param == "mm_processor_kwargs.'a?b'"
