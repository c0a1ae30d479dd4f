"""Rotated certificates of the endpoint picker: taken up when they are whole, and refused with a reason when they are not."""

import datetime
import os
from pathlib import Path

import pytest
import structlog
import trustme

from gateway.config.trust import CertificateError
from gateway.picker.certificates import PickerCertificates

AUTHORITY = trustme.CA()
MADE = datetime.datetime(2026, 1, 1)
BEGINS = MADE.replace(tzinfo=datetime.UTC).timestamp()
DAY_S = 86_400.0


class Site:
    """The files of a picker, and the certificates that follow them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes = 0
        self.write(days=30)
        names = {"certificate": "a.crt", "private_key": "a.key", "client_ca": "ca.crt"}
        self.files = {setting: folder / name for setting, name in names.items()}
        self.shown = PickerCertificates(self.files)

    def write(self, *, days: int, key: bool = True, authority: bytes | None = None) -> None:
        leaf = AUTHORITY.issue_cert("picker.example", not_before=MADE, not_after=MADE + datetime.timedelta(days=days))
        leaf.cert_chain_pems[0].write_to_path(str(self.folder / "a.crt"))
        if key:
            leaf.private_key_pem.write_to_path(str(self.folder / "a.key"))
        (self.folder / "ca.crt").write_bytes(AUTHORITY.cert_pem.bytes() if authority is None else authority)
        self.changes += 1
        for file in self.folder.iterdir():  # another time, however coarse the clock of the disk is
            os.utime(file, (self.changes, self.changes))

    async def refusals(self, looks: int = 4) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            for _ in range(looks):
                await self.shown.look()
        return [line["reason"] for line in logs if line["log_level"] == "error"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_new_certificate_is_taken_up_after_it_stood_still_for_one_look(site: Site) -> None:
    before = site.shown.current()
    assert await site.refusals() == []
    assert site.shown.current() is before, "nothing changed"
    site.write(days=60)
    await site.shown.look()
    assert (site.shown.current(), site.shown.ends) == (before, BEGINS + 30 * DAY_S), "its key may not be there yet"
    await site.shown.look()
    assert site.shown.current() is not before
    assert site.shown.ends == BEGINS + 60 * DAY_S


async def test_files_that_cannot_be_used_change_nothing_and_are_told_once(site: Site) -> None:
    before = site.shown.current()
    site.write(days=60, key=False)
    (reason,) = await site.refusals()
    assert "a.crt and" in reason
    assert "cannot be used together" in reason
    site.write(days=60, authority=b"torn")
    (reason,) = await site.refusals()
    assert "ca.crt holds no certificate; name a PEM file with the CAs of proxies' certificates" in reason
    (site.folder / "a.key").unlink()
    (reason,) = await site.refusals()
    assert "a.key is no file that can be read (No such file or directory)" in reason
    assert (site.shown.current(), site.shown.ends) == (before, BEGINS + 30 * DAY_S)
    site.write(days=90)
    assert await site.refusals() == []
    assert site.shown.ends == BEGINS + 90 * DAY_S


async def test_files_that_were_refused_are_read_again_though_their_marks_are_the_same(site: Site) -> None:
    """As after a permission was mended, which changes neither size nor time."""
    authority = site.files["client_ca"]
    good = authority.read_bytes()
    site.write(days=60, authority=b"x" * len(good))
    assert len(await site.refusals()) == 1
    with authority.open("r+b") as file:
        file.write(good)
    os.utime(authority, (site.changes, site.changes))
    assert await site.refusals(1) == []
    assert site.shown.ends == BEGINS + 60 * DAY_S


def test_there_must_be_something_good_to_begin_with(site: Site) -> None:
    (site.folder / "a.crt").write_text("torn")
    with pytest.raises(CertificateError, match="cannot be used together"):
        PickerCertificates(site.files)
