"""The certificate that the endpoint picker shows to proxies, and the CAs of theirs, kept current while their files are replaced.

Certificates are rotated by replacing files (cert-manager, a kubelet). gRPC asks for the certificate before each handshake, so new
connections have the new one, and open connections go on. Files with a mistake change nothing: the last good ones stay, and the log gives
the reason.
"""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
import structlog

from gateway.config.trust import CertificateError, validity_of
from policies.yaml.folder import marks_of

log = structlog.get_logger("tidegate.picker")

POLL_S: Final = 1.0
"""Seconds between two polls. A change is taken up after two polls, because a certificate and its key are two files."""


class PickerCertificates:
    """The certificate, its key and the CAs of proxies, as they were read last.

    Args:
        files: the files by setting: certificate, private_key and, for mTLS, client_ca.

    Raises:
        CertificateError: the files cannot be used; there is nothing good to begin with.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)
        self._done = self._seen = marks_of(self._files.values())
        self._config, self.ends = _read(self._files)
        self._reason = ""
        """Why the files are refused now."""

    def credentials(self) -> Any:
        """What gRPC listens with. It calls `current` from a thread of its own, before each handshake."""
        return grpc.dynamic_ssl_server_credentials(self._config, self.current, require_client_authentication="client_ca" in self._files)

    def current(self) -> Any:
        """The configuration for the next handshake."""
        return self._config

    async def look(self) -> None:
        """Poll once: read the files where they differ from the last reading and are unchanged since the last poll."""
        now = await asyncio.to_thread(marks_of, self._files.values())
        is_stable, self._seen = now == self._seen, now
        if not is_stable or now == self._done:
            return
        try:
            self._config, self.ends = await asyncio.to_thread(_read, self._files)
        except CertificateError as error:
            # read again at each poll: a mended permission changes no mark
            if self._reason != str(error):
                self._reason = str(error)
                log.error("certificate of the endpoint picker refused, the last good one stays in force", reason=self._reason)
        else:
            self._done, self._reason = now, ""
            log.info("certificate of the endpoint picker taken up")

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.look()


def _read(files: Mapping[str, Path]) -> tuple[Any, float | None]:
    """The configuration of gRPC from these files, and when the certificate expires; None for a form that only OpenSSL reads.

    gRPC takes files that cannot be used, and refuses every connection; so OpenSSL judges them first. A
    change between the reading and the judging is another mark, and read again.
    """
    try:
        read = {name: file.read_bytes() for name, file in files.items()}
    except OSError as error:
        raise CertificateError("certificate", f"{error.filename} is no file that can be read ({error.strerror}); name a PEM file") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, authority = files["certificate"], files["private_key"], read.get("client_ca")
    try:
        # an empty password, because OpenSSL would ask the terminal for one otherwise
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError):
        message = f"{certificate} and {key} cannot be used together; name a PEM chain and the key it was made for, not encrypted"
        raise CertificateError("certificate", message) from None
    if authority is not None:
        try:
            context.load_verify_locations(files["client_ca"])
        except (ssl.SSLError, OSError, ValueError):
            message = f"{files['client_ca']} holds no certificate; name a PEM file with the CAs of proxies' certificates"
            raise CertificateError("client_ca", message) from None
    try:
        ends: float | None = validity_of(certificate).ends
    except CertificateError:
        ends = None
    return grpc.ssl_server_certificate_configuration([(read["private_key"], read["certificate"])], root_certificates=authority), ends
