import pytest

from backends.reach import Reach, networks_of

PRIVATE = networks_of(["127.0.0.0/8", "::1/128", "10.0.0.0/8", "fc00::/7"])
ANY = networks_of(["0.0.0.0/0", "::/0"])


@pytest.mark.req("R40")
@pytest.mark.parametrize("address", ["10.1.2.3", "127.0.0.1", "::1", "fd12::1"])
def test_what_is_allowed(address: str) -> None:
    assert Reach(PRIVATE).refusal(address, 8000) == ""


@pytest.mark.req("R40")
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("169.254.169.254", "cloud-metadata"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "zone"),
        ("fd00:ec2::254", "cloud-metadata"),
        ("100.100.100.200", "cloud-metadata"),
        ("0.0.0.0", "no address of one machine"),
        ("::", "no address of one machine"),
        ("224.0.0.1", "no address of one machine"),
        ("ff02::1", "no address of one machine"),
        ("255.255.255.255", "no address of one machine"),
        ("::ffff:10.0.0.1", "IPv6 form of an IPv4 address"),
        ("::10.0.0.1", "IPv6 form of an IPv4 address"),
        ("64:ff9b::a00:1", "IPv6 form of an IPv4 address"),
        ("2002:a00:1::1", "IPv6 form of an IPv4 address"),
        ("2001:0:a00:1::1", "IPv6 form of an IPv4 address"),
        ("localhost", "no IP address"),
        ("2130706433", "no IP address"),
    ],
)
def test_what_is_never_allowed_whatever_the_networks(address: str, says: str) -> None:
    assert says in Reach(ANY).refusal(address, 8000)


@pytest.mark.req("R40")
def test_outside_the_networks_and_our_own_ports() -> None:
    assert "outside engines.register_networks" in Reach(PRIVATE).refusal("8.8.8.8", 8000)
    ours = Reach(PRIVATE, frozenset((8080,)), lambda address: address == "10.0.0.1")
    assert "this gateway itself" in ours.refusal("10.0.0.1", 8080)
    assert ours.refusal("10.0.0.1", 8000) == ""
    assert ours.refusal("10.0.0.2", 8080) == ""
