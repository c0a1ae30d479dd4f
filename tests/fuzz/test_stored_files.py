"""Forms with files, and input files of batches: what is read of them was in them, or a Fault or a mistake says why nothing is."""

import json
from pathlib import Path
from typing import Any

import pytest

from backends.forms import BadForm, FormPart, FormReader
from domain.ask import Endpoint
from domain.faults import Kind
from gateway.batches.input_lines import MAX_MISTAKES, InputReader, body_of
from gateway.files.incoming import BOUNDS
from gateway.http.openai.checks import form_fault
from tests.fuzz.mutation import Target

TYPE = b"multipart/form-data; boundary=cut"
FORM = (
    b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--cut\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\nContent-Type: text/plain\r\n\r\none\r\ntwo\r\n--cut--\r\n'
)
FORM_PIECES = [
    b"--cut",
    b"--cut--",
    b"\r\n",
    b"\r\n\r\n",
    b'name="file"',
    b"filename*=utf-8''%00",
    b"Content-Disposition: form-data; ",
    b"--",
]
FORMS = Target("forms", FORM_PIECES, [FORM])
LINE = (
    b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", '
    b'"body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]}}'
)
LINE_PIECES = [
    b"\n",
    b"\r\n",
    b'"custom_id"',
    b'"body"',
    b"{}",
    b"null",
    b'"stream": true',
    b'"model": "n"',
    b"\xff",
    b"[" * 600,
    b'"\\ud800"',
]
LINES = Target("batch_lines", LINE_PIECES, [LINE, LINE + b"\n\n" + LINE.replace(b'"a"', b'"b"') + b"\n"])


Read = tuple[str, bytes, list[FormPart]]


def read_in(data: bytes, size: int) -> Read:
    """What is wrong with a form, or nothing; its file; and its fields, read in pieces of so many bytes."""
    reader, file = FormReader(TYPE, BOUNDS, "file"), b""
    try:
        for at in range(0, len(data), size):
            file += b"".join(reader.feed(data[at : at + size]))
        reader.end()
    except BadForm as error:
        fault = form_fault(error)
        assert fault.kind is Kind.INVALID_VALUE and fault.message.isprintable() and len(fault.message) < 1000
        return type(error).__name__, file, reader.parts
    return "", file, reader.parts


def form(data: bytes) -> str:
    wrong, file, fields = read_in(data, len(data) or 1)
    assert file in data
    assert len(fields) <= BOUNDS.parts
    assert all(len(part.value) <= BOUNDS.field_bytes and part.value in data for part in fields)
    for size in (1, 7):
        in_pieces = read_in(data, size)
        # a form that is broken may have handed on less before the error
        assert in_pieces == (wrong, file, fields) if not wrong else in_pieces[0] == wrong, "pieces say the same as the whole"
    return wrong or f"ok {len(fields)} {bool(file)}"


def lines(data: bytes) -> str:
    whole, cut = InputReader(Endpoint.CHAT.path, 10), InputReader(Endpoint.CHAT.path, 10)
    whole.feed(data)
    for at in range(0, len(data), 7):
        cut.feed(data[at : at + 7])
    found = whole.end()
    assert (found, whole.mistakes) == (cut.end(), cut.mistakes), "pieces say the same as the whole"
    assert len(found) <= 10 and len(whole.mistakes) <= MAX_MISTAKES
    assert found or whole.mistakes
    for one in found:
        line = data[one.start : one.start + one.length]
        # the text of a prompt is checked when the line is sent, as that of any request
        assert json.loads(line.decode("utf-8", "replace"))["custom_id"] == one.custom_id
        assert body_of(line) in line
    assert len({one.custom_id for one in found}) == len(found)
    return f"{'' if whole.mistakes else 'ok '}{len(found)} {sorted({mistake.code for mistake in whole.mistakes})}"


@pytest.mark.parametrize("path", FORMS.corpus, ids=lambda path: path.stem)
def test_corpus_of_forms(path: Path) -> None:
    form(path.read_bytes())


@pytest.mark.parametrize("path", LINES.corpus, ids=lambda path: path.stem)
def test_corpus_of_lines(path: Path) -> None:
    lines(path.read_bytes())


def test_forms_are_read_or_refused(record_property: Any) -> None:
    record_property("figure", FORMS.run(form, 3_000))


def test_lines_are_read_or_named(record_property: Any) -> None:
    record_property("figure", LINES.run(lines, 2_000))
