"""Limits of one address: exact in time, one for each IPv6 site, and bounded in memory."""

import pytest

from domain.faults import Fault, Kind
from gateway.http.edge.per_address import MOST_ADDRESSES, AddressBounds, AddressBuckets, AddressLimits, counted_as

V4, OTHER = "203.0.113.7", "198.51.100.1"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),  # a caller of IPv4 at a port that listens on [::]
        ("::ffff:cb00:7107", "203.0.113.7"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("no:address", "no:address"),
        ("", ""),
    ],
)
def test_an_ipv6_site_is_one_address(address: str, counted: str) -> None:
    assert counted_as(address) == counted


@pytest.mark.parametrize("per_minute", [1, 3, 7, 60, 61, 1000])
def test_a_minute_has_so_many_and_they_come_back_evenly(per_minute: int) -> None:
    clock = Clock()
    limits = AddressLimits(AddressBounds(requests_per_minute=per_minute), clock)
    assert [limits.request(V4) for _ in range(per_minute)] == [None] * per_minute
    fault = limits.request(V4)
    assert isinstance(fault, Fault)
    assert fault.kind is Kind.ADDRESS_LIMIT
    assert fault.retry.should
    assert fault.retry.after_s == pytest.approx(60 / per_minute, abs=1e-5)
    assert V4 in fault.message
    assert limits.request(OTHER) is None, "of another address"
    clock.now += fault.retry.after_s + 1e-5
    assert limits.request(V4) is None, "a refused request costs nothing"
    assert limits.request(V4) is not None
    clock.now += 61
    assert [limits.request(V4) for _ in range(per_minute)] == [None] * per_minute


def test_callers_of_one_site_share_and_others_do_not() -> None:
    limits = AddressLimits(AddressBounds(requests_per_minute=1), Clock())
    assert limits.request("2001:db8:1:2::7") is None
    fault = limits.request("2001:db8:1:2::8")
    assert fault is not None
    assert "2001:db8:1:2::/64" in fault.message
    assert limits.request("2001:db8:1:3::7") is None


def test_after_so_many_invalid_keys_nothing_of_the_address_is_looked_at() -> None:
    clock = Clock()
    limits = AddressLimits(AddressBounds(invalid_keys_per_minute=3), clock)
    for _ in range(3):
        assert limits.request(V4) is None
        limits.invalid_key(V4)
    fault = limits.request(V4)
    assert fault is not None
    assert fault.retry.after_s == pytest.approx(20.0, abs=1e-5)
    assert fault.detail == f"invalid keys of the address {V4}"
    assert limits.request(OTHER) is None
    clock.now += 20.1
    assert [limits.request(V4) for _ in range(50)] == [None] * 50, "valid keys cost nothing"
    limits.invalid_key(V4)
    assert limits.request(V4) is not None


def test_invalid_keys_in_flight_together_do_not_lock_an_address_out_for_long() -> None:
    """Requests that were under way together may all be found invalid; what they took beyond the bucket is not owed for longer than it."""
    clock = Clock()
    limits = AddressLimits(AddressBounds(invalid_keys_per_minute=2), clock)
    for _ in range(1000):
        limits.invalid_key(V4)
    clock.now += 60.1
    assert limits.request(V4) is None


def test_a_connection_without_an_address_has_no_limit() -> None:
    limits = AddressLimits(AddressBounds(1, 1, 1), Clock())
    assert [limits.request("") for _ in range(5)] == [None] * 5
    connections = [limits.connected("") for _ in range(5)]
    assert all(connection is not None and connection.refusal is None for connection in connections)
    limits.invalid_key("")
    assert limits.request("") is None


def test_connections_are_served_then_answered_then_closed() -> None:
    limits = AddressLimits(AddressBounds(connections=2), Clock())
    made = [limits.connected(V4) for _ in range(4)]
    faults = [connection.refusal for connection in made if connection is not None]
    assert [fault is None for fault in faults] == [True, True, False, False]
    assert all(fault is None or (fault.kind is Kind.ADDRESS_LIMIT and fault.retry.should) for fault in faults)
    assert limits.connected(V4) is None
    other = limits.connected(OTHER)
    assert other is not None
    assert limits.open_addresses == 2
    for connection in (*made, other):
        assert connection is not None
        connection.lost()
        connection.lost()  # of no effect
    assert limits.open_addresses == 0
    again = limits.connected(V4)
    assert again is not None
    assert again.refusal is None


def test_what_is_not_limited_is_not_counted() -> None:
    limits = AddressLimits(AddressBounds(), Clock())
    assert not limits.bounds_connections
    assert not limits.bounds_requests
    assert limits.connected(V4) is not None
    assert limits.open_addresses == 0
    assert limits.request(V4) is None


def test_memory_is_bounded_and_the_addresses_seen_last_stay() -> None:
    buckets = AddressBuckets(2, most=100)
    for number in range(10_000):
        buckets.take(f"address {number}", 0.0)
        buckets.take("the busy one", 0.0)
        assert len(buckets) <= 100
    assert buckets.wait_s("the busy one", 0.0) > 0
    assert buckets.wait_s("address 9999", 0.0) == 0
    assert MOST_ADDRESSES < 100_000


def test_full_buckets_take_no_memory() -> None:
    buckets = AddressBuckets(60, most=100)
    for number in range(50):
        buckets.take(f"address {number}", 0.0)
    for number in range(100):
        buckets.take("another", 100.0 + number)
    assert len(buckets) == 1
