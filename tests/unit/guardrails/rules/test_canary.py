"""Canaries: tokens are found split, in look-alike letters, escaped and encoded, and in streams as in the whole."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.chain import Chain, ChainRule
from guardrails.rules.canary import Canary
from guardrails.text import Text
from guardrails.window import GuardWindow
from tests.guard_doubles import assert_streams_alike

TOKEN = "heron-lamp-77"
RULE = Canary("c", [TOKEN, "Quiet_Otter.42"])


def _found(text: str) -> list[str]:
    return [text[found.begin : found.end] for found in RULE.scan(Text(text))]


@pytest.mark.parametrize(
    "written",
    [
        TOKEN,
        "HERON-LAMP-77",
        "heronlamp77",
        "h e r o n l a m p 7 7",
        "h-e-r-o-n - l-a-m-p\n7 7",
        "he\u200bron\u00ad-lamp\u2060-77",
        "h\u0435r\u043en-lamp-77",
        "\uff48\uff45\uff52\uff4f\uff4e-lamp-77",
        "heron%2dlamp%2D77",
        "her%20%20on-lamp-77",
        "%68%65%72%6f%6e-lamp-77",
        "\\x68er\\u006fn-lamp-77",
        "h&#101;ron&#x2d;lamp-7&#55;",
        TOKEN.encode().hex(),
        " ".join(f"{byte:02X}" for byte in TOKEN.encode()),
        "quiet otter 42",
    ],
)
def test_a_token_is_found_however_it_is_written(written: str) -> None:
    assert _found(f"The note says {written}, and no more.") == [written]


@given(st.binary(max_size=7), st.binary(max_size=7), st.sampled_from([str, str.upper]), st.sampled_from(["+/", "-_"]))
def test_a_token_in_base64_is_found_at_every_place(before: bytes, after: bytes, case: type[str], signs: str) -> None:
    encoded = base64.b64encode(before + case(TOKEN).encode() + after, signs.encode()).decode()
    assert len(_found(f"data: {encoded} end")) >= 1
    lines = "\n".join(encoded[at : at + 5] for at in range(0, len(encoded), 5))
    assert len(_found(lines)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "A heron stood by the lamp at 7, and 7 more came.",
        "heron-lamp-7",
        "heron-lamp-87",
        "h    e    r    o    n    l    a    m    p    7    7",
        "h    e    r    o    n    l    a    m    p    7    7 at 5 %, %68, &#104; and \\x68",
        "h%20%20%20e%20%20%20r%20%20%20o%20%20%20n-lamp-77",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b, %68%65%72%6f",
        base64.b64encode(b"a heron, a lamp and 77 more things").decode(),
        "",
    ],
)
def test_honest_texts_have_none(text: str) -> None:
    assert _found(text) == []


@pytest.mark.parametrize("mode", ["block", "redact"])
def test_streams_say_what_the_whole_says(mode: str) -> None:
    rules = Chain([ChainRule(RULE, mode)], Text)  # type: ignore[arg-type]
    encoded = base64.b64encode(b"x " + TOKEN.encode() + b"\n").decode()
    for written in (TOKEN, "h-e-r-o-n-l-a-m-p-7-7", "%68%65r&#111;n\u200b-lamp-7&#55;", encoded, TOKEN.encode().hex()):
        verdict = assert_streams_alike(rules, f"% 68 heron {written} \\x6")
        assert verdict.found(mode) == ("c",)  # type: ignore[arg-type]


pieces = st.lists(
    st.sampled_from(["heron", "-", "lamp", "77", " ", "%6", "8", "&#10", "1;", "\\", "\u0301", "\u200b", TOKEN[:6], TOKEN[6:], "x"]),
    max_size=20,
)


@given(pieces, st.sampled_from(["block", "redact"]))
def test_however_a_text_is_cut_its_verdict_is_the_same(parts: list[str], mode: str) -> None:
    text = "".join(parts)
    cuts = [sum(map(len, parts[:count])) for count in range(1, len(parts))]
    assert_streams_alike(Chain([ChainRule(RULE, mode)], Text), text, [cuts, list(range(1, len(text)))])  # type: ignore[arg-type]


def test_a_stream_holds_back_what_a_token_may_begin_with() -> None:
    window = GuardWindow(Chain([ChainRule(RULE, "block")], Text))
    window.feed("We saw a her")
    assert window.held == len("her")
    window.feed("ring. ")
    assert window.held <= 4


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "there are 0 tokens"),
        (["a-b-c-d-e-f-g"], "a token has 7 letters and digits; it needs 8"),
        (["x" * 101], "a token has 101 characters; at most 100"),
        (["a1b2c3d4"] * 101, "there are 101 tokens"),
    ],
)
def test_lists_that_cannot_be(tokens: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        Canary("c", tokens)
    assert "a-b-c" not in str(caught.value)
