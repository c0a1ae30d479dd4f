"""Files and uploads as OpenAI's API shows them."""

import pytest

from domain.faults import Fault, Kind
from domain.files import StoredFile, StoredUpload
from gateway.http.openai.files import (
    BATCH_KEEP_S,
    CompleteRequest,
    ExpiresAfter,
    ListQuery,
    checked_name,
    checked_purpose,
    file_object,
    keep_s,
    page_object,
    read_json,
    read_page_query,
    upload_object,
)

FILE = StoredFile(
    id="file-1", tenant="acme", project="p", filename="a.jsonl", purpose="batch", size_bytes=3, created_unix=5.9, status="ready"
)


def test_a_file_that_never_expires_says_nothing_of_it() -> None:
    assert file_object(FILE) == {
        "id": "file-1",
        "object": "file",
        "bytes": 3,
        "created_at": 5,
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
    }


def test_an_upload_shows_its_file_once_it_is_complete() -> None:
    upload = StoredUpload(id="upload_1", tenant="acme", file_id="file-1", mime_type="x/y", created_unix=5.0, expires_unix=3605.0)
    assert upload_object(upload, FILE, status="pending")["file"] is None
    assert upload_object(upload, FILE, status="completed")["file"] == file_object(FILE)


def test_a_page_says_where_it_begins_and_ends() -> None:
    page = page_object([{"id": "a"}, {"id": "b"}], has_more=True)
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("a", "b", True)
    assert page_object([], has_more=False) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_a_query_asks_for_a_page() -> None:
    assert read_page_query("", 20, 100) == ListQuery(20)
    assert read_page_query("limit=7&after=file-1&order=asc&purpose=batch", 20, 100) == ListQuery(7, "file-1", False, "batch")


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=-1", "limit=x", "limit=", "limit=9999999999999", "order=up"])
def test_other_pages_are_refused(query: str) -> None:
    with pytest.raises(Fault) as error:
        read_page_query(query, 20, 100)
    assert error.value.kind is Kind.INVALID_VALUE


def test_how_long_a_file_is_kept() -> None:
    assert keep_s(None, "batch") == BATCH_KEEP_S
    assert keep_s(None, "user_data") is None
    assert keep_s(ExpiresAfter("created_at", 3600), "batch") == 3600.0
    for wrong in (ExpiresAfter("now", 3600), ExpiresAfter("created_at", 3599), ExpiresAfter("created_at", 2_592_001)):
        with pytest.raises(Fault):
            keep_s(wrong, "batch")


def test_names_have_no_path_and_purposes_are_known() -> None:
    assert checked_name("C:\\x\\..\\a.jsonl") == "a.jsonl"
    assert checked_name("/etc/passwd") == "passwd"
    for name in ("", "a/", "x" * 256, "a\nb"):
        with pytest.raises(Fault):
            checked_name(name)
    assert checked_purpose("batch") == "batch"
    with pytest.raises(Fault):
        checked_purpose("batch_output")


@pytest.mark.parametrize(("body", "kind"), [(b"{", Kind.INVALID_JSON), (b"\xff", Kind.INVALID_JSON), (b"{}", Kind.INVALID_VALUE)])
def test_bodies_are_json_of_a_form(body: bytes, kind: Kind) -> None:
    with pytest.raises(Fault) as error:
        read_json(body, CompleteRequest)
    assert error.value.kind is kind
