"""The list of hosts that images are fetched from: names, names below a name, ports; no addresses."""

from typing import Any

import pytest
from pydantic import ValidationError

from policies.compile import compiled
from policies.image_urls import ImageUrls
from policies.schema import PolicyDocument
from policies.shown import treatment

RULES = ImageUrls(hosts=["images.example.com", "*.cdn.example.com", "other.example.com:8443", "*.deep.example:81"])


@pytest.mark.parametrize(
    ("scheme", "host", "port", "allowed"),
    [
        ("https", "images.example.com", 443, True),
        ("http", "images.example.com", 80, True),
        ("http", "images.example.com", 443, False),
        ("https", "images.example.com", 8443, False),
        ("ftp", "images.example.com", 21, False),
        ("https", "images.example.com.", 443, False),
        ("https", "ximages.example.com", 443, False),
        ("https", "a.images.example.com", 443, False),
        ("https", "example.com", 443, False),
        ("https", "a.cdn.example.com", 443, True),
        ("https", "a.b.cdn.example.com", 443, True),
        ("https", "cdn.example.com", 443, False),
        ("https", "acdn.example.com", 443, False),
        ("https", "other.example.com", 8443, True),
        ("https", "other.example.com", 443, False),
        ("http", "x.deep.example", 81, True),
        ("http", "x.deep.example", 80, False),
        ("https", "127.0.0.1", 443, False),
        ("https", "2130706433", 443, False),
        ("https", "", 443, False),
    ],
)
def test_hosts(scheme: str, host: str, port: int, *, allowed: bool) -> None:
    assert RULES.allows(scheme, host, port) is allowed


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.1:80", "*", "*.", "localhost", "a.b:0", "a.b:70000", "Images.example.com", "http://a.b", "a.b/c", "[::1]"]
)
def test_addresses_and_patterns_without_a_name_are_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        ImageUrls(hosts=[host])


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("https://x", "has 'https://x', which has a scheme or a path; write a host name without scheme or path"),
        ("https://a.b/c", "which has a scheme or a path; write a host name without scheme or path, as a.b"),
        ("a.b/", "write a host name without scheme or path, as a.b"),
        ("Images.example.com", "which has capital letters; write images.example.com"),
        ("localhost", "which is no name of a host; write a name with a dot, as images.example.com"),
    ],
)
def test_a_refused_host_is_named_with_what_to_write_instead(host: str, said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ImageUrls(hosts=["images.example.com", host])
    assert said in str(refused.value)
    assert "pattern" not in str(refused.value)


def test_a_policy_that_fetches_at_any_level_reads_urls() -> None:
    def policy(**fields: Any) -> Any:
        document = {"tenant": "acme", "models": [{"name": "a", "pool": "p"}], **fields}
        return compiled([PolicyDocument.model_validate(document)]).by_tenant["acme"]

    rules = {"hosts": ["images.example.com"]}
    assert not policy().may_fetch_images
    assert policy(image_urls=rules).may_fetch_images
    assert policy(for_model={"a": {"image_urls": rules}}).may_fetch_images
    assert not policy(image_urls=None, for_model={"a": {"image_urls": None}}).may_fetch_images
    assert treatment(policy())["image_urls"] == "refused"
    assert treatment(policy(image_urls=rules))["image_urls"].startswith("from images.example.com: 16 of 8388608 bytes")
