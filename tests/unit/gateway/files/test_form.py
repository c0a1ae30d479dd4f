"""Forms with a file: what is read of them, and what is refused."""

import pytest

from domain.faults import Fault, Kind
from gateway.files.form import MAX_FIELD_BYTES, MAX_FIELDS, read_form

TYPE = b"multipart/form-data; boundary=cut"


def field(name: str, value: bytes, more: str = "") -> bytes:
    return b'--cut\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more.encode(), value)


FILE = field("file", b"one\r\n--cu\r\ntwo", '; filename="a b.jsonl"\r\nContent-Type: text/plain')


def form(*fields: bytes) -> bytes:
    return b"".join(fields) + b"--cut--\r\n"


def refused(body: bytes, content_type: bytes = TYPE) -> Kind:
    with pytest.raises(Fault) as error:
        read_form(content_type, body, "file")
    return error.value.kind


def test_a_form_is_its_file_and_its_fields() -> None:
    read = read_form(TYPE, form(field("purpose", b"batch"), FILE, field("expires_after[seconds]", b"3600")), "file")
    assert (read.filename, read.data) == ("a b.jsonl", b"one\r\n--cu\r\ntwo")
    assert read.fields == {"purpose": "batch", "expires_after[seconds]": "3600"}


def test_a_file_may_be_empty_and_have_no_name() -> None:
    read = read_form(TYPE, form(field("file", b"")), "file")
    assert (read.filename, read.data) == ("", b"")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (form(field("purpose", b"batch")), Kind.MISSING_PARAMETER),
        (form(FILE, FILE), Kind.INVALID_VALUE),
        (FILE, Kind.INVALID_VALUE),
        (b"no form at all", Kind.INVALID_VALUE),
        (b"", Kind.INVALID_VALUE),
        (form(FILE, field("purpose", b"x" * (MAX_FIELD_BYTES + 1))), Kind.INVALID_VALUE),
        (form(FILE, *(field(f"f{at}", b"") for at in range(MAX_FIELDS))), Kind.INVALID_VALUE),
        (form(field("file", b"", "\r\n" + "\r\n".join(f"x{at}: y" for at in range(100)))), Kind.INVALID_VALUE),
    ],
    ids=["no file", "two files", "no end", "no form", "empty", "a long field", "many fields", "many headers"],
)
def test_other_forms_are_refused(body: bytes, kind: Kind) -> None:
    assert refused(body) is kind


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 300])
def test_a_form_names_its_boundary(content_type: bytes) -> None:
    assert refused(form(FILE), content_type) is Kind.UNSUPPORTED_MEDIA
