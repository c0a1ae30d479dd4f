"""Forms with a recording: each is refused with a Fault, or becomes one document and one file, which a form that we write has again."""

import json
from pathlib import Path

import pytest

from backends.dialects import form_for
from backends.forms import read_form
from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.openai import interpret
from gateway.http.openai.audio import form_document
from gateway.http.openai.controls import FAMILIES, REMOVED
from tests.fuzz.mutation import Target

PIECES = [
    b"--xyz\r\n",
    b"--xyz--\r\n",
    b"\r\n--xyz",
    b'Content-Disposition: form-data; name="model"\r\n\r\n',
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n',
    b'Content-Disposition: form-data; name="cache_salt"\r\n\r\nx\r\n',
    b"Content-Transfer-Encoding: base64\r\n",
    b"; filename*=UTF-8''x.wav",
    b'; name="prompt"',
    b"[]",
    b'"',
    b"\r\n\r\n",
    b"\0",
    b"\xff",
]
FORMS = Target("forms", PIECES)
HEADER = b"multipart/form-data; boundary=xyz"
REFUSALS = {Kind.INVALID_JSON, Kind.MISSING_PARAMETER, Kind.INVALID_VALUE, Kind.UNSUPPORTED_PARAMETER}


def law(body: bytes) -> str:
    try:
        document, upload = form_document(HEADER, body)
        ask = interpret(Endpoint.TRANSCRIPTIONS, document)
    except Fault as fault:
        assert fault.kind in REFUSALS
        assert fault.message.isprintable()
        assert len(fault.message) < 1000
        return f"{fault.kind.name} {fault.param}"[:60]
    assert upload
    form, content_type = form_for(ask.fields, "served", upload)
    sent = read_form(content_type, form)
    assert [part.value for part in sent if part.filename is not None] == [upload]
    fields = json.loads(ask.fields)
    names = {part.name for part in sent}
    expected = {name for name, value in fields.items() if value not in (None, [])}
    assert names == {"model"} | {"stream_include_usage" if name == "stream_options" else name for name in expected}
    assert not any(name in REMOVED or name.startswith(FAMILIES) for name in names)
    assert [part.value for part in sent if part.name == "model"] == [b"served"]
    return f"ok {len(sent)}"


@pytest.mark.req("R29", "R30")
@pytest.mark.parametrize("path", FORMS.corpus, ids=lambda p: p.stem)
def test_corpus(path: Path) -> None:
    law(path.read_bytes())


@pytest.mark.req("R29", "R30")
def test_damaged_forms(record_property: pytest.FixtureRequest) -> None:
    record_property("figure", FORMS.run(law, 4_000))  # type: ignore[operator]  # pytest's fixture is a function
