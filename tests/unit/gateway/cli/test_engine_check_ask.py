import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.discovery.diagnose import of_failure
from backends.fetch import FetchError
from backends.launch.engine_facts import MODELS
from gateway.cli import engine_check
from gateway.cli.engine_access import EngineAccess
from gateway.cli.engine_check import ask, checked_url


@contextmanager
def server(says: bytes) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return  # the test is over
                with connection, contextlib.suppress(OSError):
                    if says.startswith(b"HTTP/"):
                        connection.recv(65_536)
                    connection.sendall(says)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "answers like an SSH server"),
        (b"\x15\x03\x03\x00\x02\x02F", "answers with TLS; write https://"),
        (b"", "closes the connection without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}", "ends its answer half-way"),
    ],
)
def test_what_speaks_no_http_is_said_in_the_sentences_of_discovery(says: bytes, sentence: str) -> None:
    with server(says) as url, pytest.raises(FetchError) as caught:
        ask(url, MODELS, EngineAccess())
    assert sentence in of_failure(MODELS, caught.value)


@pytest.mark.parametrize(
    ("begins", "sentence"),
    [
        (b"HTTP/1.1 200 OK\r\nconte", "takes connections but does not answer"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "sends its answer too slowly: /v1/models was not complete in time"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "sends its answer too slowly"),
    ],
    ids=["headers", "body", "chunks"],
)
def test_an_answer_that_drips_has_a_deadline_as_a_whole(monkeypatch: pytest.MonkeyPatch, begins: bytes, sentence: str) -> None:
    """Every byte comes well within the time that a silent engine has."""
    monkeypatch.setattr(engine_check, "ENGINE_WITHIN_S", 0.3)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(begins)
                while not over.wait(0.02):
                    connection.sendall(b"1\r\nx\r\n" if b"chunked" in begins else b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with pytest.raises(FetchError) as caught:
                ask(f"http://127.0.0.1:{listening.getsockname()[1]}", MODELS, EngineAccess())
        finally:
            over.set()
            thread.join()
    assert sentence in of_failure(MODELS, caught.value)


def test_only_a_refused_connection_asks_whether_it_is_started() -> None:
    with pytest.raises(FetchError) as caught:
        ask("http://127.0.0.1:1", MODELS, EngineAccess())
    assert "start the engine" in of_failure(MODELS, caught.value)


@pytest.mark.parametrize("url", ["engine:8000", "ftp://e", "http://", "http://e:70000", "http://e:0", "http://[::1", "http://a b"])
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="write http://host:port"):
        checked_url(url)
    assert checked_url("https://engine:8000/prefix") == "https://engine:8000/prefix"
