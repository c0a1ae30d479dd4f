"""Secrets, by reference only: from a file or from the environment, never from the settings themselves."""

import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.addresses import sqlite_file
from gateway.settings import SecretReference, Settings
from tenancy.keys import Pepper

PEPPER_BYTES: Final = 32
MAX_SECRET_BYTES: Final = 4096
MIN_TOKEN_CHARS: Final = 24
"""24 characters of hexadecimal are 96 bits, beyond guessing over a network."""


class SecretError(Exception):
    """A secret cannot be had; the message says which and what to do, and never holds it."""


class WeakSecret(SecretError):
    """It is there, and no secret that will do."""


def read_reference(reference: SecretReference, base_dir: Path, environ: Mapping[str, str]) -> str:
    """The secret behind `{file: …}` or `{env: …}`, stripped of surrounding white space.

    Raises:
        SecretError: it is missing, empty or too long.
    """
    if reference.env is not None:
        value, source = environ.get(reference.env, "").strip(), f"environment variable {reference.env}"
    else:
        path = base_dir / str(reference.file)
        source = f"file {path}"
        try:
            value = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SecretError(f"{source} cannot be read ({type(error).__name__}); create it, readable by this user only") from None
    if not value or len(value) > MAX_SECRET_BYTES:
        raise SecretError(f"{source} is {'empty' if not value else 'too long'}; it should hold one secret")
    return value


def read_pepper(settings: Settings) -> Pepper:
    """The secret that key digests are keyed with.

    Where none is configured and the store is SQLite, it lies beside the database in `tidegate.pepper`, made on first use and
    readable by its owner only; so a laptop needs no set-up, and losing the file means that every key must be made again.

    Raises:
        SecretError: it is configured and missing, or the store is shared and none is configured.
    """
    reference = settings.secrets.pepper
    if reference is not None:
        secret = read_reference(reference, settings.base_dir, os.environ).encode()
    else:
        file = sqlite_file(settings.stores.sql)
        if not file:
            raise SecretError("secrets.pepper is needed with a shared database; write {file: …} or {env: …}, the same for every gateway")
        secret = _beside(settings.base_dir / file)
    return Pepper(kid=hashlib.sha256(b"tidegate kid v1" + secret).hexdigest()[:8], secret=secret)


def read_admin_token(settings: Settings) -> str | None:
    """What changing the fleet over the admin port asks for; None when it is switched off.

    Raises:
        SecretError: it is configured and missing.
        WeakSecret: it is too short to be guessed by nobody.
    """
    if settings.secrets.admin_token is None:
        return None
    token = read_reference(settings.secrets.admin_token, settings.base_dir, os.environ)
    if len(token) < MIN_TOKEN_CHARS or not token.isascii():
        raise WeakSecret(f"secrets.admin_token holds fewer than {MIN_TOKEN_CHARS} ASCII characters; make one with: openssl rand -hex 32")
    return token


def read_hook_secret(settings: Settings) -> bytes | None:
    """What messages about rollouts are signed with; None when nobody is told.

    Raises:
        SecretError: it is missing.
        WeakSecret: it is too short.
    """
    if settings.rollouts.webhook is None:
        return None
    secret = read_reference(settings.rollouts.webhook.secret, settings.base_dir, os.environ)
    if len(secret) < MIN_TOKEN_CHARS:
        raise WeakSecret(f"rollouts.webhook.secret holds fewer than {MIN_TOKEN_CHARS} characters; make one with: openssl rand -hex 32")
    return secret.encode()


def _beside(database: Path) -> bytes:
    path = database.parent / "tidegate.pepper"
    try:
        if not path.exists():
            _make_whole(path, secrets.token_hex(PEPPER_BYTES).encode())
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SecretError(
            f"{path} cannot be made or read ({error.strerror}); make the folder and the file this user's own, or set secrets.pepper"
        ) from None
    if len(secret) < PEPPER_BYTES:
        raise SecretError(f"{path} is damaged; restore it, or remove it and make every key again")
    return secret


def _make_whole(path: Path, content: bytes) -> None:
    """Make `path` with its content or not at all: of several processes that start at once one makes it, and none sees half of it."""
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(unfinished, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(unfinished)
