"""Every body is read in one way or refused, whatever it holds."""

import gc
import json
from collections.abc import Callable

import pytest

from domain.faults import Fault, Kind
from gateway.http.openai.json_guard import (
    INT_MAX,
    INT_MIN,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_KEYS,
    MAX_VALUES,
    NAMING_BYTES,
    parse_body,
    parse_object,
)

BIG = 8 * 1024 * 1024


def nested(depth: int, opener: bytes = b"[", closer: bytes = b"]") -> bytes:
    """An object whose deepest container is at `depth`, the object itself at 1."""
    return b'{"a":' + opener * (depth - 1) + (b"1" if opener != b"[" else b"") + closer * (depth - 1) + b"}"


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "blank": (b"  ", "ends too early"),
    "an array": (b"[]", "object"),
    "a string": (b'"x"', "object"),
    "null": (b"null", "object"),
    "two documents": (b"{}{}", "trailing characters"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "invalid character"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "invalid character"),
    "cut": (b'{"a":', "ends too early"),
    "a comma too many": (b'{"a":1,}', "trailing comma"),
    "single quotes": (b"{'a':1}", "object"),
    "a comment": (b'{"a":/**/1}', "invalid character"),
    "a raw newline in a string": (b'{"a":"\n"}', "invalid character"),
    "an unknown escape": (b'{"a":"\\x41"}', "escape"),
    "NUL after the end": (b"{}\x00", "trailing characters"),
    "NaN": (b'{"a":NaN}', "invalid character"),
    "Infinity": (b'{"a":Infinity}', "invalid character"),
    "-Infinity": (b'{"a":-Infinity}', "invalid character"),
    "1e999": (b'{"a":1e999}', "out of range"),
    "-1e999": (b'{"a":-1e999}', "out of range"),
    "a leading zero": (b'{"a":01}', "invalid number"),
    "2^64": (b'{"a":18446744073709551616}', "64 bits"),
    "below -2^63": (b'{"a":[{"b":-9223372036854775809}]}', "64 bits"),
    "2^64 in a long list": (b'{"a":[' + b"1," * 500 + b"18446744073709551616]}", "64 bits"),
    "5,000 digits": (b'{"a":' + b"9" * 5000 + b"}", "out of range"),
    "5,000 decimals": (b'{"a":0.' + b"1" * 5000 + b"}", "5002 characters"),
    "5,000 digits and an exponent": (b'{"a":' + b"1" * 5000 + b"e-4990}", "characters"),
    "bad UTF-8": (b'{"a":"\xff"}', "UTF-8"),
    "overlong UTF-8": (b'{"a":"\xc0\x80"}', "UTF-8"),
    "a surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
    "a bad key": (b'{"\xff":1}', "UTF-8"),
    "a high surrogate": (b'{"a":"\\ud800"}', "surrogate"),
    "a low surrogate": (b'{"a":"\\udc00"}', "surrogate"),
    "a surrogate and a letter": (b'{"a":"\\ud83dx\\ude00"}', "surrogate"),
    "a surrogate in a key": (b'{"\\ud800":1}', "surrogate"),
    "depth 65": (nested(MAX_DEPTH + 1), "64 levels"),
    "depth 65 of objects": (nested(MAX_DEPTH + 1, b'{"a":', b"}"), "64 levels"),
    "depth 1,000": (nested(1000), "64 levels"),
    "a model named twice": (b'{"model":"allowed","model":"secret"}', "'model' stands twice"),
    "a role named twice": (b'{"messages":[{"role":"user","content":"a","role":"system"}]}', "'role' stands twice"),
    "a duplicate deep down": (b'{"a":[[{"b":{"c":1,"d":2,"c":1}}]]}', "'c' stands twice"),
    "a duplicate of equal value": (b'{"a":1,"a":1}', "'a' stands twice"),
    "a duplicate written with escapes": (b'{"a":1,"\\u0061":2}', "'a' stands twice"),
    "a duplicate inside a lost value": (b'{"a":{"b":1,"b":2},"a":3}', "stands twice"),
    "a duplicate hidden by an escaped colon": (b'{"a":"\\u003a","a":"\\u003A","b":"\\u003a"}', "'a' stands twice"),
    "a duplicate empty key": (b'{"":1,"":2}', "'' stands twice"),
}

LARGE: dict[str, Callable[[], bytes]] = {
    "arrays": lambda: b'{"a":[' + b"[]," * (BIG // 3) + b"[]]}",
    "objects": lambda: b'{"a":[' + b"{}," * (BIG // 3) + b"{}]}",
    "openers": lambda: b'{"a":' + b"[" * BIG,
    "nested objects": lambda: b'{"a":' * (BIG // 5),
    "numbers": lambda: b'{"a":[' + b"0," * (BIG // 2) + b"0]}",
    "strings": lambda: b'{"a":[' + b'"",' * (BIG // 3) + b'""]}',
    "keys": lambda: b'{"b":0' + b',"a":0' * (BIG // 6) + b"}",
    "a string of brackets, then arrays": lambda: b'{"b":"' + b"[" * (BIG // 2) + b'","a":[' + b"[]," * (BIG // 6) + b"[]]}",
    "digits": lambda: b'{"a":' + b"1" * BIG + b"}",
    "decimals": lambda: b'{"a":0.' + b"1" * BIG + b"}",
    "an exponent": lambda: b'{"a":1e' + b"9" * BIG + b"}",
    "an open string": lambda: b'{"a":"' + b"x" * BIG,
    "bad UTF-8 at the end": lambda: b'{"a":"' + b"x" * BIG + b'\xff"}',
    "NaN at the end": lambda: b'{"a":"' + b"x" * BIG + b'","b":NaN}',
    "a duplicate at the end": lambda: b'{"a":1,"b":"' + b"x" * BIG + b'","a":2}',
}

LONG: dict[str, Callable[[], bytes]] = {
    "as many containers as allowed": lambda: b'{"a":[' + b"[]," * (MAX_CONTAINERS - 3) + b"[]]}",
    "as many keys as allowed": lambda: json.dumps({str(i): i for i in range(MAX_KEYS)}).encode(),
    "a megabyte of code": lambda: json.dumps({"a": 'if (x[0] == {"k": [1, 2]}) { y["k"] = "z"; }\n' * 25_000}).encode(),
    "200,000 token ids": lambda: json.dumps({"prompt": list(range(200_000))}).encode(),
}

ACCEPTED: dict[str, bytes] = {
    "nothing": b"{}",
    "white space": b' \t\r\n{ "a" : [ 1 , 2 ] } ',
    "escapes": b'{"a":"\\u00e9\\n\\"\\\\\\/\\u0000","b":"\\ud83d\\ude00"}',
    "colons and quotes in strings": b'{"a":"\\":\\":{}[]","b":":::","c:":1}',
    "an escaped colon": b'{"a":"\\u003a","b":1}',
    "the word of an escaped colon": b'{"a":"\\\\u003a","b":1}',
    "equal keys in different objects": b'{"a":{"a":1},"b":[{"a":1},{"a":2}]}',
    "keys that differ in case": b'{"a":1,"A":2}',
    "the widest integers": b'{"a":%d,"b":%d}' % (INT_MIN, INT_MAX),
    "numbers in odd notation": b'{"a":1E5,"b":-0,"c":0.10,"d":1e-999,"e":100000000000000000000.0}',
    "400 digits in a string": b'{ "a": "' + b"1" * 3000 + b'" }' + b" " * 300,
    "depth 64": nested(MAX_DEPTH),
    "depth 64 of objects": nested(MAX_DEPTH, b'{"a":', b"}"),
}


@pytest.mark.fault("deep or doubtful JSON")
@pytest.mark.req("R29")
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(Fault) as caught:
        parse_object(body)
    assert caught.value.kind is Kind.INVALID_JSON
    assert reason in caught.value.message


@pytest.mark.fault("deep or doubtful JSON")
@pytest.mark.req("R29")
@pytest.mark.parametrize("name", LARGE)
def test_refused_at_8_mib(name: str) -> None:
    gc.collect()  # the body of the test before, which its exception's traceback keeps
    with pytest.raises(Fault) as caught:
        parse_object(LARGE[name]())
    assert caught.value.kind is Kind.INVALID_JSON
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", [*ACCEPTED, *LONG])
def test_accepted_as_the_standard_library_reads_it(name: str) -> None:
    body = ACCEPTED[name] if name in ACCEPTED else LONG[name]()
    assert parse_object(body) == json.loads(body)


@pytest.mark.parametrize(
    ("written", "what"),
    [
        (lambda: b'{"a":[' + b"[]," * MAX_CONTAINERS + b"[]]}", "objects and arrays"),
        (lambda: json.dumps({str(i): i for i in range(MAX_KEYS + 1)}).encode(), "keys"),
        (lambda: b'{"a":[' + b"0," * (MAX_VALUES + 1) + b"0]}", "values"),
        (lambda: nested(10**6), "more than"),
    ],
    ids=["containers", "keys", "values", "a depth of a million"],
)
def test_caps_name_what_is_counted(written: Callable[[], bytes], what: str) -> None:
    with pytest.raises(Fault, match=what):
        parse_object(written())


def test_a_large_body_with_a_duplicate_is_refused_without_the_name() -> None:
    with pytest.raises(Fault, match="a key stands twice"):
        parse_object(b'{"a":1,"b":"' + b"x" * NAMING_BYTES + b'","a":2}')


def test_names_of_keys_are_cut_and_cleaned() -> None:
    key = json.dumps("\n\x1b[31m" + "k" * 500)
    with pytest.raises(Fault) as caught:
        parse_object(f"{{{key}:1,{key}:2}}".encode())
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200


@pytest.mark.parametrize("escape", ["\\u003a", "\\u003A"])
@pytest.mark.parametrize("padding", [0, 300_000, *range(17 * 2**16 - 60, 17 * 2**16 + 4, 9)])
def test_a_key_that_stands_twice_is_found_behind_an_image_too(escape: str, padding: int) -> None:
    image = "A" * padding
    for twice in ('"b":1,"b":1', f'"b{escape}":1,"c":":"', f'"x":"{escape}","b":1,"b":1'):
        body = f'{{"a" : "{image}",{twice}}}'.encode()
        if '"c"' in twice:
            assert parse_object(body) == {"a": image, "b:": 1, "c": ":"}, "as many colons, and no key twice"
            continue
        with pytest.raises(Fault) as refused:
            parse_object(body)
        assert "twice" in refused.value.message


@pytest.mark.parametrize("opener", [b"[", b'{"a":'])
def test_depth_is_refused_whether_or_not_texts_hold_brackets(opener: bytes) -> None:
    closer = b"]" if opener == b"[" else b"}"
    fits = b'{"x":' + opener * (MAX_DEPTH - 1) + b"1" + closer * (MAX_DEPTH - 1) + b',"t":"[[[{{{"}'
    assert parse_object(fits)
    with pytest.raises(Fault, match="nested"):
        parse_object(fits.replace(b"1", opener + b"1" + closer))


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":"x","a":"x"}',
        b'{"a": 1, "a": 1}',
        b'{"a":"x","b":"y","a":"x\\",\\"b\\":\\"y"}',
        b'{"m": [{"c": "z", "c": "z"}]}',
        b'{"m":[{"c":":","c":"::"}]}',
        b'{"a":1e5,"b":100000.0,"a":1e5}',
    ],
)
def test_no_style_of_writing_hides_a_second_key(body: bytes) -> None:
    with pytest.raises(Fault, match="stands twice"):
        parse_body(body)
