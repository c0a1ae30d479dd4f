"""Forms: what is read is written again under a boundary of our own, and nothing else of a form is kept."""

import pytest

from backends.forms import MAX_PARTS, BadForm, read_form, written_form

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
        (HEADER, form(*[part(b"a")] * (MAX_PARTS + 1)), "more than 64 parts"),
        (HEADER, form(part(b"a", headers=b"Content-Transfer-Encoding: base64\r\n")), "content-transfer-encoding"),
        (HEADER, form(part(b"a", headers=b'Content-Disposition: form-data; name="b"\r\n')), "twice"),
        (HEADER, form(part(b"a", headers=b"".join(b"x-%d: 1\r\n" % at for at in range(20)))), "cannot be read"),
        (HEADER, form(part(b"a", headers=b"x: " + b"y" * 9000 + b"\r\n")), "cannot be read"),
        (HEADER, form(part(b"a", b"v" * (1024 * 1024 + 1))), "1048577 bytes"),
    ],
)
def test_what_is_no_form_or_beyond_the_bounds(header: bytes, body: bytes, message: str) -> None:
    with pytest.raises(BadForm, match=message):
        read_form(header, body)
