"""Rotated certificates towards engines: taken up when they are whole, and refused with a reason when they are not."""

import datetime
import os
from pathlib import Path

import pytest
import structlog
import trustme

from gateway.config.trust import CertificateError, TlsFiles
from gateway.sync.engine_tls import EngineTlsWatch

AUTHORITY = trustme.CA()
MADE = datetime.datetime(2026, 1, 1)
BEGINS = MADE.replace(tzinfo=datetime.UTC).timestamp()


class Site:
    """The files of one pool, and a watch that follows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = BEGINS + 86_400.0
        self.changes = 0
        self.write(days=30)
        names = ("ca.pem", "gate.pem", "gate.key")
        self.files = TlsFiles(*(folder / name for name in names))
        self.watch = self.made()

    def made(self) -> EngineTlsWatch:
        return EngineTlsWatch({"chat": self.files}, lambda: self.now)

    def write(self, *, days: float, certificate: bool = True, key: bool = True) -> None:
        leaf = AUTHORITY.issue_cert("gate.example", not_before=MADE, not_after=MADE + datetime.timedelta(days=days))
        AUTHORITY.cert_pem.write_to_path(str(self.folder / "ca.pem"))
        if certificate:
            leaf.cert_chain_pems[0].write_to_path(str(self.folder / "gate.pem"))
        if key:
            leaf.private_key_pem.write_to_path(str(self.folder / "gate.key"))
        self.changes += 1
        for file in self.folder.iterdir():  # another time, however coarse the clock of the disk is
            os.utime(file, (self.changes, self.changes))

    @property
    def context(self) -> object:
        tls = self.watch.of("chat")
        assert tls is not None
        return tls.context


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_new_certificate_is_taken_up_after_it_stood_still_for_one_look(site: Site) -> None:
    tls, before = site.watch.of("chat"), site.context
    await site.watch.look()
    assert site.context is before, "nothing changed"
    site.write(days=60)
    await site.watch.look()
    assert site.context is before, "its key may not be there yet"
    assert site.watch.ends() == {"chat": BEGINS + 30 * 86_400.0}, "of the certificate in use"
    await site.watch.look()
    assert site.context is not before
    assert site.watch.of("chat") is tls, "the pool's upstreams hold it"
    assert site.watch.ends() == {"chat": BEGINS + 60 * 86_400.0}


async def test_a_certificate_without_its_key_changes_nothing_until_the_key_comes(site: Site) -> None:
    before = site.context
    site.write(days=60, key=False)
    with structlog.testing.capture_logs() as logs:
        for _ in range(4):
            await site.watch.look()
    (line,) = logs
    assert (line["log_level"], line["pool"]) == ("error", "chat")
    assert "cannot be used together" in line["reason"]
    assert site.context is before
    site.write(days=60)
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await site.watch.look()
    assert [line["event"] for line in logs] == ["certificates towards engines taken up"]
    assert site.context is not before


async def test_files_that_go_away_change_nothing(site: Site) -> None:
    before = site.context
    for file in site.folder.iterdir():
        file.unlink()
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await site.watch.look()
    assert "is no file that can be read" in logs[0]["reason"]
    assert site.context is before


async def test_a_certificate_that_expires_is_reported_once_and_its_successor_anew(site: Site) -> None:
    site.now = BEGINS + 40 * 86_400.0
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            await site.watch.look()
        site.write(days=35)
        for _ in range(3):
            await site.watch.look()
    told = [line["reason"].partition("gate.pem ")[2] for line in logs if line["log_level"] == "error"]
    assert told == ["has expired at 2026-01-31 00:00 UTC; renew it", "has expired at 2026-02-05 00:00 UTC; renew it"]


def test_a_start_with_an_expired_certificate_says_so_and_goes_on(site: Site) -> None:
    site.now = BEGINS + 40 * 86_400.0
    with structlog.testing.capture_logs() as logs:
        site.made()
    assert [line["event"] for line in logs] == ["the engines will refuse the client certificate"]


def test_a_start_without_a_file_is_refused(site: Site) -> None:
    (site.folder / "gate.key").unlink()
    with pytest.raises(CertificateError, match=r"gate\.key is no file that can be read"):
        site.made()


def test_pools_without_files_have_the_systems_cas_and_cost_no_loop() -> None:
    watch = EngineTlsWatch({}, lambda: 0.0)
    assert watch.of("chat") is None
    assert watch.loops() == []
