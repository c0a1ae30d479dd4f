"""The gRPC server of the endpoint picker: `ExternalProcessor/Process`, and `Health/Check` as the endpoint picker protocol asks for it.

Every worker listens on the port (SO_REUSEPORT), as on the data port: a proxy opens a connection for each of its threads, and the kernel
deals them out. What one worker sends, the others hear of as ever (`gateway.placement.shared_load`), so none of them has to pick for all.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from gateway.config.picker import MOST_CONNECTIONS, PickerSettings
from gateway.picker import messages
from gateway.picker.certificates import PickerCertificates
from gateway.picker.stream import HeldBytes, OutOfTurnError, PickingStream, Picks

log = structlog.get_logger("tidegate.picker")

ROOM_BYTES: Final = 1024**2
"""Bytes of a message beside the body in it: a head, and the proxy's metadata."""
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # a minute by default, which outweighs the line above
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # else gRPC asks once a minute where no data flows
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
"""A proxy that vanished without a word is found within 40 s, and its requests end; one that asks as often itself is not cut for that."""
LAST_S: Final = 1.0
"""How long the ends of streams may take that are let go."""
NEVER_S: Final = 10.0**7
"""The time gRPC is given to stop. Were it to run out just as another `stop` destroys the server, gRPC would cancel the calls of the
destroyed server and end the process by a segmentation fault (grpcio 1.85); so the gateway alone says when calls are cut."""
CANNOT_LISTEN: Final = "cannot listen on"
MOST_WARNINGS: Final = 16
HEALTH_NAMES: Final = ("", "liveness", "readiness", messages.SERVICE)
"""The services that a proxy may ask the health of; all but `liveness` say whether requests are taken."""


class PickerServer:
    """Serves proxies until it is closed.

    Args:
        log_defect: called with an error that is a defect of ours, and the id of its request.
        new_id: makes the id of a request whose proxy gives it none.
        base_dir: where the files of TLS are.

    Raises:
        CertificateError: a file of TLS cannot be used.
    """

    def __init__(
        self,
        settings: PickerSettings,
        picks: Picks,
        log_defect: Callable[[BaseException, str], None],
        new_id: Callable[[], str],
        base_dir: Path,
    ) -> None:
        self.settings: Final = settings
        self._picks = picks
        self._log_defect = log_defect
        self._new_id = new_id
        files = {name: base_dir / file for name, file in settings.tls_files.items()}
        self._certificates = PickerCertificates(files) if files else None
        self._held = HeldBytes(settings.max_body_bytes, settings.held_bytes)
        self._draining = False
        self._under_way: dict[asyncio.Task[Any], PickingStream] = {}
        self._reading: set[asyncio.Task[Any]] = set()
        """The streams under way that wait for a message."""
        self._let_go = False
        self._warned: set[str] = set()
        self._server: Any = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.settings.bind

    async def start(self) -> None:
        """Listen. Raises OSError: the address is taken."""
        settings = self.settings
        server = self._server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 1),
                ("grpc.max_receive_message_length", settings.max_body_bytes + ROOM_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
                *KEEPALIVE,
            ),
            maximum_concurrent_rpcs=settings.max_requests,
        )
        answer, text = messages.ProcessingResponse.SerializeToString, messages.ProcessingRequest.FromString
        process = grpc.stream_stream_rpc_method_handler(self._process, text, answer)
        check = grpc.unary_unary_rpc_method_handler(
            self._check, messages.HealthCheckRequest.FromString, messages.HealthCheckResponse.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(messages.SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler(messages.HEALTH_SERVICE, {"Check": check}),
            )
        )
        try:
            if self._certificates is None:
                server.add_insecure_port(settings.bind)
            else:
                server.add_secure_port(settings.bind, self._certificates.credentials())
        except RuntimeError as error:
            reason = "the port is taken, or the address is not one of this host"
            raise OSError(f"the endpoint picker {CANNOT_LISTEN} {settings.bind} (picker.bind): {reason} ({error})") from None
        await server.start()
        log.info("endpoint picker listens", address=settings.bind, tenant=settings.tenant, tls=settings.tls is not None)

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """The coroutine that has to run while it serves; none without TLS."""
        return [self._certificates.run()] if self._certificates is not None else []

    @property
    def certificate_ends(self) -> float | None:
        """When the certificate that proxies are shown expires, seconds since the epoch; None without one."""
        return self._certificates.ends if self._certificates is not None else None

    async def close(self, accept_s: float, grace_s: float) -> None:
        """Say for `accept_s` that no more requests are to come, then take none, and end after `grace_s` what is still under way.

        A stream whose request has its engine ends well: its proxy lets the answer go on unseen. Were it cut, the answer would be reset.
        """
        self._draining = True
        if self._server is None:
            return
        await asyncio.sleep(accept_s)
        stopping = asyncio.create_task(self._server.stop(NEVER_S))
        await asyncio.wait([stopping], timeout=grace_s)
        if not stopping.done():
            self._let_go = True
            picked = [task for task, stream in self._under_way.items() if stream.has_pick]
            for task in picked:
                if task in self._reading:  # one that answers a message ends after it
                    task.cancel()
            if picked:
                await asyncio.wait(picked, timeout=LAST_S)
                # what they ended with is on its way to proxies when their connections are closed in order, and lost when they are cut
                await asyncio.wait([stopping], timeout=LAST_S)
            await self._server.stop(None)
        await stopping

    async def _process(self, _messages: Any, context: Any) -> None:
        """One stream of messages. Reads and writes by hand: a generator of answers would outlive a stream that is cut while it waits."""
        stream = PickingStream(self._picks, self._held)
        task = asyncio.current_task()
        assert task is not None
        self._under_way[task] = stream
        try:
            while not (stream.refused or (self._let_go and stream.has_pick)) and await self._turn(stream, context, task):
                pass
        finally:
            del self._under_way[task]
            stream.over()

    async def _turn(self, stream: PickingStream, context: Any, task: "asyncio.Task[Any]") -> bool:
        """Read one message and answer it; false where none comes any more. A function of its own, so that nothing of a message is kept
        while the next one is awaited."""
        self._reading.add(task)
        try:
            message = await context.read()
        except asyncio.CancelledError:
            if self._let_go and stream.has_pick:
                return False
            raise
        finally:
            self._reading.discard(task)
        if message is grpc.aio.EOF:
            return False
        try:
            answers = await stream.take(message)
        except OutOfTurnError as error:
            self._warn(str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return False
        except Exception as error:  # noqa: BLE001 - a defect must not take the connection, and with it other requests
            stream.request_id = stream.request_id or self._new_id()
            self._log_defect(error, stream.request_id)
            answers = stream.failed(message)
        for answer in answers:
            await context.write(answer)
        return True

    def _warn(self, reason: str) -> None:
        """Log what is wrong with a proxy, each reason once: it says so with every request."""
        if reason not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(reason)
            log.warning("a proxy cannot be served by the endpoint picker", reason=reason)

    async def _check(self, request: Any, _context: Any) -> Any:
        """The health of a service of `HEALTH_NAMES`."""
        if request.service not in HEALTH_NAMES:
            return messages.HealthCheckResponse(status=messages.SERVICE_UNKNOWN)
        serves = request.service == "liveness" or not self._draining
        return messages.HealthCheckResponse(status=messages.SERVING if serves else messages.NOT_SERVING)
