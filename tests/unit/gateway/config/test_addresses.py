import pytest

from gateway.config.addresses import (
    checked_engine_url,
    checked_events_endpoint,
    checked_host_header,
    checked_origin,
    checked_prometheus_url,
    clash,
    split_address,
)


@pytest.mark.parametrize(
    ("bind", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("localhost:1", ("localhost", 1)),
        ("gate-1.example:443", ("gate-1.example", 443)),
    ],
)
def test_binds(bind, address):
    assert split_address(bind) == address


BAD_BINDS = [
    "",
    "8080",
    ":8080",
    "a:",
    "a:65536",
    "a:-1",
    "a:1x",
    "::1:80",
    "[::1]",
    "[::1]:",
    "[g::]:1",
    "127.1:80",
    "256.0.0.1:80",
    "0x7f.1:1",
]


@pytest.mark.parametrize("bind", [*BAD_BINDS, "a b:80", "a/b:80", "ä:80", "-a:80", "a:٣", "x" * 254 + ":80", "127.0.0.1:80\n"])
def test_no_binds(bind):
    with pytest.raises(ValueError, match=r"; write "):
        split_address(bind)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.10:8000", "https://engine.internal", "http://[2001:db8::1]:80/", "http://a-b_c.d:1/engines/a", "http://localhost:65535",
        "http://vllm-5f7d8c9b6d-x2k4j.ns.svc.cluster.local.:8000/p/", "http://170.0.0.1",
    ],
)  # fmt: skip
def test_engine_urls(url):
    assert checked_engine_url(url) == url


METADATA = [
    "http://169.254.169.254", "http://169.254.169.254/latest/meta-data", "https://169.254.0.1:8000", "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]:80", "http://[64:ff9b::a9fe:a9fe]", "http://[fd00:ec2::254]", "http://[fe80::1]:8000", "http://100.100.100.200",
    "http://192.0.0.192", "http://metadata.google.internal", "http://METADATA.google.internal.", "http://metadata.goog", "http://instance-data",
]  # fmt: skip


@pytest.mark.parametrize("url", METADATA)
def test_metadata_addresses_are_refused(url):
    with pytest.raises(ValueError, match=r"metadata address; no engine lives there"):
        checked_engine_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "", "10.0.0.1:8000", "ftp://a", "file:///etc/passwd", "unix:/run/x", "http://", "http:///x", "http:a", "//a", "HTTP",
        "http://u@a", "http://u:p@a", "http://@a", "http://a@169.254.169.254", "http://a?x=1", "http://a?", "http://a#f", "http://a/#",
        "http://a\\@b", "http://a\\b", "http://a b", "http://a\tb", "http://a\nb", " http://a", "http://a%00", "http://a%2e%2e", "http://ä",
        "http://a:0", "http://a:", "http://a:65536", "http://a:x", "http://a/../b", "http://a/./b", "http://a//b", "http://a/v1", "http://a/v1/",
        "http://2852039166", "http://0xa9fea9fe", "http://0xa9.0xfe.0xa9.0xfe", "http://0251.0376.0251.0376", "http://169.254.43518",
        "http://169.16689662", "http://127.1", "http://1.2.3.4.", "http://1.2.3.4.5", "http://256.1.1.1", "http://[::1", "http://::1", "http://[::g]",
        "http://[v1.a]", "http://a..b", "http://-a", "http://a" + "a" * 300, "http://a;b", "http://a,b", "http://\uff11\uff16\uff19.254.169.254",
        "http://169\u3002254\u3002169\u3002254", "http://\u24d4xample", "http://[::1%25eth0]", "http://a/x;y", "http://a/x y",
        "javascript:alert(1)", "gopher://a:70",
    ],
)  # fmt: skip
def test_what_is_no_address_of_an_engine(url):
    with pytest.raises(ValueError, match="; ") as caught:
        checked_engine_url(url)
    assert "p@a" not in str(caught.value)


@pytest.mark.parametrize(
    "origin", ["*", "https://app.example.com", "http://localhost:3000", "https://[::1]:8443", "chrome-extension://abc"]
)
def test_origins(origin):
    assert checked_origin(origin) == origin


@pytest.mark.parametrize(
    "origin", ["", "example.com", "https://a/", "https://A.example", "https://a,https://b", "null", "https://a b", "https://*.a"]
)
def test_no_origins(origin):
    with pytest.raises(ValueError, match="is no origin; write"):
        checked_origin(origin)


def test_host_headers():
    assert [checked_host_header(host) for host in ("api.example.com", "API:8080", "[::1]:80")] == [
        "api.example.com",
        "API:8080",
        "[::1]:80",
    ]
    for host in ("", "a b", "http://a", "a/b", "ä", "a:"):
        with pytest.raises(ValueError, match="is no Host value"):
            checked_host_header(host)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 1), True),
        (("127.0.0.1", 1), ("127.0.0.1", 2), False),
        (("127.0.0.1", 0), ("127.0.0.1", 0), False),
        (("0.0.0.0", 1), ("10.0.0.1", 1), True),
        (("::", 1), ("127.0.0.1", 1), True),
        (("localhost", 1), ("127.0.0.1", 1), True),
        (("::1", 1), ("0:0:0:0:0:0:0:1", 1), True),
        (("10.0.0.1", 1), ("10.0.0.2", 1), False),
    ],
)
def test_listeners_that_would_meet(one, other, expected):
    assert clash(one, other) is clash(other, one) is expected


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:5557", "tcp://gpu-0.example:1", "tcp://[::1]:5557", "ipc:///run/engine/kv"])
def test_where_kv_events_may_come_from(endpoint):
    assert checked_events_endpoint(endpoint) == endpoint


@pytest.mark.req("R40")
@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://a:1", "write tcp://host:port or ipc:///path"),
        ("inproc://a", "write tcp://host:port or ipc:///path"),
        ("tcp://*:5557", "has a wildcard"),
        ("tcp://a", "is no address"),
        ("tcp://a:0", "has no usable port"),
        ("tcp://eth0;a:5557", "has no usable host name"),
        ("tcp://169.254.169.254:5557", "cloud-metadata"),
        ("tcp://[::ffff:169.254.169.254]:5557", "cloud-metadata"),
        ("tcp://0x7f.1:5557", "no usable IPv4 address"),
        ("ipc://relative", "has no usable path"),
        ("ipc:///" + "x" * 107, "has no usable path"),
    ],
)
def test_where_they_may_not(endpoint, says):
    with pytest.raises(ValueError, match=says):
        checked_events_endpoint(endpoint)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("http://prometheus:9090", "http://prometheus:9090"),
        ("http://127.0.0.1:9090/", "http://127.0.0.1:9090"),
        ("https://metrics.example/prometheus/", "https://metrics.example/prometheus"),
    ],
)
def test_a_prometheus_is_at_an_address_below_which_its_api_is(url, kept):
    assert checked_prometheus_url(url) == kept


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://p:9090", "http://a:b@p:9090", "http://p:9090/#x", "http://p:0", "http://:9090", ""]
)
def test_a_prometheus_without_a_usable_address_is_refused(url):
    with pytest.raises(ValueError, match="http"):
        checked_prometheus_url(url)
