"""The halves and the pairs of the guard's bench."""

import gzip
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bench.cache.pairs import HALVES, Pair, count, half, mock

ROWS = [
    {"origin": "Use the download() method.", "similar": "Employ the download() technique."},
    {"origin": "Cats like warm milk and fish.", "similar": "Fish and warm milk are what cats like."},
    {"origin": "Dogs like cold water and meat.", "similar": "Meat and cold water are what dogs like."},
    {"origin": "Birds sing songs in the morning.", "similar": "In the morning birds are singing."},
]


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_pair_stays_in_its_half(a: str, b: str) -> None:
    assert half(a, b) == half(a, b) in HALVES


def test_the_halves_are_fixed() -> None:
    """Another hash would let text that was kept away into the tuning."""
    assert [half("a", str(number)) for number in range(6)] == ["tuning", "kept away", "tuning", "kept away", "kept away", "tuning"]


def test_each_rewrite_has_its_origin_and_a_foreign_one_of_its_half(tmp_path: Path) -> None:
    path = tmp_path / "mock.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in ROWS * 3)
    origins = {row["similar"]: row["origin"] for row in ROWS}
    pairs = list(mock(path))
    assert len(pairs) == 2 * len(ROWS * 3)
    for pair in pairs:
        assert (origins[pair.b] == pair.a) == pair.same
        assert half(origins[pair.b], pair.b) == pair.half


def test_pairs_are_counted_by_verdict() -> None:
    pairs = [
        Pair("tuning", "", "reset password", "password reset", True),
        Pair("tuning", "", "reset my password", "reset my router", False),
        Pair("tuning", "", "five cards", "six cards", False),
    ]
    assert count(pairs) == (3, 2, 1)
