"""Forms: what is read is written again under a boundary of our own, and nothing else of a form is kept."""

import pytest

from backends.forms import ENGINE_FORM, BadForm, FormBounds, FormReader, read_form, written_form

HEADER = b"multipart/form-data; boundary=b"


def part(name: bytes, value: bytes = b"v", more: bytes = b"", headers: bytes = b"") -> bytes:
    return b'--b\r\n%bContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (headers, name, more, value)


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--b--\r\n"


def test_a_written_form_reads_as_it_was_given() -> None:
    data = b"\r\n--tidegate-" + bytes(range(256)) * 20
    body, content_type = written_form([("model", "m"), ("temperature", 0.5), ("stream", True), ("a[]", ["x", "y"])], "audio.mp3", data)
    assert [(one.name, one.value, one.filename) for one in read_form(content_type, body)] == [
        ("model", b"m", None),
        ("temperature", b"0.5", None),
        ("stream", b"true", None),
        ("a[]", b"x", None),
        ("a[]", b"y", None),
        ("file", data, "audio.mp3"),
    ]
    assert b"content-type: audio/mpeg\r\n" in body


def test_two_forms_have_boundaries_of_their_own() -> None:
    assert written_form([], "audio.wav", b"x")[1] != written_form([], "audio.wav", b"x")[1]


def test_names_of_files_are_read_and_their_types_are_not() -> None:
    (read,) = read_form(HEADER, form(part(b"file", b"x", b'; filename="my \\"talk\\".WAV"', b"Content-Type: text/html\r\n")))
    assert (read.name, read.value, read.filename) == ("file", b"x", 'my "talk".WAV')


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (b"multipart/form-data", form(part(b"a")), "no boundary"),
        (b"multipart/mixed; boundary=b", form(part(b"a")), "no boundary"),
        (b"multipart/form-data; boundary=" + b"b" * 71, form(part(b"a")), "no boundary"),
        (HEADER, b"", "before its last boundary"),
        (HEADER, part(b"a"), "before its last boundary"),
        (HEADER, b"no form", "cannot be read"),
        (HEADER, form(part(b"")), "no name"),
        (HEADER, form(part(b"a b")), "no name"),
        (HEADER, form(part(b"a" * 65)), "no name"),
        (HEADER, form(part("é".encode())), "no name"),
        (HEADER, form(*[part(b"a")] * (ENGINE_FORM.parts + 1)), "more than 64 parts"),
        (HEADER, form(part(b"a", headers=b"Content-Transfer-Encoding: base64\r\n")), "content-transfer-encoding"),
        (HEADER, form(part(b"a", headers=b'Content-Disposition: form-data; name="b"\r\n')), "twice"),
        (HEADER, form(part(b"a", headers=b"".join(b"x-%d: 1\r\n" % at for at in range(20)))), "cannot be read"),
        (HEADER, form(part(b"a", headers=b"x: " + b"y" * 9000 + b"\r\n")), "cannot be read"),
        (HEADER, form(part(b"a", b"v" * (1024 * 1024 + 1))), "more than the 1048576 bytes"),
        (HEADER, form(part(b"a[b")), "no name"),
    ],
)
def test_what_is_no_form_or_beyond_the_bounds(header: bytes, body: bytes, message: str) -> None:
    with pytest.raises(BadForm, match=message):
        read_form(header, body)


SMALL = FormBounds(parts=4, field_bytes=10)
STREAMED = form(
    part(b"purpose", b"batch"), part(b"file", b"one\r\n--bb\r\n-", b'; filename="a b.jsonl"'), part(b"expires_after[seconds]", b"60")
)


def in_pieces(body: bytes, size: int) -> tuple[FormReader, bytes]:
    """A reader that has read a form in pieces of so many bytes, and what it handed on of the file."""
    reader = FormReader(HEADER, SMALL, "file")
    handed_on = b"".join(b"".join(reader.feed(body[at : at + size])) for at in range(0, len(body), size))
    reader.end()
    return reader, handed_on


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_a_file_is_handed_on_as_it_comes_and_fields_stand_on_both_sides_of_it(size: int) -> None:
    reader, handed_on = in_pieces(STREAMED, size)
    assert (handed_on, reader.file_bytes, reader.file_over) == (b"one\r\n--bb\r\n-", 12, True)
    assert reader.file is not None and (reader.file.filename, reader.file.value) == ("a b.jsonl", b"")
    assert [(one.name, one.value) for one in reader.parts] == [("purpose", b"batch"), ("expires_after[seconds]", b"60")]


def test_a_file_is_known_to_be_under_way() -> None:
    reader = FormReader(HEADER, SMALL, "file")
    assert reader.feed(part(b"file", b"abc")[:-2]) == [b"abc"]
    assert reader.file is not None and not reader.file_over
    with pytest.raises(BadForm, match="before its last boundary"):
        reader.end()


@pytest.mark.parametrize(
    ("body", "message", "name"),
    [
        (form(part(b"file"), part(b"file")), "twice", "file"),
        (form(part(b"purpose", b"x" * 11)), "more than the 10 bytes", "purpose"),
        (form(part(b"other", b"x" * 11, b'; filename="a"')), "more than the 10 bytes", "other"),
        (form(*[part(b"a")] * 5), "more than 4 parts", ""),
    ],
    ids=["two files", "a long field", "a second file", "many parts"],
)
def test_beside_a_file_a_form_is_small(body: bytes, message: str, name: str) -> None:
    with pytest.raises(BadForm, match=message) as error:
        in_pieces(body, 5)
    assert error.value.name == name
