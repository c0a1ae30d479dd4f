import pytest

from domain.faults import Fault, Kind
from gateway.http.edge.head import RequestHead, checked_head, offers_websocket, size_of

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def head(
    headers: dict[bytes, bytes] | None = None, *, target: bytes = b"/v1/models", version: str = "1.1", hosts: frozenset[bytes] = frozenset()
) -> RequestHead:
    return checked_head(b"GET", target, version, {b"host": b"a", **(headers or {})}, keep_alive=True, hosts=hosts)


def refused(**options: object) -> Kind:
    with pytest.raises(Fault) as caught:
        head(**options)  # type: ignore[arg-type]  # the cases below are head's
    return caught.value.kind


@pytest.mark.parametrize("target", [b"/v1/models", b"/v1/models?limit=1", b"/v1/../admin", b"/v1/%2e%2e/admin", b"//v1/models"])
def test_the_path_is_what_was_sent_without_its_query(target: bytes) -> None:
    assert head(target=target).path == target.partition(b"?")[0].decode()


@pytest.mark.parametrize("target", [b"*", b"http://other/v1/models", b"other:443", b""])
def test_only_paths_are_targets(target: bytes) -> None:
    assert refused(target=target) is Kind.MALFORMED_HTTP


@pytest.mark.parametrize("version", ["0.9", "2.0", "1.2"])
def test_only_versions_we_speak(version: str) -> None:
    assert refused(version=version) is Kind.MALFORMED_HTTP


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({b"transfer-encoding": b"gzip, chunked"}, Kind.MALFORMED_HTTP),
        ({b"content-encoding": b"br"}, Kind.UNSUPPORTED_MEDIA),
        ({b"content-encoding": b"gzip, gzip"}, Kind.UNSUPPORTED_MEDIA),
        ({b"expect": b"a-miracle"}, Kind.EXPECTATION_FAILED),
        ({b"host": b"a b"}, Kind.MALFORMED_HTTP),
        ({b"host": b"a/../b"}, Kind.MALFORMED_HTTP),
        ({b"host": b""}, Kind.MALFORMED_HTTP),
    ],
)
def test_what_is_not_understood_is_refused(headers: dict[bytes, bytes], kind: Kind) -> None:
    assert refused(headers=headers) is kind


def test_an_http_1_0_caller_may_not_chunk() -> None:
    assert refused(headers={b"transfer-encoding": b"chunked"}, version="1.0") is Kind.MALFORMED_HTTP


def test_a_host_must_be_served_here_when_hosts_are_listed() -> None:
    hosts = frozenset({b"llm.example.com"})
    assert head({b"host": b"LLM.example.com"}, hosts=hosts).path
    assert refused(headers={b"host": b"evil.example.com"}, hosts=hosts) is Kind.MALFORMED_HTTP


def test_harmless_codings_pass() -> None:
    assert not head({b"content-encoding": b"identity"}).has_body
    assert head({b"content-encoding": b"Identity"}).coding == ""
    assert head({b"content-encoding": b"GZip"}).coding == "gzip"
    assert head({b"transfer-encoding": b"Chunked"}).has_body
    assert head({b"content-length": b"3"}).has_body
    assert not head({b"content-length": b"0"}).has_body


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"req-1.A:b_c", "req-1.A:b_c"),
        (b"a" * 64, "a" * 64),
        (b"a" * 65, None),
        (b"", None),
        (b"a b", None),
        (b'"; drop', None),
        (b"\xc3\xa4", None),
    ],
)
def test_only_sane_request_ids_are_kept(given: bytes, kept: str | None) -> None:
    assert head({b"x-request-id": given}).request_id() == kept


@pytest.mark.parametrize(
    ("parent", "state", "passed"),
    [
        (PARENT, b"vendor=1", (PARENT, b"vendor=1")),
        (PARENT, b"bad\x00state", (PARENT, None)),
        (PARENT, None, (PARENT, None)),
        (PARENT.upper(), b"vendor=1", (None, None)),
        (PARENT + b"-more", None, (None, None)),
        (None, b"vendor=1", (None, None)),
    ],
)
def test_only_well_formed_traces_are_passed_on(parent: bytes | None, state: bytes | None, passed: tuple[object, object]) -> None:
    given = {b"traceparent": parent, b"tracestate": state}
    assert head({name: value for name, value in given.items() if value is not None}).trace() == passed


def test_the_size_of_a_head_counts_names_values_and_punctuation() -> None:
    assert size_of({b"host": b"a", b"x": b"yz"}) == len(b"host: a\r\nx: yz\r\n")


@pytest.mark.parametrize(
    ("lines", "offered"),
    [
        (b"upgrade: websocket\r\nconnection: Upgrade", True),
        (b"Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket ", True),
        (b"upgrade: websocket\r\nconnection: keep-alive", False),
        (b"upgrade: websocket, h2c\r\nconnection: Upgrade", False),
        (b"upgrade: websocket\r\nupgrade: websocket\r\nconnection: Upgrade", False),
        (b"upgrade: h2c\r\nconnection: Upgrade", False),
        (b"connection: Upgrade\r\n\r\nupgrade: websocket", False),
    ],
)
def test_a_websocket_is_offered_by_both_headers_and_alone(lines: bytes, offered: bool) -> None:
    assert offers_websocket(b"GET / HTTP/1.1\r\nhost: x\r\n" + lines + b"\r\n\r\n") is offered
