"""What the counter store's URL may say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenancy.counter_url import Address, CounterUrl, StoreKind, parse_counter_url


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("memory://", CounterUrl(StoreKind.MEMORY)),
        ("valkey+embedded://", CounterUrl(StoreKind.EMBEDDED)),
        ("valkey+embedded:///state/counters", CounterUrl(StoreKind.EMBEDDED, folder="state/counters")),
        ("valkey+embedded:////var/lib/tidegate", CounterUrl(StoreKind.EMBEDDED, folder="/var/lib/tidegate")),
        ("redis://valkey", CounterUrl(StoreKind.SINGLE, (Address("valkey", 6379),))),
        ("valkey://valkey:7000/2", CounterUrl(StoreKind.SINGLE, (Address("valkey", 7000),), db=2)),
        (
            "rediss://me:p%40ss%2F@[::1]:7000",
            CounterUrl(StoreKind.SINGLE, (Address("::1", 7000),), username="me", password="p@ss/", tls=True),
        ),
        ("valkeys://h", CounterUrl(StoreKind.SINGLE, (Address("h", 6379),), tls=True)),
        ("unix:///run/valkey.sock?db=3", CounterUrl(StoreKind.SINGLE, (Address("/run/valkey.sock", 0),), db=3)),
        (
            "redis+sentinel://:secret@a,b:7000/counters/1",
            CounterUrl(StoreKind.SENTINEL, (Address("a", 26_379), Address("b", 7000)), service="counters", db=1, password="secret"),
        ),
        ("rediss+cluster://a,b:7000", CounterUrl(StoreKind.CLUSTER, (Address("a", 6379), Address("b", 7000)), tls=True)),
    ],
)
def test_every_kind_of_store(url, meaning):
    assert parse_counter_url(url) == meaning


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "is no URL"),
        ("redis", "is no URL"),
        ("memcached://cache", "not supported; write memory://"),
        ("memory://shared", "just memory://"),
        ("valkey+embedded://host", "names no folder"),
        ("valkey+embedded:///", "names no folder"),
        ("redis://", "no usable host"),
        ("redis://h:0", "no usable host"),
        ("redis://h:99999", "no usable host"),
        ("redis://h/x", "database number"),
        ("redis://h/-1", "database number"),
        ("redis://h?ssl=true", "has options"),
        ("redis://a,b", "several hosts"),
        ("redis://user@h", "without a password"),
        ("unix://run/valkey.sock", "names no socket"),
        ("unix:///run/valkey.sock?password=x", "unknown options"),
        ("redis+sentinel://a,b", "names no service"),
        ("redis+sentinel://a/the service", "names no service"),
        ("redis+cluster://a/1", "has only one"),
        ("redis+cluster://" + ",".join(["h"] * 65), "more than 64"),
    ],
)
def test_what_names_no_store_says_what_to_write(url, says):
    with pytest.raises(ValueError, match="(?i)" + says.replace("+", r"\+")):
        parse_counter_url(url)


@given(st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "valkey+embedded", "x"]), st.text(max_size=60))
def test_any_text_is_a_store_or_a_sentence_that_does_not_repeat_it(scheme, rest):
    said = ""
    try:
        parse_counter_url(f"{scheme}://:hunter2-{rest}")
    except ValueError as error:
        said = str(error)
    assert "hunter2" not in said


def test_shown_without_credentials():
    url = parse_counter_url("redis+sentinel://me:secret@a,b/counters")
    assert url.shown() == "sentinel a:26379,b:26379, service counters"
    assert parse_counter_url("memory://").shown() == "in this process"
    assert parse_counter_url("valkey+embedded:///x").shown() == "embedded Valkey, files in x"
