"""Laws of the picker's gRPC server, asked by a real client: streams, health, TLS with clients' certificates, cuts and the drain."""

import asyncio
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
from gateway.picker.messages import BUFFERED, HealthCheckRequest, HealthCheckResponse, ProcessingRequest, ProcessingResponse
from gateway.picker.server import PickerServer
from tests.engines.processes import free_port
from tests.timing import until
from tests.unit.gateway.picker.test_stream import Picker, body, head, told


@asynccontextmanager
async def serving(picker: Picker, home: Path, defects: list[BaseException] | None = None, **settings: Any) -> AsyncIterator[PickerServer]:
    found = PickerSettings(bind=f"127.0.0.1:{free_port()}", tenant="acme", **settings)
    noted: list[BaseException] = [] if defects is None else defects
    server = PickerServer(found, picker, lambda error, _request: noted.append(error), home)
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
    defects: list[BaseException] = []
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
        assert [type(error) for error in defects] == [RuntimeError]


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


async def test_several_workers_listen_on_one_port(tmp_path: Path) -> None:
    async with serving(Picker(), tmp_path) as server:
        again = PickerServer(server.settings, Picker(), lambda _error, _request: None, tmp_path)
        await again.start()
        await again.close(0.0, 0.0)


async def test_an_address_that_is_not_ours_is_named(tmp_path: Path) -> None:
    settings = PickerSettings(bind="192.0.2.1:9002", tenant="acme", plain_text=True)
    with pytest.raises(OSError, match=r"the endpoint picker cannot listen on 192\.0\.2\.1:9002"):
        await PickerServer(settings, Picker(), lambda _error, _request: None, tmp_path).start()


async def test_no_more_requests_than_the_bound_are_under_way(tmp_path: Path) -> None:
    async with serving(Picker(), tmp_path, max_requests=1) as server, plain(server) as channel:
        first = process(channel)
        await first.write(head(BUFFERED))
        await first.read()
        second = process(channel)
        assert await status_of(second) is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.cancel()
