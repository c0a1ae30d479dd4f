"""The networks of a key: their text, and which addresses are in them."""

import pytest

from tenancy.key_networks import MAX_NETWORKS, BadNetworks, key_networks_of, may_come_from
from tenancy.keys import ENTROPY_BYTES, KeyRing, mint
from tests.unit.tenancy.test_keys import PEPPER, record

OFFICES = key_networks_of(["203.0.113.0/24", "2001:DB8::/32", "198.51.100.7"])


def test_networks_are_kept_in_one_form_each_once() -> None:
    assert OFFICES == ("198.51.100.7/32", "2001:db8::/32", "203.0.113.0/24")
    assert key_networks_of(["10.0.0.1", "10.0.0.1/32"]) == ("10.0.0.1/32",)
    assert key_networks_of([]) == ()


def test_an_ipv4_network_that_is_written_inside_ipv6_is_the_ipv4_network() -> None:
    networks = key_networks_of(["::ffff:203.0.113.0/120", "::ffff:198.51.100.7"])
    assert networks == ("198.51.100.7/32", "203.0.113.0/24")
    assert may_come_from(networks, "203.0.113.9")
    assert may_come_from(networks, "::ffff:198.51.100.7")


@pytest.mark.parametrize(
    "text", ["", "office", "203.0.113.9/24", "203.0.113.0/33", "300.0.0.0/8", "203.0.113.0/24 ", "::/129", "fe80::%eth0/64"]
)
def test_what_is_no_network_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(BadNetworks, match=r"is no network; write address/bits"):
        key_networks_of([text])


def test_there_are_not_too_many() -> None:
    assert len(key_networks_of(f"10.0.0.{host}" for host in range(MAX_NETWORKS))) == MAX_NETWORKS
    with pytest.raises(BadNetworks, match="65 networks; at most 64"):
        key_networks_of(f"10.0.0.{host}" for host in range(MAX_NETWORKS + 1))


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("203.0.113.9", True),
        ("::ffff:203.0.113.9", True),
        ("203.0.114.9", False),
        ("198.51.100.7", True),
        ("198.51.100.8", False),
        ("2001:db8:1::5", True),
        ("2001:db9::5", False),
        ("::", False),
        ("", False),
        ("unknown", False),
    ],
)
def test_an_address_is_in_a_network_or_not(address: str, allowed: bool) -> None:
    assert may_come_from(OFFICES, address) is allowed
    assert may_come_from((), address), "a key without networks may be used from everywhere"


def test_a_change_of_networks_holds_with_the_next_snapshot() -> None:
    minted = mint("live", bytes(ENTROPY_BYTES))
    for networks in ((), OFFICES):
        ring = KeyRing([record(minted, networks=networks)], PEPPER)
        for _ in range(2):  # verified, and remembered
            caller = ring.authenticate(minted.text, 0.0)
            assert caller is not None
            assert caller.networks == networks
