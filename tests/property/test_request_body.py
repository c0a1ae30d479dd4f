"""Laws of request bodies, against a slow reader that hands out every pair: what is refused, and what is forwarded."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backends.dialects import DIALECTS, body_for
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.controls import CONTROLS
from gateway.http.openai.json_guard import parse_object
from tests.scale import scaled

# few keys, so that duplicates are common; signs that the guard counts, cuts at or is confused by, so that strings are full of them
KEYS = st.sampled_from(["a", "b", ":", '"', "\\", "{", "a:b", '"a":1', "\\u003a", "é", "", "😀", ","])
TEXTS = st.one_of(KEYS, st.text(alphabet='ab:"\\{}[],u03A \n\té😀\u2028', max_size=12), st.text(max_size=8))
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from(["1E5", "1e-7", "0.10", "-0", "100000000000000000000.0", "1.0", "2e+2"]).map(lambda s: ("raw", s)),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)


class Pairs(list[tuple[str, Any]]):
    """An object as written: keys may repeat."""


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.lists(st.tuples(KEYS, inner), max_size=4).map(Pairs)),
    max_leaves=12,
)
OBJECTS = st.lists(st.tuples(KEYS, VALUES), max_size=6).map(Pairs)


def written(value: Any, draw: Any) -> str:
    """`value` as JSON in one of the many ways there are: spaces, escapes and all."""
    gap = draw(st.sampled_from(["", "", " ", "\n\t", " " * 40]))
    if isinstance(value, tuple):
        return str(value[1])
    if isinstance(value, str):
        return quoted(value, draw)
    if isinstance(value, Pairs):
        return "{" + gap + ",".join(f"{gap}{quoted(k, draw)}{gap}:{written(v, draw)}{gap}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + gap + f",{gap}".join(written(v, draw) for v in value) + gap + "]"
    return json.dumps(value)


def quoted(text: str, draw: Any) -> str:
    style = draw(st.sampled_from(["utf-8", "ascii", "escaped", "upper"]))
    if style == "utf-8":
        return json.dumps(text, ensure_ascii=False)
    if style == "ascii":
        return json.dumps(text)
    units = text.encode("utf-16-be")
    pattern = "\\u{:04x}" if style == "escaped" else "\\u{:04X}"
    return '"' + "".join(pattern.format(int.from_bytes(units[i : i + 2])) for i in range(0, len(units), 2)) + '"'


@st.composite
def bodies(draw: Any) -> bytes:
    return written(draw(OBJECTS), draw).encode()


def slow_reader(body: bytes) -> dict[str, Any] | None:
    """The object, or None when a key stands twice anywhere."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise LookupError
        return dict(pairs)

    try:
        document: dict[str, Any] = json.loads(body, object_pairs_hook=distinct)
    except LookupError:
        return None
    return document


@pytest.mark.req("R29")
@settings(max_examples=scaled(200, 4000), deadline=None)
@given(bodies())
def test_duplicates_are_found_exactly_where_the_slow_reader_finds_them(body: bytes) -> None:
    expected = slow_reader(body)
    if expected is None:
        with pytest.raises(Fault, match="stands twice") as caught:
            parse_object(body)
        assert caught.value.kind is Kind.INVALID_JSON
    else:
        assert parse_object(body) == expected


@pytest.mark.req("R29")
@settings(max_examples=scaled(200, 4000), deadline=None)
@given(st.one_of(st.binary(max_size=80), st.text(alphabet='{}[]":,\\u0019aeE.-+ \n', max_size=60).map(str.encode)))
def test_any_bytes_are_read_as_the_slow_reader_reads_them_or_refused(body: bytes) -> None:
    refusal: Fault | None = None
    try:
        document = parse_object(body)
    except Fault as fault:
        refusal = fault
    if refusal is None:
        assert document == slow_reader(body)
    else:
        assert refusal.kind is Kind.INVALID_JSON
        assert refusal.message.isprintable()


ORDINARY = st.sampled_from(["top_k", "metadata", "x:y", 'q"', "temperature", "seed", "stop"])
FIELDS = st.dictionaries(
    st.one_of(st.sampled_from(sorted(CONTROLS - {"nvext"})), ORDINARY, st.text(max_size=6)),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(0, 2), st.floats(0.25, 1, width=16), st.text(min_size=1, max_size=8)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=8,
    ),
    max_size=8,
)


@pytest.mark.req("R30")
@settings(max_examples=scaled(200, 4000), deadline=None)
@given(FIELDS, st.text(max_size=30), st.booleans(), st.booleans())
def test_what_is_forwarded_is_what_was_checked(extra: dict[str, Any], text: str, stream: bool, ascii_only: bool) -> None:
    sent = {**extra, "model": "public", "messages": [{"role": "user", "content": text}], "stream": stream}
    sent.pop("stream_options", None)
    body = json.dumps(sent, ensure_ascii=ascii_only).encode()
    try:
        ask = interpret(Endpoint.CHAT, body)
    except Fault:
        assume(False)
    expected = {key: value for key, value in sent.items() if key not in CONTROLS and key != "model"}
    if stream:
        expected["stream_options"] = {"include_usage": True}
    assert json.loads(ask.fields) == expected
    engine = json.loads(body_for(DIALECTS["vllm"], ask.fields, "served", cache_salt="ours"))
    assert engine == {"model": "served", "cache_salt": "ours", **expected}
    # read again, it is the same: nothing is left for a second reader to change
    again = interpret(Endpoint.CHAT, b'{"model":"public",' + ask.fields[1:])
    assert again.fields == ask.fields
