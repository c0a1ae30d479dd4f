"""Reads secrets by reference: from a file or from the environment, never from the settings themselves."""

import contextlib
import hashlib
import os
import secrets
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from gateway.config.addresses import sqlite_file
from gateway.config.guards import GuardModelSettings, GuardWebhookSettings
from gateway.config.load import Settings
from gateway.config.secrets import SecretError, SecretReference, WeakSecret, read_reference
from gateway.config.settings import WebhookSettings
from gateway.config.traces import OtlpTarget
from tenancy.keys import Pepper

PEPPER_BYTES: Final = 32
MIN_TOKEN_CHARS: Final = 24
"""Shortest admin token: 24 hexadecimal characters are 96 bits, too many to guess over a network."""


LOST_PEPPER: Final = (
    "If it is lost, every key has to be made again or rotated: start once with `tidegate serve --new-pepper`, and until then every key is "
    "refused."
)


def read_pepper(settings: Settings, *, anew: bool = False) -> Pepper:
    """The pepper: the secret that key digests are keyed with.

    Where none is configured and the store is SQLite, the pepper lies beside the database in `tidegate.pepper`, made on first use and
    readable by its owner only; so a laptop needs no set-up. If the file is lost, every key must be made again.

    Args:
        anew: make a missing pepper also where the database has keys, which are refused from then on.

    Raises:
        SecretError: the pepper is configured and missing, or the store is shared and no pepper is configured, or the pepper beside a
            database with keys is missing.
    """
    reference = settings.secrets.pepper
    if reference is not None:
        secret = read_reference(reference, settings.base_dir, os.environ).encode()
    else:
        file = sqlite_file(settings.stores.sql)
        if not file:
            raise SecretError("secrets.pepper is needed with a shared database; write {file: …} or {env: …}, the same for every gateway")
        secret = _pepper_beside(settings.base_dir / file, anew=anew)
    return _named(secret)


def read_former_pepper(settings: Settings) -> Pepper | None:
    """The pepper of before; None where none is configured. Raises SecretError: it is missing."""
    reference = settings.secrets.former_pepper
    return None if reference is None else _named(read_reference(reference, settings.base_dir, os.environ).encode())


def _named(secret: bytes) -> Pepper:
    return Pepper(kid=hashlib.sha256(b"tidegate kid v1" + secret).hexdigest()[:8], secret=secret)


def read_admin_token(settings: Settings) -> str | None:
    """The bootstrap token of the admin API; None when none is configured.

    Raises:
        SecretError: the token is configured and missing.
        WeakSecret: the token is too short, or not ASCII.
    """
    if settings.secrets.admin_token is None:
        return None
    token = read_reference(settings.secrets.admin_token, settings.base_dir, os.environ)
    if len(token) < MIN_TOKEN_CHARS or not token.isascii():
        raise WeakSecret(f"secrets.admin_token holds fewer than {MIN_TOKEN_CHARS} ASCII characters; make one with: openssl rand -hex 32")
    return token


def read_client_secret(settings: Settings) -> str:
    """The gateway's secret at the identity provider of `auth.console`; empty without one. Raises SecretError."""
    provider = settings.auth.console
    if provider is None or provider.client_secret is None:
        return ""
    return read_reference(provider.client_secret, settings.base_dir, os.environ)


class HookSecrets(msgspec.Struct, frozen=True):
    """The secrets that webhook messages are signed with; None where no webhook is configured."""

    rollouts: bytes | None
    alerts: bytes | None


def read_hook_secrets(settings: Settings) -> HookSecrets:
    """The secrets of the webhooks.

    Raises:
        SecretError: a secret is missing.
        WeakSecret: a secret is too short.
    """
    return HookSecrets(read_rollouts_secret(settings), read_alerts_secret(settings))


def read_every_secret(settings: Settings, *, new_pepper: bool = False) -> None:
    """Read every secret that a start needs: peppers, admin token, client secret, secrets of the webhooks, keys of the pools, secrets of the
    detectors, headers of the trace exporters.

    Raises:
        SecretError: a secret is missing or too weak.
        WeakSecret: as above.
    """
    read_pepper(settings, anew=new_pepper)
    read_former_pepper(settings)
    read_admin_token(settings)
    read_client_secret(settings)
    read_hook_secrets(settings)
    for pool in settings.pools:
        if pool.api_key is not None:
            read_reference(pool.api_key, settings.base_dir, os.environ)
    for name in settings.guards.detectors:
        read_detector_secret(settings, name)
    read_s3_keys(settings)
    for name in settings.traces.exporters if settings.traces is not None else ():
        read_trace_headers(settings, name)
    read_log_headers(settings)


def read_detector_secret(settings: Settings, name: str) -> str | None:
    """The secret of a detector of `guards.detectors`: its bearer token, or the key of the signature on its messages; None without one.

    Raises:
        SecretError: the secret is configured and missing.
        WeakSecret: the key of a signature is too short.
    """
    path, reference = detector_secret(settings, name)
    if reference is None:
        return None
    secret = read_reference(reference, settings.base_dir, os.environ)
    if isinstance(settings.guards.detectors[name], GuardWebhookSettings):
        _check_length(path, secret)
    return secret


def detector_secret(settings: Settings, name: str) -> tuple[str, SecretReference | None]:
    """The reference to a detector's secret, with its path; None where it has none."""
    detector = settings.guards.detectors[name]
    path = f"guards.detectors.{name}"
    if isinstance(detector, GuardWebhookSettings):
        return f"{path}.secret", detector.secret
    return f"{path}.api_key", None if isinstance(detector, GuardModelSettings) else detector.api_key


def read_s3_keys(settings: Settings) -> tuple[str, str]:
    """Access key and secret key of `files.s3`; both empty where the settings name none. Raises SecretError."""
    s3 = settings.files.s3
    if s3 is None or (s3.access_key is None and s3.secret_key is None):
        return "", ""
    if s3.access_key is None or s3.secret_key is None:
        raise SecretError("files.s3 has one of access_key and secret_key; write both, or none for the environment's own identity")
    return read_reference(s3.access_key, settings.base_dir, os.environ), read_reference(s3.secret_key, settings.base_dir, os.environ)


def read_trace_headers(settings: Settings, name: str) -> dict[str, str]:
    """The headers of an exporter of `traces`.

    Raises:
        SecretError: one is missing, or cannot stand in a header.
    """
    assert settings.traces is not None
    return _headers(settings, f"traces.exporters.{name}", settings.traces.exporters[name])


def read_log_headers(settings: Settings) -> dict[str, str]:
    """The headers of `request_log.otlp`; none without it. Raises SecretError: as above."""
    target = settings.request_log.otlp
    return {} if target is None else _headers(settings, "request_log.otlp", target)


def _headers(settings: Settings, path: str, target: OtlpTarget) -> dict[str, str]:
    headers = {}
    for header, reference in target.headers.items():
        value = headers[header] = read_reference(reference, settings.base_dir, os.environ)
        if not value.isascii() or not value.isprintable():
            raise SecretError(f"{path}.headers.{header} holds characters that no header may have; write one ASCII line")
    return headers


def read_rollouts_secret(settings: Settings) -> bytes | None:
    """The secret of `rollouts.webhook`; None without one. Raises SecretError, WeakSecret."""
    return _hook_secret("rollouts.webhook.secret", settings.rollouts.webhook, settings)


def read_alerts_secret(settings: Settings) -> bytes | None:
    """The secret of `alerts.webhook`; None without one. Raises SecretError, WeakSecret."""
    return _hook_secret("alerts.webhook.secret", settings.alerts.webhook, settings)


def _hook_secret(path: str, webhook: WebhookSettings | None, settings: Settings) -> bytes | None:
    if webhook is None:
        return None
    secret = read_reference(webhook.secret, settings.base_dir, os.environ)
    _check_length(path, secret)
    return secret.encode()


def _check_length(path: str, secret: str) -> None:
    if len(secret) < MIN_TOKEN_CHARS:
        raise WeakSecret(f"{path} holds fewer than {MIN_TOKEN_CHARS} characters; make one with: openssl rand -hex 32")


def _pepper_beside(database: Path, *, anew: bool) -> bytes:
    path = database.parent / "tidegate.pepper"
    try:
        if not path.exists():
            if not anew and (keys := _keys_in(database)):
                raise SecretError(
                    f"{path} is missing, and {database} has {keys} key{'s' * (keys > 1)} that only this pepper verifies; restore the file "
                    f"from a backup (or set secrets.pepper). {LOST_PEPPER}"
                )
            _create_atomically(path, secrets.token_hex(PEPPER_BYTES).encode())
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SecretError(
            f"{path} cannot be made or read ({error.strerror}); make the folder and the file this user's own, or set secrets.pepper"
        ) from None
    if len(secret) < PEPPER_BYTES:
        raise SecretError(f"{path} is damaged; restore it, or remove it and make every key again")
    return secret


def _keys_in(database: Path) -> int:
    """The number of keys in an SQLite database that are not revoked; 0 where there is no database, or no table of keys yet.

    Raises:
        SecretError: the database cannot be read.
    """
    if not database.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'api_key'").fetchone() is None:
                return 0
            return int(connection.execute("SELECT count(*) FROM api_key WHERE revoked_unix IS NULL").fetchone()[0])
    except sqlite3.Error as error:
        raise SecretError(f"the pepper beside {database} is missing, and the database cannot be searched for keys: {error}") from None


def _create_atomically(path: Path, content: bytes) -> None:
    """Create `path` with its whole content, atomically: of processes that start at once one creates it, and none sees a part of it."""
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
