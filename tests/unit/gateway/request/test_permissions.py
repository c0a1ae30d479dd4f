"""What a caller may ask for: the tightest level refuses and is named, and what it may not know of does not exist."""

import json
from typing import Any

import pytest

from domain.ask import Ask, Endpoint
from domain.faults import Fault, Kind
from domain.priority import CLASSES, Class
from gateway.http.openai import interpret
from gateway.request.permissions import (
    OUTPUT_METERS,
    PROMPT_METERS,
    check_ledger,
    check_parameters,
    check_prompt,
    exists_for,
    output_cap,
    urgency,
)
from policies.compile import ModelRule, TenantPolicy, compiled
from policies.schema import PolicyDocument
from tenancy.limits import Group, Level, Limit, Meter, Scope, Window, line_of
from tenancy.rights import Allowed, Caps, Rights, combined

ORGANISATION, TENANT, KEY = Scope(Level.ORGANISATION, "org"), Scope(Level.TENANT, "acme"), Scope(Level.KEY, "abc")


def ask(**fields: Any) -> Ask:
    return interpret(Endpoint.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode())


def caps(**values: Any) -> Rights:
    return Rights(caps=Caps(**values))


def test_of_several_caps_the_tightest_refuses_by_name() -> None:
    rights = combined([(ORGANISATION, caps(max_choices=4)), (TENANT, caps(max_choices=2)), (KEY, caps(max_choices=3))])
    check_parameters(rights, ask(n=2))
    with pytest.raises(Fault, match=r"3 choices, and at most 2 are allowed \(set for tenant acme\)"):
        check_parameters(rights, ask(n=3))


def test_models_and_adapters_that_are_not_allowed_do_not_exist() -> None:
    rights = combined([(TENANT, Rights(models=frozenset({"a", "b"}), loras=frozenset({"x"}))), (KEY, Rights(models=frozenset({"b", "c"})))])
    assert [exists_for(rights, ModelRule(name, "pool")) for name in "abc"] == [False, True, False]
    assert [exists_for(rights, ModelRule("b", "pool", lora)) for lora in ("x", "y")] == [True, False]
    assert exists_for(Allowed(), ModelRule("z", "pool", "anything"))


def test_an_empty_list_leaves_nothing() -> None:
    assert not exists_for(combined([(TENANT, Rights(models=frozenset()))]), ModelRule("a", "pool"))
    with pytest.raises(Fault) as caught:
        check_parameters(combined([(TENANT, Rights(endpoints=frozenset()))]), ask())
    assert caught.value.kind is Kind.NOT_PERMITTED


def test_prompts_have_a_cap_of_their_own() -> None:
    rights = combined([(KEY, caps(max_input_tokens=10))])
    check_prompt(rights, 10)
    with pytest.raises(Fault, match="key abc"):
        check_prompt(rights, 11)


@pytest.mark.parametrize(
    ("right", "context", "prompt", "cap"),
    [(None, None, 50, 1000), (400, None, 50, 400), (4000, None, 50, 1000), (None, 500, 50, 450), (100, 500, 450, 50), (None, 500, 900, 1)],
)
def test_the_cap_that_is_written_in_is_the_smallest_that_is_known(right: int | None, context: int | None, prompt: int, cap: int) -> None:
    rights = combined([(KEY, caps(max_output_tokens=right))])
    assert output_cap(rights, 1000, context, prompt) == cap


def meters_of(meter: Meter, window: Window = Window.DAY) -> int:
    return Group("acme", (line_of(Limit(TENANT, meter, window, 10), 0.0),)).meters


def test_a_full_ledger_stops_what_money_limits_and_nothing_else() -> None:
    for meter in set(Meter) - {Meter.COST_NANOUSD}:
        check_ledger(meters_of(meter, Window.NOW if meter is Meter.CONCURRENT_REQUESTS else Window.DAY), 0.0)
    check_ledger(0, 0.0)
    for draw in (0.0, 1.0):
        with pytest.raises(Fault, match="cannot be written down") as raised:
            check_ledger(meters_of(Meter.REQUESTS) | meters_of(Meter.COST_NANOUSD, Window.MONTH), draw)
        assert raised.value.kind is Kind.QUOTA_UNKNOWN
        assert raised.value.retry.after_s == 5.0 + 5.0 * draw


def test_which_limits_need_what() -> None:
    needs = {meter: (bool(meters_of(meter) & PROMPT_METERS), bool(meters_of(meter) & OUTPUT_METERS)) for meter in list(Meter)[:6]}
    assert needs == {
        Meter.REQUESTS: (False, False),
        Meter.INPUT_TOKENS: (True, False),
        Meter.OUTPUT_TOKENS: (False, True),
        Meter.TOKENS: (True, True),
        Meter.UNITS: (True, True),
        Meter.COST_NANOUSD: (True, True),
    }


def policy(word: str) -> TenantPolicy:
    return compiled([PolicyDocument.model_validate({"tenant": "acme", "class": word})]).policies()[0]


def said(word: str) -> dict[bytes, bytes]:
    return {b"x-tidegate-class": word.encode()}


@pytest.mark.parametrize("granted", Class)
@pytest.mark.parametrize("right", [None, *Class])
@pytest.mark.parametrize("wanted", [None, *Class])
def test_policy_rights_and_header_can_each_only_lower_the_class(granted: Class, right: Class | None, wanted: Class | None) -> None:
    rights = combined([(TENANT, Rights(priority_class=right)), (KEY, Rights())])
    found, _ = urgency(policy(granted.word), rights, ask(), said(wanted.word) if wanted is not None else {})
    assert found is max(one for one in (granted, right, wanted) if one is not None)


def test_of_several_levels_the_lowest_class_counts_and_no_level_gives_back() -> None:
    rights = combined([(ORGANISATION, Rights(priority_class=Class.INTERACTIVE)), (TENANT, Rights(priority_class=Class.BATCH)),
                       (KEY, Rights(priority_class=Class.CRITICAL))])  # fmt: skip
    assert rights.priority_class is Class.BATCH
    assert combined([(KEY, caps(max_choices=1))]).priority_class is Class.CRITICAL


def test_flex_is_batch_and_other_tiers_change_nothing() -> None:
    tiers = ("flex", "auto", "default", "priority", None)
    found = [urgency(policy("interactive"), Allowed(), ask(service_tier=tier), {})[0] for tier in tiers]
    assert found == [Class.BATCH] + [Class.INTERACTIVE] * 4
    assert b'"service_tier":"flex"' in ask(service_tier="flex").fields, "an engine that knows tiers still hears of it"


@pytest.mark.parametrize("word", ["Batch", " batch "])
def test_the_header_is_read_kindly(word: str) -> None:
    assert urgency(policy("default"), Allowed(), ask(), said(word))[0] is Class.BATCH


@pytest.mark.parametrize("word", ["", "urgent", "0", "\xff"])
def test_a_word_that_is_no_class_is_refused_with_those_that_are(word: str) -> None:
    with pytest.raises(Fault, match="critical, interactive, default, batch") as caught:
        urgency(policy("default"), Allowed(), ask(), {b"x-tidegate-class": word.encode("latin-1")})
    assert caught.value.kind is Kind.INVALID_VALUE and "x-tidegate-class" in caught.value.message


@pytest.mark.parametrize(
    ("count", "retry"), [(None, False), ("0", False), ("00", False), ("1", True), ("10", True), ("-1", False), ("x", False), ("", False)]
)
def test_a_client_that_counts_its_tries_is_believed(count: str | None, retry: bool) -> None:
    headers = {} if count is None else {b"x-stainless-retry-count": count.encode()}
    assert urgency(policy("default"), Allowed(), ask(), headers) == (Class.DEFAULT, retry)


def test_classes_have_words_and_their_order_is_that_of_service() -> None:
    assert [one.word for one in sorted(Class)] == list(CLASSES) == ["critical", "interactive", "default", "batch"]


@pytest.mark.parametrize("fields", [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"functions": [{"name": "f"}]}])
def test_tools_are_refused_in_their_older_field_as_well(fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as refused:
        check_parameters(combined([(TENANT, caps(tools=False)), (KEY, caps(tools=True))]), ask(**fields))
    assert (refused.value.kind, refused.value.param) == (Kind.NOT_PERMITTED, "tools")
    assert str(TENANT) in refused.value.message
