"""TLS of the data port chooses HTTP/1.1 for clients that offer HTTP/2 as well, and its certificate says when it expires."""

import datetime
import ssl
from pathlib import Path

import pytest
import trustme

from gateway.config.listeners import Tls
from gateway.process.worker import expiry_of, tls_context


@pytest.mark.parametrize(("offered", "chosen"), [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)])
def test_alpn_chooses_http_1_1(tmp_path: Path, offered: list[str], chosen: str | None) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("gateway.example")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "chain.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    if offered:
        trusting.set_alpn_protocols(offered)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname="gateway.example")
    server = tls_context(Tls(certificate=str(tmp_path / "chain.pem"), private_key=str(tmp_path / "key.pem"))).wrap_bio(
        to_server, to_client, server_side=True
    )
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert client.selected_alpn_protocol() == server.selected_alpn_protocol() == chosen


def test_the_end_of_the_chains_first_certificate_counts(tmp_path: Path) -> None:
    ends = datetime.datetime(2031, 5, 1)
    issued = trustme.CA().issue_cert("gateway.example", not_after=ends)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems) + trustme.CA().cert_pem.bytes())
    assert expiry_of(chain) == ends.replace(tzinfo=datetime.UTC).timestamp()
    chain.write_bytes(b"-----BEGIN TRUSTED CERTIFICATE-----")
    assert expiry_of(chain) is None
