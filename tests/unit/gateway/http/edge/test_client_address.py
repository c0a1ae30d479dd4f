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
        # RFC 7239, sections 4, 6.3, 7.1 and 7.4
        ('for="_gazonk"', "10.0.0.1"),
        ('For="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::17"),
        ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
        ("for=192.0.2.43, for=198.51.100.17", "198.51.100.17"),
        ("for=_hidden, for=_SEVKISEK", "10.0.0.1"),
        ('for=192.0.2.43, for="[2001:db8:cafe::17]"', "2001:db8:cafe::17"),
        ('for=192.0.2.43,for="[2001:db8:cafe::17]",for=unknown', "10.0.0.1"),
        ("for=192.0.2.43, for=198.51.100.17;by=203.0.113.60;proto=http;host=example.com", "198.51.100.17"),
        # quoted strings hold separators and escaped characters (RFC 7230, 3.2.6)
        ('for=198.51.100.1, for=203.0.113.7;ext="a, b"', "203.0.113.7"),
        ('for=198.51.100.1, for=203.0.113.7;ext="for=198.51.100.2;, for=198.51.100.3"', "203.0.113.7"),
        ('ext=";for=198.51.100.2";for=203.0.113.7', "203.0.113.7"),
        (r'for=203.0.113.7;ext="a\", for=198.51.100.2"', "203.0.113.7"),
        (r'for="\203.0.113.7"', "203.0.113.7"),
        ('for=203.0.113.7;ext="a, b", for=10.1.1.1', "203.0.113.7"),
        (" , for=203.0.113.7 ,, ", "203.0.113.7"),
        # not of the grammar: the trusted proxy in front is all that is known
        ('for=198.51.100.1, for="203.0.113.7', "10.0.0.1"),
        ('ext="open, for=198.51.100.1, for=203.0.113.7', "10.0.0.1"),
        ("for=198.51.100.1;for=203.0.113.7", "10.0.0.1"),
        ("", "10.0.0.1"),
    ],
)
def test_the_standards_header(listed: str, client: str) -> None:
    headers = {b"forwarded": listed.encode(), b"x-forwarded-for": b"198.51.100.99"}
    assert STANDARD.client("10.0.0.1", headers) == client, "the header that the proxies do not set is the caller's own"


def test_a_long_list_is_read_from_its_end() -> None:
    listed = b", ".join([b"203.0.113.7", *[b"10.1.1.1"] * MOST_PROXIES])
    assert PROXIES.client("10.0.0.1", {b"x-forwarded-for": listed}) == "10.1.1.1"


def test_a_long_list_with_commas_in_quotes_is_read_from_its_end() -> None:
    listed = b", ".join([b"for=203.0.113.7", *[b'for=10.1.1.1;ext="a, b"'] * MOST_PROXIES])
    assert STANDARD.client("10.0.0.1", {b"forwarded": listed}) == "10.1.1.1"


def test_a_header_of_open_quotes_takes_linear_time() -> None:
    """2,000 quotes and commas are matched once each; a pattern that looks for the end of each again takes seconds for them."""
    for listed in (b'",' * 8000, b"\\" * 16000, b'for="' + b"\\" * 15999, b"a=" * 8000, b"a=b;" * 4000):
        assert STANDARD.client("10.0.0.1", {b"forwarded": listed}) == "10.0.0.1"


def test_a_run_of_blanks_is_looked_at_once() -> None:
    """A pattern that tries every way to divide the blanks takes minutes for them, more than the time limit of a test."""
    for blank in (b" ", b"\t"):
        assert STANDARD.client("10.0.0.1", {b"forwarded": b"for=203.0.113.7;" + blank * 400_000 + b"="}) == "10.0.0.1"
