"""The file of a backup: what it takes in, and what a damaged, foreign or later one is answered with."""

import io
import random
import zipfile
from pathlib import Path

import msgspec
import pytest

from tenancy.stores.backup_file import FORMAT, MANIFEST, BackupError, BackupReader, BackupWriter, RowsDigest, row_line

ROWS = [("acme", 1, b"\x00\xff"), ("bolt", 2, None)]


def written(path: Path, ledger: Path | None = None) -> Path:
    with path.open("wb") as file, BackupWriter(file) as backup:
        if ledger is not None:
            backup.add_ledger(ledger)
        with backup.table("tenant", ("name", "count", "digest")) as table:
            for row in ROWS:
                table.add(row)
        backup.finish(version="0.1.0", revision="0030", made_unix=1.0)
    return path


def changed(path: Path, name: str, data: bytes) -> Path:
    """The archive with another content of one member, and sums of its own that are right."""
    with zipfile.ZipFile(path) as old:
        members = {member: old.read(member) for member in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for member, content in {**members, name: data}.items():
            new.writestr(member, content)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (log / "12-ab").mkdir(parents=True)
    for name in ("00000001.wal", "00000002.open", "under-way", "lock", "under-way.new"):
        (log / "12-ab" / name).write_bytes(name.encode())
    backup = BackupReader(written(tmp_path / "b", log))
    backup.verify()
    assert list(backup.lines("tenant")) == [row_line(row) for row in ROWS]
    assert (backup.manifest.tables["tenant"].rows, backup.manifest.revision) == (2, "0030")
    backup.write_ledger(tmp_path / "restored")
    found = {file.name: file.read_bytes() for file in (tmp_path / "restored" / "12-ab").iterdir()}
    assert found == {name: name.encode() for name in ("00000001.wal", "00000002.open", "under-way")}


def test_a_segment_that_is_sealed_meanwhile_is_found_under_its_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    (log / "12-ab").mkdir(parents=True)
    sealed, gone = log / "12-ab" / "00000001.wal", log / "12-ab" / "00000002.wal"
    sealed.write_bytes(b"events")
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: [sealed.with_suffix(".open"), gone])
    backup = BackupReader(written(tmp_path / "b", log))
    assert {name: backup.ledger_file(name) for name in backup.manifest.ledger} == {"12-ab/00000001.open": b"events"}


def test_a_digest_does_not_depend_on_the_order_and_sees_a_row_twice() -> None:
    lines = [row_line([number]) for number in range(50)]
    texts = set()
    for seed in range(5):
        digest = RowsDigest()
        for line in random.Random(seed).sample(lines, len(lines)):
            digest.add(line)
        texts.add(digest.in_hex())
    assert len(texts) == 1
    digest.add(lines[0])
    assert digest.in_hex() not in texts


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_that_is_cut_is_no_backup(tmp_path: Path, share: float) -> None:
    path = written(tmp_path / "b")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BackupError, match="is no whole backup"):
        BackupReader(path)


def test_every_flipped_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    data = path.read_bytes()
    found = 0
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            backup = BackupReader(path)
            backup.verify()
        except BackupError:
            found += 1
            continue
        assert list(backup.lines("tenant")) == [row_line(row) for row in ROWS], f"byte {at}"
    assert found > len(data) / 2


def test_other_rows_and_other_segments_are_found(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="1 rows that are not the 2 of the manifest"):
        BackupReader(changed(written(tmp_path / "b"), "tables/tenant.jsonl", row_line(ROWS[0]))).verify()
    log = tmp_path / "log"
    (log / "12-ab").mkdir(parents=True)
    (log / "12-ab" / "00000001.wal").write_bytes(b"events")
    with pytest.raises(BackupError, match=r"damaged at ledger/12-ab/00000001\.wal"):
        BackupReader(changed(written(tmp_path / "c", log), "ledger/12-ab/00000001.wal", b"others")).verify()


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    manifest = msgspec.json.decode(zipfile.ZipFile(path).read(MANIFEST))
    manifest["ledger"] = {"../out/00000001.wal": ""}
    with pytest.raises(BackupError, match="no name of a file of the ledger"):
        BackupReader(changed(path, MANIFEST, msgspec.json.encode(manifest))).verify()


def test_a_later_form_is_refused_and_later_fields_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path / "b")
    manifest = msgspec.json.decode(zipfile.ZipFile(path).read(MANIFEST))
    BackupReader(changed(path, MANIFEST, msgspec.json.encode({**manifest, "later": True}))).verify()
    with pytest.raises(BackupError, match="restore it with the version that made it"):
        BackupReader(changed(path, MANIFEST, msgspec.json.encode({**manifest, "format": FORMAT + 1})))


def test_a_file_that_is_missing_or_unfinished(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="cannot be read: No such file"):
        BackupReader(tmp_path / "none")
    target = io.BytesIO()
    with BackupWriter(target):
        pass
    (tmp_path / "b").write_bytes(target.getvalue())
    with pytest.raises(BackupError, match=r"no whole backup.*manifest\.json"):
        BackupReader(tmp_path / "b")
