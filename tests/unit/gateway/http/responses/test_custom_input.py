"""The input of a custom tool, out of arguments that come in pieces."""

import json

import pytest

from gateway.http.responses.custom_input import MAX_OPENING_CHARS, CustomInput

CASES = {
    '{"input": "a"}': "a",
    '{"input":"a"} and more': "a",
    ' { "input" : "a\\n\\"b\\"\\u00e9\\\\u0041" } ': 'a\n"b"é\\u0041',
    '{"input": "\\ud83d\\ude00"}': "😀",
    # a model's mistakes
    '{"input": "a\nb\\d\\u12"}': "a\nb\\d\\u12",
    '{"input": "\\ud83d x \\ude00"}': "\ufffd x \ufffd",
    '{"input": "\\ud83d\\n"}': "\ufffd\n",
    # cut by a limit of tokens
    '{"input": "ab\\': "ab",
    '{"input": "ab\\ud83d\\u': "ab",
    '{"input': '{"input',
    # another form
    "": "",
    "plain text": "plain text",
    '"a string"': "a string",
    '{"patch": "a"}': '{"patch": "a"}',
    '{"input": 5}': '{"input": 5}',
    '{"why": "because", "input": "a"}': "a",
    "plain text " * 20: "plain text " * 20,
    " " * MAX_OPENING_CHARS + '{"input": "a"}': "a",
}


@pytest.mark.parametrize(("arguments", "expected"), CASES.items())
def test_the_input_does_not_depend_on_the_cuts(arguments: str, expected: str) -> None:
    assert CustomInput().whole(arguments) == expected
    for step in range(1, len(arguments)):
        one = CustomInput()
        pieces = [one.feed(arguments[start : start + step]) for start in range(0, len(arguments), step)]
        assert "".join(pieces) + one.end() == expected


def test_what_is_certain_is_handed_out_at_once() -> None:
    one = CustomInput()
    assert [one.feed(piece) for piece in ('{"input": "ab', "c\\", "nd", "\\ud83d", "\\ude00", '"}')] == ["ab", "c", "\nd", "", "😀", ""]
    assert one.end() == ""


def test_a_long_patch_is_read_whole() -> None:
    patch = '*** Begin Patch\n+\t"x" \\ é😀\n' * 2000
    one = CustomInput()
    arguments = json.dumps({"input": patch})
    assert "".join(one.feed(arguments[start : start + 7]) for start in range(0, len(arguments), 7)) == patch
