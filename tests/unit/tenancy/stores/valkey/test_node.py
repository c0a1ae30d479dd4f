"""How long a request waits for a server of the counter store: by where the server runs."""

import pytest

from tenancy.counter_url import Address, CounterUrl, StoreKind, parse_counter_url
from tenancy.stores.valkey.breaker import NodeBreaker
from tenancy.stores.valkey.node import LOCAL_TIMEOUT_S, TIMEOUT_S, Node


@pytest.mark.parametrize(
    ("url", "timeout_s"),
    [
        ("unix:///run/valkey.sock", 0.5),
        ("redis://127.0.0.1", 0.5),
        ("redis://:secret@localhost:6380/1", 0.5),
        ("rediss://LOCALHOST", 0.5),
        ("redis://[::1]:6379", 0.5),
        ("redis://127.0.0.2:6379", 0.05),
        ("redis://10.0.0.7", 0.05),
        ("redis://[fd00::1]:6379", 0.05),
        ("redis://localhost.example.net", 0.05),
        ("redis+sentinel://127.0.0.1:26379/counters", 0.5),
        ("redis+cluster://10.0.0.7:7000", 0.05),
    ],
)
async def test_a_store_on_the_same_host_has_a_patience_of_its_own(url: str, timeout_s: float) -> None:
    """50 ms for a store behind a network (R18); half a second where a late answer only says that this host is busy."""
    parsed = parse_counter_url(url)
    assert await patience(parsed.addresses[0], parsed) == timeout_s
    assert (TIMEOUT_S, LOCAL_TIMEOUT_S) == (0.05, 0.5)


async def test_nodes_that_sentinels_and_clusters_name_are_told_apart_one_by_one() -> None:
    url = CounterUrl(StoreKind.CLUSTER, (Address("127.0.0.1", 7000),))
    assert [await patience(Address(host, 7000), url) for host in ("127.0.0.1", "10.0.0.8", "::1")] == [0.5, 0.05, 0.5]


async def patience(address: Address, url: CounterUrl) -> float:
    node = Node(address, url, {}, NodeBreaker())
    await node.close()  # before it tries to connect
    return node.timeout_s
