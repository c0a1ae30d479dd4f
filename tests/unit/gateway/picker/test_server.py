"""Laws of the picker's gRPC server, asked by a real client: streams, health, TLS with clients' certificates, cuts and the drain."""

import asyncio
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from gateway.config.picker import PickerSettings
from gateway.picker import messages
from gateway.picker import server as server_module
from gateway.picker.messages import BUFFERED, HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse
from gateway.picker.server import PickerServer
from tests.engines.processes import free_port
from tests.fault.proxy import black_hole, proxied
from tests.timing import hang_s, until
from tests.unit.gateway.picker.test_stream import HEAD, Picker, body, head, told


@asynccontextmanager
async def serving(
    picker: Picker, home: Path, defects: list[tuple[BaseException, str]] | None = None, **settings: Any
) -> AsyncIterator[PickerServer]:
    found = PickerSettings(bind=f"127.0.0.1:{free_port()}", tenant="acme", **settings)
    noted: list[tuple[BaseException, str]] = [] if defects is None else defects
    server = PickerServer(found, picker, lambda error, request: noted.append((error, request)), lambda: "made-1", home)
    await server.start()
    try:
        yield server
    finally:
        await server.close(0.0, 0.0)


def process(channel: grpc.aio.Channel) -> Any:
    call = channel.stream_stream(
        f"/{messages.SERVICE}/Process",
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )
    return call()


async def check(channel: grpc.aio.Channel, service: str) -> int:
    call = channel.unary_unary(
        f"/{messages.HEALTH_SERVICE}/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return int((await call(HealthCheckRequest(service=service))).status)


async def status_of(call: Any) -> grpc.StatusCode:
    """The status with which the server ends the call."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call.read()
    return raised.value.code()


def plain(server: PickerServer) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(server.address)


async def test_a_stream_is_answered_message_by_message_and_its_end_gives_back(tmp_path: Path) -> None:
    picker = Picker()
    async with serving(picker, tmp_path) as server, plain(server) as channel:
        call = process(channel)
        await call.write(head(BUFFERED))
        assert (await call.read()).WhichOneof("response") == "request_headers"
        await call.write(body(b"{}"))
        assert told([await call.read()])
        assert picker.picks[0].overs == 0
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await until(lambda: picker.picks[0].overs == 1)
        assert picker.outcomes == ["picked"]


async def test_a_stream_that_is_cut_gives_back_too(tmp_path: Path) -> None:
    picker = Picker()
    async with serving(picker, tmp_path) as server, plain(server) as channel:
        calls = [process(channel) for _ in range(5)]
        for call in calls:
            await call.write(head())
            await call.write(body(b"{}"))
            await call.read()
        for call in calls:
            call.cancel()
        await until(lambda: [pick.overs for pick in picker.picks] == [1] * 5)


async def test_a_proxy_out_of_turn_is_told_by_status_and_a_defect_is_a_500(tmp_path: Path) -> None:
    defects: list[tuple[BaseException, str]] = []
    async with serving(Picker(RuntimeError("boom")), tmp_path, defects) as server, plain(server) as channel:
        call = process(channel)
        await call.write(head(messages.STREAMED))
        assert await status_of(call) is grpc.StatusCode.FAILED_PRECONDITION
        assert "set FULL_DUPLEX_STREAMED" in await call.details()
        call = process(channel)
        await call.write(head())
        await call.write(body(b"{}"))
        assert (await call.read()).immediate_response.status.code == 500
        assert await call.read() is grpc.aio.EOF
        call = process(channel)
        await call.write(head(headers={name: value for name, value in HEAD.items() if name != "x-request-id"}))
        await call.write(body(b"{}"))
        told_ids = [each.header.raw_value for each in (await call.read()).immediate_response.headers.set_headers]
        assert b"made-1" in told_ids
        assert [(type(error), request) for error, request in defects] == [(RuntimeError, "theirs-1"), (RuntimeError, "made-1")]


async def test_health_is_told_per_service_and_ends_with_the_drain(tmp_path: Path) -> None:
    async with serving(Picker(), tmp_path) as server, plain(server) as channel:
        for service in ("", "liveness", "readiness", messages.SERVICE):
            assert await check(channel, service) == messages.SERVING
        assert await check(channel, "other") == messages.SERVICE_UNKNOWN
        closing = asyncio.create_task(server.close(60.0, 0.0))
        await asyncio.sleep(0)
        assert await check(channel, "readiness") == messages.NOT_SERVING
        assert await check(channel, "liveness") == messages.SERVING
        closing.cancel()


async def test_only_proxies_with_a_certificate_are_served_where_a_ca_is_named(tmp_path: Path) -> None:
    own, theirs = trustme.CA(), trustme.CA()
    issued, client = own.issue_cert("127.0.0.1"), theirs.issue_cert("proxy.example")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "a.crt"))
    issued.private_key_pem.write_to_path(str(tmp_path / "a.key"))
    theirs.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    tls = {"certificate": "a.crt", "private_key": "a.key", "client_ca": "ca.crt"}
    async with serving(Picker(), tmp_path, tls=tls) as server:
        root = own.cert_pem.bytes()
        shown = grpc.ssl_channel_credentials(root, client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
        async with grpc.aio.secure_channel(server.address, shown) as channel:
            assert await check(channel, "") == messages.SERVING
        for unknown in (grpc.aio.secure_channel(server.address, grpc.ssl_channel_credentials(root)), plain(server)):
            async with unknown as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await check(channel, "")


def shown_by(server: PickerServer) -> bytes:
    """The certificate that a new connection is shown. No client certificate is needed to see it, since TLS 1.3 asks for that later."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, port = server.address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=hang_s()) as raw, context.wrap_socket(raw) as secured:
        return secured.getpeercert(binary_form=True) or b""


async def test_a_rotated_certificate_and_other_cas_hold_for_new_connections_and_cut_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.picker.certificates.POLL_S", 0.01)
    own, theirs, others = trustme.CA(), trustme.CA(), trustme.CA()

    def write(authority: trustme.CA) -> None:
        issued = own.issue_cert("127.0.0.1")
        for name, text in (("a.crt", issued.cert_chain_pems[0]), ("a.key", issued.private_key_pem), ("ca.crt", authority.cert_pem)):
            text.write_to_path(str(tmp_path / name))

    def proxy(authority: trustme.CA, server: PickerServer) -> grpc.aio.Channel:
        client = authority.issue_cert("proxy.example")
        shown = grpc.ssl_channel_credentials(own.cert_pem.bytes(), client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
        options = (("grpc.use_local_subchannel_pool", 1),)  # else channels with equal arguments share a connection
        return grpc.aio.secure_channel(server.address, shown, options)

    write(theirs)
    tls = {"certificate": "a.crt", "private_key": "a.key", "client_ca": "ca.crt"}
    async with serving(Picker(), tmp_path, tls=tls) as server, proxy(theirs, server) as channel:
        (loop,) = [asyncio.create_task(work) for work in server.loops()]
        call = process(channel)
        await call.write(head())
        before, ends = await asyncio.to_thread(shown_by, server), server.certificate_ends
        assert ends is not None
        write(others)
        async with asyncio.timeout(hang_s()):
            while await asyncio.to_thread(shown_by, server) == before:
                await asyncio.sleep(0.01)
        async with proxy(others, server) as fresh:
            assert await check(fresh, "") == messages.SERVING
        async with proxy(theirs, server) as stale:
            with pytest.raises(grpc.aio.AioRpcError):
                await check(stale, "")
        await call.write(body(b"{}"))
        assert (await call.read()) is not grpc.aio.EOF, "the stream of before goes on"
        assert await check(channel, "") == messages.SERVING
        loop.cancel()


async def test_several_workers_listen_on_one_port(tmp_path: Path) -> None:
    async with serving(Picker(), tmp_path) as server:
        again = PickerServer(server.settings, Picker(), lambda _error, _request: None, str, tmp_path)
        await again.start()
        await again.close(0.0, 0.0)


async def test_an_address_that_is_not_ours_is_named(tmp_path: Path) -> None:
    settings = PickerSettings(bind="192.0.2.1:9002", tenant="acme", plain_text=True)
    with pytest.raises(OSError, match=r"the endpoint picker cannot listen on 192\.0\.2\.1:9002"):
        await PickerServer(settings, Picker(), lambda _error, _request: None, str, tmp_path).start()


async def test_no_more_requests_than_the_bound_are_under_way(tmp_path: Path) -> None:
    async with serving(Picker(), tmp_path, max_requests=1) as server, plain(server) as channel:
        first = process(channel)
        await first.write(head(BUFFERED))
        await first.read()
        second = process(channel)
        assert await status_of(second) is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()


async def test_no_more_connections_than_the_bound_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 1)
    async with serving(Picker(), tmp_path) as server, plain(server) as channel:
        assert await check(channel, "") == messages.SERVING
        async with grpc.aio.insecure_channel(server.address, (("grpc.use_local_subchannel_pool", 1),)) as another:
            with pytest.raises(grpc.aio.AioRpcError):
                await check(another, "")
        assert await check(channel, "") == messages.SERVING


async def test_a_proxy_that_vanishes_without_a_word_gives_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    often = {"grpc.keepalive_time_ms": 100, "grpc.keepalive_timeout_ms": 100, "grpc.http2.ping_timeout_ms": 100}
    monkeypatch.setattr(server_module, "KEEPALIVE", tuple({**dict(server_module.KEEPALIVE), **often}.items()))
    picker = Picker()
    async with serving(picker, tmp_path) as server, proxied(f"http://{server.address}") as between:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{between.port}") as channel:
            call = process(channel)
            await call.write(head())
            await call.write(body(b"{}"))
            await call.read()
            assert picker.picks[0].overs == 0
            between.fault = black_hole()
            await until(lambda: picker.picks[0].overs == 1)


async def test_at_the_end_of_the_grace_a_stream_with_its_engine_ends_well_and_another_is_cut(tmp_path: Path) -> None:
    picker = Picker()
    async with serving(picker, tmp_path) as server, plain(server) as channel:
        picked, waiting = process(channel), process(channel)
        for call in (picked, waiting):
            await call.write(head(BUFFERED))
            await call.read()
        await picked.write(body(b"{}"))
        await picked.read()
        await server.close(0.0, 0.05)
        assert await picked.read() is grpc.aio.EOF
        assert await picked.code() is grpc.StatusCode.OK
        assert await status_of(waiting) is grpc.StatusCode.UNAVAILABLE
        assert picker.picks[0].overs == 1


async def test_streams_cut_one_server_after_another_end_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stops of one gRPC server, of which one runs out of time as the other destroys it, end the process by a segmentation fault."""
    monkeypatch.setattr(server_module, "LAST_S", 0.01)
    for _ in range(20):
        async with serving(Picker(), tmp_path) as server, plain(server) as channel:
            calls = [process(channel) for _ in range(4)]
            for call in calls:
                await call.write(head(BUFFERED))
                await call.read()
            await calls[0].write(body(b"{}"))
            await calls[0].read()
            await server.close(0.0, 0.0)
            assert [await status_of(call) for call in calls[1:]] == [grpc.StatusCode.UNAVAILABLE] * 3


async def test_nothing_of_a_message_is_kept_while_the_next_is_awaited(tmp_path: Path) -> None:
    kept: list[weakref.ref[Any]] = []
    alive: list[int] = []

    class Kept:
        def __init__(self, message: Any) -> None:
            self.message = message

        def __getattr__(self, name: str) -> Any:
            return getattr(self.message, name)

    class Context:
        def __init__(self) -> None:
            self.left = [head(BUFFERED), body(b"{}")]

        async def read(self) -> Any:
            alive.append(sum(ref() is not None for ref in kept))
            if not self.left:
                return grpc.aio.EOF
            message = Kept(self.left.pop(0))
            kept.append(weakref.ref(message))
            return message

        async def write(self, _answer: Any) -> None:
            pass

    settings = PickerSettings(tenant="acme")
    await PickerServer(settings, Picker(), lambda _error, _request: None, str, tmp_path)._process(None, Context())
    assert alive == [0, 0, 0]


def test_a_proxy_that_vanished_is_found_within_40_s_and_may_ask_as_often_itself() -> None:
    keepalive = dict(server_module.KEEPALIVE)
    assert keepalive["grpc.keepalive_time_ms"] + keepalive["grpc.http2.ping_timeout_ms"] == 40_000
    assert keepalive["grpc.http2.min_ping_interval_without_data_ms"] == 10_000
