"""`tidegate backup …`: a backup of the truth (the database, and usage that waits in the ledger's log), its check, and its restore."""

import asyncio
import tempfile
import time
from importlib.metadata import version as installed
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from gateway.cli.connection import DEFAULT_CONFIG, Config
from gateway.cli.groups import CommandGroup
from gateway.cli.printing import AsJson, err, fail, moment, out, print_json, write_whole
from gateway.config.load import ConfigError, Settings, load_settings
from tenancy.stores.backup_file import BackupError, BackupManifest, BackupReader, BackupWriter
from tenancy.stores.sql import StoreError, open_engine
from tenancy.stores.sql.table_copy import check_revision, copy_tables, restore_database
from tenancy.stores.wal import WalDirectory, remove, wal_directories

backup_app = CommandGroup("Backups of the database and of usage that is not in it yet.")

File = Annotated[Path, typer.Argument(help="The file of the backup.", show_default=False)]
KEEP: Final = "The pepper, the settings, the policies' folder and stored files are not in it: keep them too."


@backup_app.command("create")
def create(
    file: Annotated[Path, typer.Argument(help="Written there; a file of that name is replaced. - is stdout.", show_default=False)],
    config: Config = DEFAULT_CONFIG,
) -> None:
    """Write a backup, while the gateway runs or not: every table as of one moment, and the segments of the ledger's log."""
    settings = _settings(config)

    def work(target: IO[bytes]) -> BackupManifest:
        return asyncio.run(_create(settings, target))

    try:
        manifest = write_whole(file, work)
    except (BackupError, StoreError) as error:
        fail(str(error))
    err.print(f"wrote {file}: {_summary(manifest)}. {KEEP}", markup=False, soft_wrap=True)


@backup_app.command("verify")
def verify(file: File, as_json: AsJson = False) -> None:
    """Read a whole backup, compare it with its digests, and print what it holds; exit code 1 when it could not be restored."""
    try:
        backup = BackupReader(file)
        backup.verify()
        check_revision(backup)
    except BackupError as error:
        fail(str(error))
    made = backup.manifest
    if as_json:
        print_json(
            {
                "version": made.version,
                "revision": made.revision,
                "made_unix": made.made_unix,
                "rows": {name: entry.rows for name, entry in made.tables.items()},
                "digests": {name: entry.digest for name, entry in made.tables.items()},
                "ledger_files": len(made.ledger),
            }
        )
        return
    out.print(f"{file} is whole: {_summary(made)}", markup=False, soft_wrap=True)


@backup_app.command("restore")
def restore(
    file: File,
    config: Config = DEFAULT_CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what the database and the ledger's folder hold.")] = False,
) -> None:
    """Make the database from a backup, while no gateway runs on it; refuse a database that holds something."""
    settings = _settings(config)
    try:
        backup = BackupReader(file)
        backup.verify()
        left = _left_in(settings.ledger_dir)
        if left and not force:
            raise BackupError(
                f"{settings.ledger_dir} holds usage that is in no database yet; nothing was changed. Start and stop the gateway, "
                "which books it, or add --force to remove it"
            )
        asyncio.run(restore_database(settings.sql_url, backup, force=force))
        _replace_ledger(settings.ledger_dir, left, backup)
    except (BackupError, StoreError) as error:
        fail(str(error))
    err.print(f"restored {file}: {_summary(backup.manifest)}. {KEEP}", markup=False, soft_wrap=True)


def _settings(config: Path) -> Settings:
    try:
        return load_settings(config)
    except ConfigError as error:
        fail(f"{error}\na backup is of the stores of a settings file: run in the folder of tidegate.yaml, or name it with -c")


async def _create(settings: Settings, target: IO[bytes]) -> BackupManifest:
    engine = open_engine(settings.sql_url)
    with BackupWriter(target) as backup:
        try:
            # First the log, then the database: usage that is booked in between is in both and counts once. In the other order it could be
            # in neither.
            backup.add_ledger(settings.ledger_dir)
            with tempfile.TemporaryDirectory(prefix=".tidegate-backup-", dir=settings.ledger_dir.parent) as scratch:
                revision = await copy_tables(engine, backup, Path(scratch))
        finally:
            await engine.dispose()
        return backup.finish(version=installed("tidegate"), revision=revision, made_unix=time.time())


def _left_in(folder: Path) -> list[WalDirectory]:
    """What ended processes left in the ledger's folder. Raises BackupError when a process writes there."""
    if not folder.is_dir():
        return []
    try:
        found = wal_directories(folder)
    except OSError as error:
        raise BackupError(f"{folder} cannot be read: {error.strerror or error}") from error
    if any(not directory.is_dead for directory in found):
        raise BackupError(f"a gateway writes to {folder}: stop it first (tidegate stop)")
    return found


def _replace_ledger(folder: Path, left: list[WalDirectory], backup: BackupReader) -> None:
    try:
        for directory in left:
            for segment in directory.segments:
                segment.unlink()
            remove(folder, directory)
        backup.write_ledger(folder)
    except OSError as error:
        raise BackupError(
            f"the database is restored, and the ledger's files cannot be written to {folder}: {error.strerror or error}; "
            "mend the cause and restore again with --force"
        ) from error


def _summary(made: BackupManifest) -> str:
    rows = sum(entry.rows for entry in made.tables.values())
    return (
        f"{rows} rows of {len(made.tables)} tables and {len(made.ledger)} files of the ledger, made {moment(made.made_unix)} "
        f"by version {made.version}, schema revision {made.revision}"
    )
