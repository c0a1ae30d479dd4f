import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.limits import Level, Scope
from tenancy.rights import MAX_NAMES, Allowed, Cap, Caps, Rights, combined

LEVELS = [Scope(Level.ORGANISATION, "corp"), Scope(Level.TENANT, "acme"), Scope(Level.PROJECT, "acme/lab"), Scope(Level.KEY, "abcdefghij")]
names = st.none() | st.frozensets(st.sampled_from("abcd"))
caps = st.builds(
    Caps,
    *[st.none() | st.integers(1, 5)] * 3,
    st.none() | st.integers(0, 5),
    st.booleans(),
)
every_level = st.lists(st.builds(Rights, names, names, names, caps), min_size=4, max_size=4)


@given(every_level, st.sampled_from("abcde"))
def test_a_name_is_allowed_when_every_list_has_it_and_the_widest_that_lacks_it_is_named(rights: list[Rights], name: str) -> None:
    allowed = combined(zip(LEVELS, rights, strict=True))
    for what, refused_by in (
        ("models", allowed.refuses_model(name)),
        ("loras", allowed.refuses_lora(name)),
        ("endpoints", allowed.refuses_endpoint(name)),
    ):
        lacking = [
            scope for scope, own in zip(LEVELS, rights, strict=True) if (known := getattr(own, what)) is not None and name not in known
        ]
        assert refused_by == (lacking[0] if lacking else None)


@given(every_level)
def test_the_smallest_cap_counts_and_says_whose_it_is(rights: list[Rights]) -> None:
    allowed = combined(zip(LEVELS, rights, strict=True))
    for what in ("max_input_tokens", "max_output_tokens", "max_choices", "max_logprobs"):
        cap: Cap | None = getattr(allowed, what)
        values = {scope: value for scope, own in zip(LEVELS, rights, strict=True) if (value := getattr(own.caps, what)) is not None}
        assert (cap is None) is not bool(values)
        if cap is not None:
            assert cap.value == min(values.values()) == values[cap.scope]
            assert cap.scope == next(scope for scope, value in values.items() if value == cap.value)
    refusing = [scope for scope, own in zip(LEVELS, rights, strict=True) if not own.caps.tools]
    assert allowed.tools_refused_by == (refusing[0] if refusing else None)


@given(every_level, st.integers(0, 3), st.builds(Rights, names, names, names, caps), st.sampled_from("abcde"))
def test_what_a_level_says_never_gives_more(rights: list[Rights], at: int, said: Rights, name: str) -> None:
    before = combined(zip(LEVELS, [*rights[:at], Rights(), *rights[at + 1 :]], strict=True))
    after = combined(zip(LEVELS, [*rights[:at], said, *rights[at + 1 :]], strict=True))
    assert before.refuses_model(name) is None or after.refuses_model(name) is not None
    assert before.tools_refused_by is None or after.tools_refused_by is not None
    if before.max_choices is not None:
        assert after.max_choices is not None
        assert after.max_choices.value <= before.max_choices.value


def test_nothing_said_is_nothing_refused() -> None:
    assert combined((scope, Rights()) for scope in LEVELS) == Allowed()


@pytest.mark.parametrize(
    "fields",
    [{"max_choices": 0}, {"max_input_tokens": -1}, {"max_output_tokens": 2**31}, {"max_logprobs": -1}],
)
def test_caps_out_of_bounds_cannot_be_made(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Caps(**fields)


@pytest.mark.parametrize("models", [{""}, {"m" * 257}, set(map(str, range(MAX_NAMES + 1)))])
def test_lists_out_of_bounds_cannot_be_made(models: set[str]) -> None:
    with pytest.raises(ValueError, match="models"):
        Rights(models=frozenset(models))
