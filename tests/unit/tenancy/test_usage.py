"""Values of the ledger's questions."""

import contextlib
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.usage import BadCursor, columns, day_of, first_of_month, from_cursor, to_cursor


def test_columns_come_in_one_order_and_what_belongs_to_a_tenant_has_it_beside() -> None:
    assert columns(["lora", "day"]) == ("day", "lora")
    assert columns(["project"]) == ("tenant", "project")
    assert columns(["user", "tenant"]) == ("tenant", "user")
    assert columns([]) == ()
    with pytest.raises(ValueError, match="colour"):
        columns(["colour"])  # type: ignore[list-item]  # what a command line may hold


LABELS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
"""What the ledger keeps of any label (`tenancy.wal_frames`)."""


@given(st.lists(LABELS, min_size=1, max_size=4))
def test_a_cursor_leads_back_to_its_place(place: list[str]) -> None:
    assert from_cursor(to_cursor(place), [str] * len(place)) == place
    with pytest.raises(BadCursor):
        from_cursor(to_cursor(place), [str] * (len(place) + 1))


@pytest.mark.parametrize(("place", "kind"), [("a\0", str), (2**63, int), (-(2**63), int)])
def test_what_no_store_could_look_for_is_no_place(place: object, kind: type) -> None:
    with pytest.raises(BadCursor):
        from_cursor(to_cursor([place]), [kind])


@given(st.text(max_size=40))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with contextlib.suppress(BadCursor):
        assert isinstance(from_cursor(text, [int])[0], int)


def test_days_are_those_of_utc() -> None:
    assert day_of(0) == dt.date(1970, 1, 1)
    assert day_of(86_400_000 - 1) == dt.date(1970, 1, 1)
    assert day_of(86_400_000) == dt.date(1970, 1, 2)
    assert day_of(2**62) == dt.date.max
    assert day_of(-(2**62)) == dt.date.min
    assert first_of_month(dt.date(2026, 2, 28)) == dt.date(2026, 2, 1)
