"""Certificates: those that the control plane's HTTP clients (httpx) trust, and what pools say about TLS towards their engines.

The system's CAs are trusted where nothing else is named. `engine_context` reads a pool's files and says in a sentence what is wrong with
them; `gateway/sync/engine_tls.py` calls it again when they change.
"""

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.config.secrets import SecretError

if TYPE_CHECKING:
    from gateway.config.pools import EngineTlsSettings


def verify_for(url: str) -> ssl.SSLContext | bool:
    """The `verify` argument of an httpx client for one URL; False for plain HTTP, where reading the system's certificates takes 50 ms.

    Args:
        url: the only address that the client asks; it follows no redirects.
    """
    return ssl.create_default_context() if url.startswith("https:") else False


class CertificateError(SecretError):
    """A file of a certificate, a key or a CA cannot be used; the message names it, says why and what to do."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        """The setting that names the file: ca, certificate or private_key."""


class TlsFiles(msgspec.Struct, frozen=True):
    """The files of one pool's TLS, absolute; None where the settings name none."""

    ca: Path | None
    certificate: Path | None
    private_key: Path | None

    @classmethod
    def of(cls, tls: "EngineTlsSettings", base_dir: Path) -> "TlsFiles":
        """The files that the settings name, relative to `base_dir`."""
        ca, certificate, private_key = (base_dir / name if name else None for name in (tls.ca, tls.certificate, tls.private_key))
        return cls(ca, certificate, private_key)

    def over(self, others: "TlsFiles") -> "TlsFiles":
        """These files, and of `others` what these name none of. A certificate comes with its own key."""
        pair = self if self.certificate is not None else others
        return TlsFiles(self.ca or others.ca, pair.certificate, pair.private_key)

    def named(self) -> dict[str, Path]:
        """The files that there are, by setting."""
        files = {"ca": self.ca, "certificate": self.certificate, "private_key": self.private_key}
        return {key: path for key, path in files.items() if path is not None}


def engine_context(files: TlsFiles) -> ssl.SSLContext:
    """The TLS context towards engines.

    Raises:
        CertificateError: a file is missing or no PEM, or the certificate and its key do not belong together.
    """
    for key, path in files.named().items():
        if not (path.is_file() and os.access(path, os.R_OK)):
            raise CertificateError(key, f"{path} is no file that can be read; name a PEM file")
    try:
        context = ssl.create_default_context(cafile=files.ca)
    except (ssl.SSLError, OSError):
        raise CertificateError("ca", f"{files.ca} holds no certificate; name a PEM file with the CAs of the engines") from None
    if files.certificate is not None and files.private_key is not None:
        try:
            # an empty password, because OpenSSL would ask the terminal for one otherwise
            context.load_cert_chain(files.certificate, files.private_key, password="")
        except (ssl.SSLError, OSError, ValueError):
            message = f"{files.certificate} and {files.private_key} cannot be used together; name a PEM chain and the key it was made for"
            raise CertificateError("certificate", f"{message}, not encrypted") from None
    return context


class Validity(msgspec.Struct, frozen=True):
    """When a certificate is valid, seconds since the epoch."""

    begins: float
    ends: float

    def refusal(self, now: float) -> str | None:
        """Why engines will refuse the certificate now; None when they will not."""
        if now >= self.ends:
            return f"has expired at {_time(self.ends)}; renew it"
        if now < self.begins:
            return f"is valid only from {_time(self.begins)} on; look at its dates and at this machine's clock"
        return None


def validity_of(certificate: Path) -> Validity:
    """When the first certificate of a PEM file is valid. Raises CertificateError."""
    # read when a pool has a client certificate only: the library takes 20 MB
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (OSError, ValueError):
        raise CertificateError("certificate", f"{certificate} holds no certificate; name a PEM file") from None
    return Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
