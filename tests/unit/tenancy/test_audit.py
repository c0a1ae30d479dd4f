"""The audit chain: whatever is changed in it, taken out, put in or moved is found."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tenancy.audit import GENESIS, AuditRow, Entry, Walk, canonical, next_row, shadow


def entry(n: int) -> Entry:
    return Entry("bootstrap", "owner", "127.0.0.1", "tenant.create", f"tenant/t{n}", tenant=f"t{n}", after=canonical({"name": f"t{n}"}))


def chain(length: int) -> list[AuditRow]:
    rows: list[AuditRow] = []
    head = GENESIS
    for n in range(length):
        rows.append(next_row(n + 1, head, 1000 + n, entry(n)))
        head = rows[-1].hash
    return rows


def broken_at(rows: list[AuditRow], seq: int, head: bytes) -> int | None:
    walk = Walk()
    walk.feed(rows)
    return walk.end(seq, head).broken_at


def test_a_chain_as_written_holds() -> None:
    rows = chain(20)
    assert broken_at(rows, 20, rows[-1].hash) is None
    assert broken_at([], 0, GENESIS) is None


@given(st.data())
def test_any_change_of_any_field_is_found_at_its_row(data: st.DataObject) -> None:
    rows = chain(8)
    at = data.draw(st.integers(0, 7))
    field = data.draw(st.sampled_from([*Entry.__struct_fields__, "at_unix_ms", "hash"]))
    row = rows[at]
    if field == "hash":
        bit = data.draw(st.integers(0, 255))
        changed = msgspec.structs.replace(row, hash=(int.from_bytes(row.hash) ^ (1 << bit)).to_bytes(32))
    elif field == "at_unix_ms":
        changed = msgspec.structs.replace(row, at_unix_ms=row.at_unix_ms + data.draw(st.sampled_from([-1, 1])))
    else:
        said = getattr(row.entry, field)
        changed = msgspec.structs.replace(row, entry=msgspec.structs.replace(row.entry, **{field: said + data.draw(st.text(min_size=1))}))
    assert broken_at([*rows[:at], changed, *rows[at + 1 :]], 8, rows[-1].hash) == at + 1


@given(st.integers(0, 6))
def test_a_row_that_is_replaced_together_with_its_own_hash_is_found_at_the_row_after_it(at: int) -> None:
    """The hash of a row covers the hash before it, so a forger has to write every later row anew as well."""
    rows = chain(8)
    forged = next_row(at + 1, rows[at - 1].hash if at else GENESIS, rows[at].at_unix_ms, entry(99))
    assert broken_at([*rows[:at], forged, *rows[at + 1 :]], 8, rows[-1].hash) == at + 2


@given(st.integers(0, 7))
def test_a_missing_row_is_found_also_at_the_end(at: int) -> None:
    rows = chain(8)
    assert broken_at(rows[:at] + rows[at + 1 :], 8, rows[-1].hash) == at + 1


def test_text_cannot_move_from_one_field_to_the_next() -> None:
    one = next_row(1, GENESIS, 5, Entry("a", "bc", "", "", ""))
    other = next_row(1, GENESIS, 5, Entry("ab", "c", "", "", ""))
    assert one.hash != other.hash


def test_canonical_json_does_not_depend_on_the_order_of_names() -> None:
    assert canonical({"b": 1, "a": {"d": 2, "c": 3}}) == canonical({"a": {"c": 3, "d": 2}, "b": 1}) == '{"a":{"c":3,"d":2},"b":1}'


def test_a_shadow_tells_a_change_and_nothing_else() -> None:
    assert shadow(b"pepper", b"one") == shadow(b"pepper", b"one") != shadow(b"pepper", b"two")
    assert shadow(b"other", b"one") != shadow(b"pepper", b"one")
    assert len(shadow(b"pepper", b"one")) == 16
