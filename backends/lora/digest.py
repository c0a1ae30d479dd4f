"""The digest of an adapter folder: SHA-256 over the listing that coreutils would print of it.

For each file in order of its path (bytes of UTF-8, `/` between folders) one line as of `sha256sum`: the file's SHA-256 in
hexadecimal, two spaces, the path from the folder. So it can be checked where Tidegate is not installed:

    cd FOLDER && find -L . -type f -not -path '*/.*' -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum

Links are followed, because hubs' caches are made of them; names that begin with a dot are left out, because downloads leave
such files and folders behind. Times, owners and modes do not count.
"""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from backends.lora.residency import DIGEST_CHARS, Adapter

CONFIG: Final = "adapter_config.json"
"""The file that every adapter folder has in PEFT's layout, which vLLM and SGLang read."""

MAX_FILES: Final = 10_000
"""An adapter has two to twenty files; a folder with more than this is no adapter."""


class NotAnAdapter(Exception):
    """The folder is no adapter, or cannot be digested; the message says why and what to do."""


class AdapterUnreadable(NotAnAdapter):
    """The folder or one of its files cannot be read on this machine."""


def lora_digest(folder: Path) -> str:
    """The digest, 64 hexadecimal digits. Reads every file once.

    Raises:
        NotAnAdapter: the folder holds no adapter, a file cannot be read, or a name cannot be listed safely.
    """
    if not (folder / CONFIG).is_file():
        raise AdapterUnreadable(f"there is no {CONFIG} in {folder}; name the folder that holds it and the weights")
    listing = hashlib.sha256()
    try:
        for name in sorted(_names(folder)):
            with (folder / os.fsdecode(name)).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            listing.update(b"%b  %b\n" % (digest.encode(), name))
    except OSError as error:
        raise AdapterUnreadable(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    return listing.hexdigest()


def _names(folder: Path) -> Iterator[bytes]:
    count = 0
    for place, folders, files in os.walk(folder, followlinks=True, onerror=_fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            if file.startswith("."):
                continue
            count += 1
            name = os.fsencode(Path(place, file).relative_to(folder))
            if b"\n" in name or b"\r" in name or b"\\" in name:  # sha256sum escapes these in its listing
                raise NotAnAdapter(f"{place} holds a file whose name has a line break or a backslash; rename it")
            if count > MAX_FILES:
                raise NotAnAdapter(f"{folder} holds more than {MAX_FILES} files; name the adapter's own folder")
            yield name


def _fail(error: OSError) -> None:
    raise error


def readable_digest(path: str) -> str | None:
    """The digest of the adapter at this path of the engines' machines; None where this machine cannot read it. Engines may take a path that
    is not absolute for the name of a model of a hub, so such a path is none of this machine's. Raises NotAnAdapter."""
    try:
        return lora_digest(Path(path)) if Path(path).is_absolute() else None
    except AdapterUnreadable:
        return None


def readable(path: str) -> bool:
    """Whether `readable_digest` finds an adapter here that this process may read; reads no file."""
    folder = Path(path)
    if not folder.is_absolute() or not (folder / CONFIG).is_file():
        return False
    try:
        return all(os.access(folder / os.fsdecode(name), os.R_OK) for name in _names(folder))
    except OSError:
        return False


def difference(path: str, digest: str, wanted: str) -> str:
    """How the files at a path differ from the digest that they should have, in words for operators; empty when they do not."""
    return "" if digest == wanted else f"the files in {path} have the digest {digest[:DIGEST_CHARS]}… and not {wanted[:DIGEST_CHARS]}…"


REMEDY: Final = "put the right files there, or correct digest or path in the settings"


class DigestCheck:
    """Compares the files of adapters with their digests, where this machine has a readable adapter at the path that the engines use: on a
    shared file system, or on one machine. Files are read in a thread, and again only when one of them has changed."""

    def __init__(self) -> None:
        # by folder, so bounded by the configured adapters
        self._known: dict[Path, tuple[tuple[object, ...], str]] = {}
        self._reading: dict[Path, asyncio.Task[str]] = {}

    async def mismatch(self, adapter: Adapter, within_s: float) -> str:
        """Why the adapter must not be loaded; empty when its files have its digest, or cannot be read here."""
        folder = Path(adapter.path)
        if not folder.is_absolute():  # as in `readable_digest`
            return ""
        task = self._reading.get(folder)
        if task is None:
            task = self._reading[folder] = asyncio.create_task(self._read(folder))
            task.add_done_callback(lambda _: self._reading.pop(folder, None))
        done, _ = await asyncio.wait((task,), timeout=within_s)
        if not done:
            return f"the files in {folder} were not read within {within_s:.3g} s"
        try:
            digest = task.result()
        except AdapterUnreadable:
            return ""
        except NotAnAdapter as error:
            return str(error)
        differs = difference(adapter.path, digest, adapter.digest)
        return f"{differs}; {REMEDY}" if differs else ""

    async def _read(self, folder: Path) -> str:
        return await asyncio.to_thread(self._digest, folder)

    def _digest(self, folder: Path) -> str:
        identity = _identity(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == identity:
            return known[1]
        # the identity was taken before the content: a change during the reading is noticed at the next load
        digest = lora_digest(folder)
        self._known[folder] = (identity, digest)
        return digest


def _identity(folder: Path) -> tuple[object, ...]:
    """What changes with the files of a folder: their names, inodes, sizes and times. Raises AdapterUnreadable."""
    try:
        stats = [(name, (folder / os.fsdecode(name)).stat()) for name in sorted(_names(folder))]
    except OSError as error:
        raise AdapterUnreadable(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    return tuple((name, one.st_dev, one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for name, one in stats)
