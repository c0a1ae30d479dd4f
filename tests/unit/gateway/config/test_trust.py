"""TLS towards engines: what the files must be, and what is said where they are something else."""

import datetime
from pathlib import Path

import pytest
import trustme

from gateway.config.checks import contradictions
from gateway.config.pools import EngineTlsSettings
from gateway.config.trust import CertificateError, TlsFiles, engine_context, validity_of
from tests.unit.gateway.config.test_checks import written

FILES = ("ca.pem", "gate.pem", "gate.key")
AT = datetime.datetime(2026, 1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    authority = trustme.CA()
    leaf = authority.issue_cert("gate.example", not_before=AT, not_after=AT + datetime.timedelta(days=30))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "gate.pem"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "gate.key"))
    return tmp_path


def files(folder: Path, ca: str = "ca.pem", certificate: str = "gate.pem", private_key: str = "gate.key") -> TlsFiles:
    return TlsFiles.of(EngineTlsSettings(ca=ca, certificate=certificate, private_key=private_key), folder)


def test_whole_files_make_a_context_that_checks_names_and_trusts_the_named_cas_alone(folder: Path) -> None:
    context = engine_context(files(folder))
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert len(engine_context(TlsFiles(None, folder / "gate.pem", folder / "gate.key")).get_ca_certs()) != 1, "the system's"


@pytest.mark.parametrize("missing", FILES)
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(CertificateError, match=f"{missing} is no file that can be read; name a PEM file"):
        engine_context(files(folder))


def test_a_key_of_another_certificate_is_refused(folder: Path) -> None:
    trustme.CA().issue_cert("x.example").private_key_pem.write_to_path(str(folder / "gate.key"))
    with pytest.raises(CertificateError, match=r"gate\.pem and .*gate\.key cannot be used together; name a PEM chain and the key"):
        engine_context(files(folder))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_pem_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("no certificate")
    with pytest.raises(CertificateError, match=r"holds no certificate|cannot be used together"):
        engine_context(files(folder))


def test_the_dates_of_a_certificate_are_told(folder: Path) -> None:
    validity = validity_of(folder / "gate.pem")
    begins = AT.replace(tzinfo=datetime.UTC).timestamp()
    assert validity.begins == begins
    assert validity.refusal(begins + 1) is None
    assert validity.refusal(begins + 30 * 86_400) == "has expired at 2026-01-31 00:00 UTC; renew it"
    assert validity.refusal(begins - 1) == "is valid only from 2026-01-01 00:00 UTC on; look at its dates and at this machine's clock"
    (folder / "gate.pem").write_text("x")
    with pytest.raises(CertificateError, match="holds no certificate"):
        validity_of(folder / "gate.pem")


def test_half_a_client_certificate_and_none_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="has one of certificate and private_key; write both"):
        EngineTlsSettings(certificate="a.pem")
    with pytest.raises(ValueError, match="names no file; write ca"):
        EngineTlsSettings()


def test_a_check_names_the_key_and_the_place(folder: Path) -> None:
    def found(url: str, **changed: str) -> list[str]:
        names = {"ca": "ca.pem", "certificate": "gate.pem", "private_key": "gate.key"} | changed
        tls = ", ".join(f"{key}: {name}" for key, name in names.items())
        text = f"pools:\n- name: p\n  tls: {{{tls}}}\n  backends: [{{id: a, url: '{url}'}}]\n"
        return [str(problem) for problem in contradictions(written(text), folder) if "policies" not in str(problem)]

    assert found("https://engine:8000") == []
    (problem,) = found("http://engine:8000")
    assert "pools[0].backends[0].url: the pool has tls, and this engine is asked without TLS; write https://" in problem
    (problem,) = found("https://engine:8000", ca="no.pem")
    assert problem.startswith("t.yaml:3:")
    assert "pools[0].tls.ca: " in problem
    assert "no.pem is no file that can be read; name a PEM file" in problem
