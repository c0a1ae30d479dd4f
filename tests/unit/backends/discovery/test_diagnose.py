import pytest

from backends.discovery.diagnose import MAX_DETAIL, of_failure, of_list, of_status
from backends.fetch import FetchError, FetchTimeout
from backends.ports import Loss


@pytest.mark.parametrize(
    ("loss", "detail", "says"),
    [
        (Loss.CONNECT, "ConnectionRefusedError: [Errno 111]", "nothing listens there"),
        (Loss.CONNECT, "gaierror: [Errno -2] Name or service not known", "does not resolve"),
        (Loss.CONNECT, "no connection within 2 s", "does not take connections in time"),
        (Loss.CONNECT, "OSError: [Errno 113] No route to host", "cannot be reached from here"),
        (Loss.CONNECT, "SSLCertVerificationError: certificate verify failed: self-signed certificate", "it is self-signed"),
        (Loss.CONNECT, "SSLCertVerificationError: unable to get local issuer certificate", "nobody here knows its CA"),
        (Loss.CONNECT, "SSLCertVerificationError: certificate has expired", "it has expired; renew it"),
        (Loss.CONNECT, "SSLCertVerificationError: Hostname mismatch, certificate is not valid for 'x'", "for another name"),
        (Loss.CONNECT, "SSLError: [SSL: WRONG_VERSION_NUMBER] wrong version number", "write http://"),
        (Loss.CONNECT, "RefusedAddress: address 127.0.0.1 is outside", "must not be connected to"),
        (Loss.CONNECT, "something new", "cannot be connected to"),
        (Loss.GARBLED, "in what begins with b'\\x15\\x03\\x03\\x00'", "write https://"),
        (Loss.GARBLED, "in what begins with b'SSH-2.0'", "like an SSH server"),
        (Loss.GARBLED, "in what begins with b'+OK'", "does not answer with HTTP"),
        (Loss.NO_REPLY, "closed by the engine", "write https:// if it speaks TLS"),
        (Loss.NO_REPLY, "ReadError: [SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13", "demands a client certificate, and none was shown"),
        (Loss.NO_REPLY, "ReadError: [SSL: TLSV1_ALERT_UNKNOWN_CA] tlsv1 alert", "it does not know its CA"),
        (Loss.CONNECT, "SSLError: [SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3", "was shown: it has expired; renew it"),
        (Loss.CONNECT, "SSLError: [SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3", "refuses the client certificate that was shown; look at"),
        (Loss.CUT, "closed by the engine", "ends its answer half-way"),
    ],
)
def test_losses(loss: Loss, detail: str, says: str) -> None:
    said = of_failure("/health", FetchError(f"{loss.value}: {detail}", loss=loss, detail=detail))
    assert says in said
    assert detail[:20] in said


def test_slowness_and_size() -> None:
    assert "does not answer" in of_failure("/health", FetchTimeout("no answer within 2 s"))
    assert "too slowly" in of_failure("/health", FetchTimeout("no answer within 2 s", received=True))
    assert of_failure("/x", FetchError("answers more than 9 bytes")) == "/x: answers more than 9 bytes"


@pytest.mark.parametrize(
    ("status", "headers", "body", "says"),
    [
        (401, {}, b"", "write the pool's api_key"),
        (403, {b"content-type": b"text/html"}, b"", "the answer is an HTML page"),
        (404, {}, b"{}", "look at the pool's dialect"),
        (418, {}, b"", "does not know the question"),
        (503, {}, b"", "it starts, drains or is unhealthy"),
        (599, {}, b"", "it has failed"),
        (302, {b"location": b"http://e/login?token=secret"}, b"", "redirects to http://e/login, and redirects are never followed"),
        (400, {}, b"<title>400 The plain HTTP request was sent to HTTPS port</title>", "write https://"),
    ],
)
def test_statuses(status: int, headers: dict[bytes, bytes], body: bytes, says: str) -> None:
    said = of_status("/health", status, headers, body)
    assert says in said
    assert "secret" not in said


def test_answers_that_are_no_lists() -> None:
    assert "answers HTML" in of_list("/v1/models", {}, b"  <!DOCTYPE html><title>")
    assert "answers HTML" in of_list("/v1/models", {b"content-type": b"text/html"}, b"hello")
    assert "with nothing" in of_list("/v1/models", {}, b"")
    assert "it begins with \\x00\\xff" in of_list("/v1/models", {}, b"\x00\xff" + b"x" * 10_000)


def test_what_engines_send_stays_short_and_on_one_line() -> None:
    said = of_failure("/health", FetchError("x", loss=Loss.GARBLED, detail="a\r\n\x1b[31m\u202e" + "y" * 5000))
    assert len(said) < 2 * MAX_DETAIL + 100
    assert said.isprintable()
