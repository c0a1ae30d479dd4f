import json
from pathlib import Path
from typing import Any

import pytest

from gateway.importing.plan import FORMAT, MAX_DOCUMENT_BYTES, BadDocument, ImportedKey, read_document


def written(folder: Path, **fields: Any) -> Path:
    path = folder / "import.json"
    path.write_text(json.dumps({"format": FORMAT, **fields}))
    return path


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": "tidegate-import/9"}, "tidegate-import/9"),
        ({"tenant": []}, "tenant"),
        ({"tenants": [{"label": "no name"}]}, "$.tenants[0]"),
        ({"keys": [{"tenant": "acme", "secret": "x"}]}, "$.keys[0]"),
        ({"limits": [{"scope": {"level": "tenant"}, "meter": "tokens", "window": "day", "amount": 5.5}]}, "$.limits[0].amount"),
        ({"prices": [{"model": "m"}]}, "$.prices[0]"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadDocument) as caught:
        read_document(written(tmp_path, **fields))
    assert says in str(caught.value).replace("`", "")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b" " * (MAX_DOCUMENT_BYTES + 1))
    (tmp_path / "no.json").write_text("tenants: []")
    for name, says in (("nowhere", "cannot be read"), ("long", "split"), ("no.json", "JSON")):
        with pytest.raises(BadDocument, match=says):
            read_document(tmp_path / name)


def test_moments_without_a_zone_are_utc() -> None:
    for text in ("2027-01-01T00:00:00Z", "2027-01-01", "2027-01-01T00:00:00", "2027-01-01T01:00:00+01:00"):
        assert ImportedKey("acme", expires_at=text).expires_unix() == 1_798_761_600.0
    assert ImportedKey("acme").expires_unix() is None
    with pytest.raises(ValueError, match="never"):
        ImportedKey("acme", expires_at="never").expires_unix()
