import pytest

from backends.clients.endpoint import endpoint


@pytest.mark.parametrize(
    ("url", "host", "port", "prefix", "header"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1", 8000, "", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1", 80, "", "10.0.0.1"),
        ("https://engine.internal", "engine.internal", 443, "", "engine.internal"),
        ("https://engine.internal:8443/llm/", "engine.internal", 8443, "/llm", "engine.internal:8443"),
        ("http://[::1]:8000", "::1", 8000, "", "[::1]:8000"),
    ],
)
def test_an_address_is_split_once(url: str, host: str, port: int, prefix: str, header: str) -> None:
    found = endpoint(url)
    assert (found.host, found.port, found.prefix, found.host_header) == (host, port, prefix, header)
    assert (found.tls is not None) == url.startswith("https")


@pytest.mark.parametrize("url", ["ftp://10.0.0.1", "10.0.0.1:8000", "http://", "unix:/run/vllm.sock"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is no http:// or https:// address"):
        endpoint(url)


def test_the_engines_key_is_one_header_value() -> None:
    assert endpoint("http://a", authorization="Bearer k").authorization == b"Bearer k"
    assert endpoint("http://a").authorization is None


def test_the_systems_authorities_are_read_once_for_all_backends() -> None:
    assert endpoint("https://a").tls is endpoint("https://b").tls
