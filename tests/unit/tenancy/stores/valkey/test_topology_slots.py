"""Hash slots, against the examples of the cluster specification."""

import pytest

from tenancy.stores.valkey.topology import slot_of, tag_in


@pytest.mark.parametrize(("key", "slot"), [(b"123456789", 0x31C3), (b"foo", 12182), (b"bar", 5061), (b"hello", 866)])
def test_known_keys(key, slot):
    assert slot_of(key) == slot


@pytest.mark.parametrize(("key", "tag"), [(b"{foo}.following", b"foo"), (b"a{bar}{zap}", b"bar"), (b"foo{{bar}}zap", b"{bar")])
def test_only_the_first_tag_counts(key, tag):
    assert slot_of(key) == slot_of(b"other{" + tag + b"}")


@pytest.mark.parametrize("key", [b"foo{}{bar}", b"a{b", b"}x{"])
def test_without_a_tag_the_whole_key_counts(key):
    assert len({slot_of(key), slot_of(key + b"."), slot_of(b"bar")}) == 3


def test_a_tag_in_every_part():
    assert [slot_of(tag_in(part, 16)) // 1024 for part in range(16)] == list(range(16))
