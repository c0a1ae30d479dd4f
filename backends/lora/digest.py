"""The digest of an adapter folder: SHA-256 over the listing that coreutils would print of it.

For each file in order of its path (bytes of UTF-8, `/` between folders) one line as of `sha256sum`: the file's SHA-256 in
hexadecimal, two spaces, the path from the folder. So it can be checked where Tidegate is not installed:

    cd FOLDER && find -L . -type f -not -path '*/.*' -printf '%P\\n' | LC_ALL=C sort | xargs -d '\\n' sha256sum | sha256sum

Links are followed, because hubs' caches are made of them; names that begin with a dot are left out, because downloads leave
such files and folders behind. Times, owners and modes do not count.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONFIG: Final = "adapter_config.json"
"""The file that every adapter folder has in PEFT's layout, which vLLM and SGLang read."""

MAX_FILES: Final = 10_000
"""An adapter has two to twenty files; a folder with more than this is no adapter."""


class NotAnAdapter(Exception):
    """The folder is no adapter, or cannot be digested; the message says why and what to do."""


def lora_digest(folder: Path) -> str:
    """The digest, 64 hexadecimal digits. Reads every file once.

    Raises:
        NotAnAdapter: the folder holds no adapter, a file cannot be read, or a name cannot be listed safely.
    """
    if not (folder / CONFIG).is_file():
        raise NotAnAdapter(f"there is no {CONFIG} in {folder}; name the folder that holds it and the weights")
    listing = hashlib.sha256()
    try:
        for name in sorted(_names(folder)):
            with (folder / os.fsdecode(name)).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            listing.update(b"%b  %b\n" % (digest.encode(), name))
    except OSError as error:
        raise NotAnAdapter(f"{error.filename or folder} cannot be read: {error.strerror}") from None
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
