"""A caller's address is told by trusted proxies alone."""

import pytest

from gateway.http.edge.client_address import MOST_PROXIES, TrustedProxies

PROXIES = TrustedProxies.of(["10.0.0.0/8", "fd00::/8"], "x-forwarded-for")
STANDARD = TrustedProxies.of(["10.0.0.0/8", "fd00::/8"], "forwarded")


@pytest.mark.parametrize(
    ("peer", "listed", "client"),
    [
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "198.51.100.1, 203.0.113.7", "203.0.113.7"),  # the caller wrote the first one itself
        ("10.0.0.1", "198.51.100.1, 203.0.113.7, 10.9.9.9", "203.0.113.7"),
        ("10.0.0.1", "10.2.2.2, 10.3.3.3", "10.2.2.2"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("fd00::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "::ffff:203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "unknown", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7, unknown", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7, <script>, 10.1.1.1", "10.1.1.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("", "198.51.100.1", ""),
    ],
)
def test_the_last_address_that_is_no_proxys_is_the_callers(peer: str, listed: str, client: str) -> None:
    assert PROXIES.client(peer, {b"x-forwarded-for": listed.encode()}) == client
    assert TrustedProxies().client(peer, {b"x-forwarded-for": listed.encode()}) == peer, "nobody is trusted by default"


@pytest.mark.parametrize(
    ("listed", "client"),
    [
        ("for=203.0.113.7;proto=https;by=10.0.0.2", "203.0.113.7"),
        ('proto=https; For="[2001:db8::1]:4711"', "2001:db8::1"),
        ("for=198.51.100.1, for=203.0.113.7, for=10.1.1.1", "203.0.113.7"),
        ("for=_hidden", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
    ],
)
def test_the_standards_header(listed: str, client: str) -> None:
    headers = {b"forwarded": listed.encode(), b"x-forwarded-for": b"198.51.100.99"}
    assert STANDARD.client("10.0.0.1", headers) == client, "the header that the proxies do not set is the caller's own"


def test_a_long_list_is_read_from_its_end() -> None:
    listed = b", ".join([b"203.0.113.7", *[b"10.1.1.1"] * MOST_PROXIES])
    assert PROXIES.client("10.0.0.1", {b"x-forwarded-for": listed}) == "10.1.1.1"
