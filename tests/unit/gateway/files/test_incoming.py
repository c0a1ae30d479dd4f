"""A form whose file is stored as it arrives: what goes to the storage, and what is refused on the way."""

from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from domain.faults import Fault, Kind
from domain.identity import Caller, KeyId, TenantId
from gateway.files.incoming import FORM_BYTES, STEP_BYTES, IncomingForm
from gateway.story import Story
from tenancy.accounts import DEFAULT_PROJECT

TYPE = b"multipart/form-data; boundary=cut"


def too_large() -> Fault:
    return Fault(Kind.BODY_TOO_LARGE, "too large", param="file")


class Contents:
    """A storage that keeps what it gets, in the pieces in which it got it."""

    def __init__(self) -> None:
        self.kept: dict[str, list[bytes]] = {}

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
        self.kept[key] = [data] if isinstance(data, bytes) else [piece async for piece in data]


class Body:
    """An exchange whose body comes in pieces of a size."""

    def __init__(self, body: bytes, size: int, content_type: bytes, *, length: bool) -> None:
        self.head = SimpleNamespace(headers={b"content-type": content_type}, coding="", content_length=len(body) if length else None)
        self.taken = 0
        self._body = body
        self._size = size

    async def pieces(self, _most: int, _tenant: str) -> AsyncIterator[bytes]:
        for at in range(0, len(self._body), self._size):
            self.taken += 1
            yield self._body[at : at + self._size]


def field(name: str, value: bytes, more: str = "") -> bytes:
    return b'--cut\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more.encode(), value)


def form(*fields: bytes) -> bytes:
    return b"".join(fields) + b"--cut--\r\n"


FILE = field("file", b"one\r\n--cu\r\ntwo", '; filename="a b.jsonl"\r\nContent-Type: text/plain')


def story() -> Story:
    return Story("r", 0.0, 0.0, 0.0, "r")


async def admit_all(_size: int) -> None:
    pass


def incoming(body: Body, most: int = 10 * STEP_BYTES) -> IncomingForm:
    exchange: Any = body
    return IncomingForm(exchange, "file", most, too_large, Caller(TenantId("acme"), DEFAULT_PROJECT, KeyId("key")))


async def stored(
    body: bytes, size: int = 1000, content_type: bytes = TYPE, most: int = 10 * STEP_BYTES, *, length: bool = True
) -> tuple[IncomingForm, Sequence[bytes]]:
    """A form that was read to its end, and the pieces of its file."""
    contents: Any = Contents()
    reading = incoming(Body(body, size, content_type, length=length), most)
    await reading.begin(story(), lambda: 0.0)
    await reading.store("files/a", contents, admit_all)
    return reading, contents.kept["files/a"]


@pytest.mark.parametrize("size", [1, 10, 1000])
async def test_a_form_is_its_file_and_its_fields_on_both_sides(size: int) -> None:
    reading, pieces = await stored(form(field("purpose", b"batch"), FILE, field("expires_after[seconds]", b"3600")), size)
    assert (reading.filename, pieces) == ("a b.jsonl", [b"one\r\n--cu\r\ntwo"])
    assert reading.fields() == {"purpose": "batch", "expires_after[seconds]": "3600"}


async def test_a_file_may_be_empty_and_have_no_name() -> None:
    reading, pieces = await stored(form(field("file", b"")))
    assert (reading.filename, reading.file_over, pieces) == ("", True, [b""])


async def test_a_large_file_goes_on_in_steps_each_of_which_is_admitted_first() -> None:
    data = bytes(range(256)) * 4096 * 3
    body = Body(form(field("file", data), field("purpose", b"batch")), 300_000, TYPE, length=True)
    reading, admitted, contents = incoming(body), [], Contents()

    async def admit(size: int) -> None:
        admitted.append((size, sum(map(len, contents.kept.get("k", ())))))

    await reading.begin(story(), lambda: 0.0)
    assert body.taken == 4, "no more is read than a step needs"
    assert 0 < len(data) - reading.least_bytes <= FORM_BYTES
    any_contents: Any = contents
    await reading.store("k", any_contents, admit)
    assert b"".join(contents.kept["k"]) == data
    assert [size for size, _ in admitted] == [sum(map(len, contents.kept["k"][: at + 1])) for at in range(len(contents.kept["k"]))]
    assert all(len(piece) >= STEP_BYTES for piece in contents.kept["k"][:-1])


async def test_what_is_not_admitted_is_not_stored() -> None:
    reading, contents = incoming(Body(form(field("file", b"x" * 3 * STEP_BYTES)), 300_000, TYPE, length=False)), Contents()
    got: list[int] = []

    class Kept(Contents):
        async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> None:
            assert not isinstance(data, bytes)
            async for piece in data:
                got.append(len(piece))

    async def admit(size: int) -> None:
        if size > 2 * STEP_BYTES:
            raise too_large()

    await reading.begin(story(), lambda: 0.0)
    contents = Kept()
    any_contents: Any = contents
    with pytest.raises(Fault, match="too large"):
        await reading.store("k", any_contents, admit)
    assert sum(got) <= 2 * STEP_BYTES


async def test_a_length_that_says_too_much_is_refused_before_anything_is_read() -> None:
    body = Body(form(field("file", b"x" * (FORM_BYTES + 2000))), 1000, TYPE, length=True)
    with pytest.raises(Fault, match="too large"):
        incoming(body, most=1000)
    assert body.taken == 0


@pytest.mark.parametrize(("most", "fits"), [(1000, True), (999, False)])
async def test_the_file_alone_is_bounded_to_the_byte(most: int, fits: bool) -> None:
    body = form(field("purpose", b"batch"), field("file", b"x" * 1000))
    if fits:
        assert (await stored(body, most=most))[0].file_bytes == 1000
        return
    with pytest.raises(Fault, match="too large"):
        await stored(body, most=most)


@pytest.mark.parametrize(
    ("body", "kind", "param"),
    [
        (form(field("purpose", b"batch")), Kind.MISSING_PARAMETER, "file"),
        (form(FILE, FILE), Kind.INVALID_VALUE, "file"),
        (FILE, Kind.INVALID_VALUE, None),
        (b"no form at all", Kind.INVALID_VALUE, None),
        (b"", Kind.INVALID_VALUE, None),
        (form(FILE, field("purpose", b"x" * 1025)), Kind.INVALID_VALUE, "purpose"),
        (form(FILE, *(field(f"f{at}", b"") for at in range(16))), Kind.INVALID_VALUE, None),
        (form(FILE) + b"x" * FORM_BYTES, Kind.INVALID_VALUE, None),
    ],
    ids=["no file", "two files", "no end", "no form", "empty", "a long field", "many fields", "much behind the end"],
)
@pytest.mark.parametrize("size", [10, 1_000_000], ids=["pieces", "whole"])
async def test_other_forms_are_refused(body: bytes, kind: Kind, param: str | None, size: int) -> None:
    with pytest.raises(Fault) as error:
        await stored(body, size, length=False)
    assert (error.value.kind, error.value.param) == (kind, param)


async def test_a_field_may_stand_once() -> None:
    reading, _ = await stored(form(FILE, field("purpose", b"batch"), field("purpose", b"vision")))
    with pytest.raises(Fault, match="twice"):
        reading.fields()


@pytest.mark.parametrize("content_type", [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 300])
async def test_a_form_names_its_boundary(content_type: bytes) -> None:
    with pytest.raises(Fault) as error:
        await stored(form(FILE), content_type=content_type)
    assert error.value.kind is Kind.UNSUPPORTED_MEDIA
