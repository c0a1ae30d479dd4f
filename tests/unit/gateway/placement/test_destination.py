import pytest

from domain.membership import Member, Owner
from gateway.placement.destination import (
    DESTINATION,
    MOST,
    NOT_NAMED,
    backends_named,
    endpoint_of,
    endpoints_named,
    in_named_order,
    others_shut,
)
from routing.schedule import ALONE, Route
from tests.placed import Worker, chat
from tests.placement import pool_of


@pytest.mark.parametrize(
    ("url", "address", "endpoint"),
    [
        ("http://10.0.0.5:8000", "", "10.0.0.5:8000"),
        ("https://chat.engines.svc:8000/prefix", "10.0.0.5", "10.0.0.5:8000"),
        ("http://[fd00:0::5]:8000", "", "fd00::5:8000"),
        ("https://10.0.0.5", "", "10.0.0.5:443"),
        ("http://engine.example:8000", "", ""),
    ],
)
def test_a_backend_listens_where_its_address_or_url_says(url: str, address: str, endpoint: str) -> None:
    owner: Owner = "kubernetes"
    assert endpoint_of(Member("chat", "a", url, owner, address)) == endpoint


def test_a_header_is_a_list_of_addresses_and_ports_and_the_rest_of_it_is_nothing() -> None:
    assert endpoints_named(b"10.0.0.5:8000, [fd00:0::5]:8001") == ["10.0.0.5:8000", "fd00::5:8001"]
    for odd in (b"", b",", b"10.0.0.5", b"engine:8000", b"10.0.0.5:", b"10.0.0.5:8000000", b"10.0.0.5:\xb2", b"\xff:1", b"10.0.0.5:-1"):
        assert endpoints_named(odd) == []
    assert len(endpoints_named(b",".join(b"10.0.0.5:%d" % port for port in range(1, 100)))) == MOST


def test_only_backends_of_the_pool_that_are_up_are_named_each_once() -> None:
    endpoints = {"a": "10.0.0.1:8000", "b": "10.0.0.2:8000", "other": "10.0.0.9:8000", "z": ""}
    named = backends_named(b"10.0.0.9:8000,10.0.0.2:8000,10.0.0.1:8000,10.0.0.2:8000", pool_of("a", "b", "z"), endpoints)
    assert named == ("b", "a")
    assert others_shut(pool_of("a", "b", "c"), named, {"a": "ejected"}) == {"c": NOT_NAMED, "a": "ejected"}


def test_a_route_keeps_the_named_backends_in_their_order() -> None:
    a, b, c = pool_of("a", "b", "c").up
    route = Route("lmetric", ((a, (1.0,)), (b, (2.0,)), (c, (3.0,))), (), costs=(1.0, 2.0, 3.0), matched=(0.0, 4.0, 5.0))
    kept = in_named_order(route, ("c", "gone", "b"))
    assert ([backend.id for backend in kept.backends], kept.costs, kept.matched, kept.why) == (
        ["c", "b"],
        (3.0, 2.0),
        (5.0, 4.0),
        DESTINATION,
    )
    assert in_named_order(route, ("gone",)).ranked == ()
    assert in_named_order(Route("lmetric", ((a, ()),), (), costs=(0.0,), matched=(0.0,), why=ALONE), ("a",)).why == ALONE


async def test_a_request_without_the_header_is_placed_as_before() -> None:
    placement = await Worker("a", "b").placed(chat())
    assert (placement.destination, placement.named) == (b"", ())
