"""The audit's rows of blocks by guard rules: what stands in them, and that no name is too long for a column."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.guard_blocks import LATE_MINUTES, block_entry, ended_ms, further_entry, last_over, minute_of
from tenancy.usage import GuardBlock
from tenancy.wal_frames import tamed
from tests.usage_events import FIRST_MS, event

BLOCK = GuardBlock("keys", "aws_key,jwt", "output", "0123456789abcdef", late=True)


@pytest.mark.req("R55")
def test_a_row_names_key_request_rule_and_kinds_and_has_no_text() -> None:
    entry = block_entry(event(7, tenant="acme", key_id="k1", model="sim", blocked=BLOCK))
    assert (entry.actor, entry.action, entry.target, entry.tenant) == ("key k1@acme", "guard.block", "tenant/acme/guard/keys", "acme")
    assert msgspec.json.decode(entry.after) == {
        "request_id": "req-7",
        "model": "sim",
        "rule": "keys",
        "kinds": ["aws_key", "jwt"],
        "direction": "output",
        "late": True,
        "version": "0123456789abcdef",
    }
    assert (entry.before, entry.role, entry.address) == ("", "", "")


def test_a_row_names_the_refused_model_and_the_one_that_answered() -> None:
    entry = block_entry(event(7, model="sim", blocked=msgspec.structs.replace(BLOCK, model="strict")))
    after = msgspec.json.decode(entry.after)
    assert (after["model"], after["answered_by"]) == ("strict", "sim")


def test_the_row_of_a_minute_counts_the_others() -> None:
    entry = further_entry("acme", FIRST_MS // 60_000, 990)
    assert (entry.actor, entry.action, entry.target) == ("guards", "guard.further_blocks", "tenant/acme/guards")
    assert msgspec.json.decode(entry.after) == {"blocks": 990, "minute_unix": FIRST_MS // 1000}


def test_a_block_counts_in_the_minute_in_which_its_request_ended() -> None:
    long = event(at_unix_ms=FIRST_MS + 59_000, duration_ms=2_000)
    assert ended_ms(long) == FIRST_MS + 61_000
    assert minute_of(long) == FIRST_MS // 60_000 + 1
    assert last_over((FIRST_MS + 61_000) / 1000) == FIRST_MS // 60_000 + 1 - LATE_MINUTES


texts = st.text(max_size=400)


@given(texts, texts, texts, texts)
def test_whatever_the_names_are_they_fit_the_columns(tenant: str, key: str, rule: str, kinds: str) -> None:
    """`stores.sql.schema.audit` says how long each may be."""
    hostile = tamed(event(tenant=tenant, key_id=key, blocked=GuardBlock(rule, kinds, "input", "0123")))
    for entry in (block_entry(hostile), further_entry(hostile.tenant, 0, 1)):
        assert len(entry.actor) <= 80 and len(entry.target) <= 512 and len(entry.tenant) <= 63
        assert not any("\0" in value for value in msgspec.structs.astuple(entry))
