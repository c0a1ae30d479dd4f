"""The file of a backup: a ZIP archive with the tables of the database, the segments of the ledger, and a manifest that is written last.

    manifest.json          `BackupManifest`: version, schema revision, and a digest of every other member
    tables/NAME.jsonl      one JSON array per row, in the order of the manifest's columns
    ledger/PID-TOKEN/…     the segments of the write-ahead log, and what was under way, as `stores.wal` describes them

The form is the same for SQLite and Postgres, so a backup of one can be restored into the other. A table's digest does not depend on the
order of its rows: databases sort texts in different ways.
"""

import contextlib
import hashlib
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from tenancy.stores.wal import OPEN, SEALED

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
TABLE: Final = "tables/{}.jsonl"
LEDGER: Final = "ledger/"
_LEDGER_FILE: Final = re.compile(r"[A-Za-z0-9_-]+/(\d+\.(open|wal)|under-way)")
"""Names that a restore writes; a name that leads out of the folder is none of them."""
_ROW: Final = msgspec.json.Encoder()
_WHOLE: Final = 1 << 256


class BackupError(Exception):
    """A backup cannot be made, read or restored; the message says why, and what to do."""


class TableEntry(msgspec.Struct, frozen=True):
    """What the manifest says of a table."""

    columns: tuple[str, ...]
    rows: int
    digest: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds. A field that this version does not know is ignored: a later version may add some."""

    format: int
    version: str
    """Of the program that made the backup."""
    made_unix: float
    revision: str
    """Of the schema."""
    tables: dict[str, TableEntry]
    ledger: dict[str, str]
    """SHA-256 of each file of the write-ahead log."""


class RowsDigest:
    """A digest of the rows of a table, whatever their order."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, line: bytes) -> None:
        """Count one row in."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(hashlib.sha256(line).digest())) % _WHOLE

    def in_hex(self) -> str:
        """The digest of the rows until now."""
        return f"{self._sum:064x}"


def row_line(row: Iterable[object]) -> bytes:
    """One row as a line of a table's member."""
    return _ROW.encode(list(row)) + b"\n"


class BackupWriter:
    """Writes a backup, member by member, while the context lasts.

    Args:
        target: an open file; it need not be seekable.
    """

    def __init__(self, target: IO[bytes]) -> None:
        self._zip = zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        self._tables: dict[str, TableEntry] = {}
        self._ledger: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def add_ledger(self, folder: Path) -> None:
        """Copy the files of a write-ahead log that a gateway may be writing to. Raises OSError."""
        for file in sorted(folder.glob("*/*")):
            name = f"{file.parent.name}/{file.name}"
            if _LEDGER_FILE.fullmatch(name):
                data = _read_moving(file)
                if data is not None:
                    self._zip.writestr(LEDGER + name, data)
                    self._ledger[name] = hashlib.sha256(data).hexdigest()

    @contextlib.contextmanager
    def table(self, name: str, columns: tuple[str, ...]) -> Iterator["TableWriter"]:
        """Write the rows of one table while the context lasts."""
        with self._zip.open(TABLE.format(name), "w", force_zip64=True) as member:
            writer = TableWriter(member)
            yield writer
        self._tables[name] = TableEntry(columns, writer.digest.rows, writer.digest.in_hex())

    def finish(self, *, version: str, revision: str, made_unix: float) -> BackupManifest:
        """Write the manifest: without it the file is no backup."""
        manifest = BackupManifest(
            format=FORMAT, version=version, made_unix=made_unix, revision=revision, tables=self._tables, ledger=self._ledger
        )
        self._zip.writestr(MANIFEST, msgspec.json.encode(manifest))
        return manifest


class TableWriter:
    """Writes the rows of one table into its member."""

    def __init__(self, member: IO[bytes]) -> None:
        self._member = member
        self.digest = RowsDigest()

    def add(self, row: Iterable[object]) -> None:
        """Write one row."""
        line = row_line(row)
        self.digest.add(line)
        self._member.write(line)


def _read_moving(file: Path) -> bytes | None:
    """The content of a file of the log. An open segment may get its sealed name meanwhile, and a sealed one may be booked and removed: then
    its events are in the database, which is copied after the log."""
    for path in (file, file.with_suffix(SEALED)) if file.suffix == OPEN else (file,):
        with contextlib.suppress(FileNotFoundError):
            return path.read_bytes()
    return None


class BackupReader:
    """Reads a backup that is whole.

    Args:
        path: the file.

    Raises:
        BackupError: the file cannot be read, is no backup, or is of a form that this version does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
            self.manifest = msgspec.json.decode(self._zip.read(MANIFEST), type=BackupManifest)
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, msgspec.MsgspecError) as error:
            raise BackupError(f"{path} is no whole backup: {error}; take another copy of it, or an older backup") from error
        if self.manifest.format != FORMAT:
            raise BackupError(
                f"{path} has form {self.manifest.format}, made by version {self.manifest.version}; this version reads form {FORMAT}: "
                "restore it with the version that made it"
            )

    def lines(self, table: str) -> Iterator[bytes]:
        """The rows of a table, as they are written. Raises BackupError where the file is damaged."""
        with self._member(TABLE.format(table)) as member:
            yield from member

    def ledger_file(self, name: str) -> bytes:
        """One file of the write-ahead log. Raises BackupError where the file is damaged."""
        with self._member(LEDGER + name) as member:
            return member.read()

    @contextlib.contextmanager
    def _member(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._zip.open(name) as member:
                yield member
        except (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError) as error:
            raise self._damaged(name, str(error)) from error

    def _damaged(self, name: str, why: str) -> BackupError:
        return BackupError(f"{self.path} is damaged at {name}: {why}; take another copy of it, or an older backup")

    def verify(self) -> None:
        """Read everything, and compare it with the digests. Raises BackupError."""
        for name, entry in self.manifest.tables.items():
            digest = RowsDigest()
            for line in self.lines(name):
                digest.add(line)
            if (digest.rows, digest.in_hex()) != (entry.rows, entry.digest):
                raise self._damaged(TABLE.format(name), f"{digest.rows} rows that are not the {entry.rows} of the manifest")
        for name, expected in self.manifest.ledger.items():
            if not _LEDGER_FILE.fullmatch(name):
                raise self._damaged(LEDGER + name, "no name of a file of the ledger")
            if hashlib.sha256(self.ledger_file(name)).hexdigest() != expected:
                raise self._damaged(LEDGER + name, "not the content of the manifest")

    def write_ledger(self, folder: Path) -> None:
        """Put the files of the write-ahead log into a folder, in the directory of its process, as if it was killed. Raises OSError."""
        for name in self.manifest.ledger:
            target = folder / name
            for directory in (folder, target.parent):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            target.touch(mode=0o600)
            target.write_bytes(self.ledger_file(name))
