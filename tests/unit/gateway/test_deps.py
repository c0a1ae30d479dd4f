"""The gateway's own ids: nobody guesses one, learns from one, or gets one twice."""

import secrets
from itertools import pairwise

from gateway.deps import ID_BLOCK, request_ids


def test_ids_are_unguessable_and_do_not_count() -> None:
    """Two callers cannot see from their ids how many requests others have sent between them."""
    new_id = request_ids(secrets.token_hex, lambda: 1_795_000_000.9)
    ids = [new_id() for _ in range(10 * ID_BLOCK + 3)]
    assert len(set(ids)) == len(ids)
    assert {made[:13] for made in ids} == {"req-6afd86c0-"}
    digits = [made[13:] for made in ids]
    assert {len(text) for text in digits} == {24}
    ones = [sum(int(text, 16) >> bit & 1 for text in digits) for bit in range(96)]
    assert all(len(ids) * 0.3 < count < len(ids) * 0.7 for count in ones), "each of 96 bits is drawn"
    steps = {int(after, 16) - int(before, 16) for before, after in pairwise(digits)}
    assert len(steps) == len(ids) - 1


def test_the_random_digits_come_from_the_source_and_the_second_from_the_clock() -> None:
    now, drawn = [1.0], list[int]()

    def token_hex(size: int) -> str:
        drawn.append(size)
        return "ab" * size

    new_id = request_ids(token_hex, lambda: now[0])
    assert new_id() == "req-00000001-" + "ab" * 12
    now[0] = 17.9
    assert new_id() == "req-00000011-" + "ab" * 12
    for _ in range(ID_BLOCK):
        new_id()
    assert drawn == [ID_BLOCK * 12] * 2
