"""Disaggregated prefill and decode on two simulated engines: one computes the prompt and keeps its KV, the other fetches it and generates.

Requests and replies have the formats of vLLM's NIXL connector and of SGLang's disaggregation modes. The protocol between the engines is not
theirs: the decode engine calls the prefill engine over its HTTP port (`/sim/kv`, `/sim/rooms`), so that both may be different processes. As
with real engines, KV that is never fetched is freed when its lease ends.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from backends.simengine.answering import Answer
from backends.simengine.connection import SimConnection
from backends.simengine.reading import ErrorAnswer
from backends.simengine.shapes import encode

if TYPE_CHECKING:
    from backends.simengine.server import SimEngine

FAKE_HOST: Final = "2.2.2.2"
"""SGLang's address for requests that one engine of a pair serves alone."""

MAX_KEPT: Final = 10_000
"""Most requests whose KV is kept or awaited; a real engine's memory is full long before."""

_REFUSED: Final = 409


class RequestRole(msgspec.Struct, frozen=True):
    """The role of this engine in one disaggregated request: prefill or decode."""

    prefills: bool
    """True: the engine computes the prompt for a decode engine; false: it generates from the KV of a prefill engine."""
    key: str
    """The other engine's id of the request, or the room in which both meet; empty for a prefill that needs no room."""
    host: str = ""
    port: int = 0


class _Room:
    """The rendezvous of the prefill and the decode of one SGLang request."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.begin: Callable[[], object] | None = None
        self.joined: SimConnection | None = None
        self.timer: asyncio.TimerHandle | None = None


class KvTransfers:
    """The KV transfers of one engine: disaggregated requests whose KV it keeps for a decode engine, or fetches from a prefill engine."""

    def __init__(self, engine: "SimEngine") -> None:
        self._engine = engine
        self._kept: dict[str, tuple[Answer, asyncio.TimerHandle]] = {}
        self._rooms: dict[str, _Room] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self._counts = dict.fromkeys(("kv_fetched", "kv_expired", "kv_recomputed"), 0)

    def clear(self) -> None:
        """Drop all kept KV and all rooms: the engine stops or restarts."""
        for _, timer in self._kept.values():
            timer.cancel()
        for room in self._rooms.values():
            if room.timer is not None:
                room.timer.cancel()
        for task in self._fetching.values():
            task.cancel()
        self._kept.clear()
        self._rooms.clear()
        self._counts = dict.fromkeys(self._counts, 0)

    def values(self) -> dict[str, float]:
        """The values for `/metrics` and `/sim/state`."""
        answers = [answer for answer, _ in self._kept.values()]
        answers += [room.answer for room in self._rooms.values() if room.answer is not None and room.answer.kept_tokens]
        waiting = sum(1 for room in self._rooms.values() if room.joined is None)
        tokens = sum(answer.kept_tokens for answer in answers)
        return {**self._counts, "kv_kept_requests": len(answers), "kv_kept_tokens": tokens, "rooms_waiting": waiting}

    def role_of(self, request: dict[str, Any]) -> RequestRole | None:
        """The role of this engine in the request; None for a request that is served whole. Raises ErrorAnswer."""
        settings = self._engine.settings
        try:
            if settings.dialect == "vllm":
                return _nixl(request.get("kv_transfer_params"))
            if settings.role == "both":
                return None
            host = request.get("bootstrap_host")
            room = request.get("bootstrap_room")
            if room is None:
                raise ErrorAnswer(400, "Invalid request: Disaggregated request received without bootstrap room id.")
            if host == FAKE_HOST:
                return None
            port = int(request.get("bootstrap_port") or 0)
            return RequestRole(settings.role == "prefill", str(int(room)), str(host), port)
        except (TypeError, ValueError, KeyError) as error:
            raise ErrorAnswer(400, f"{type(error).__name__}: {error}") from None

    def start(self, role: RequestRole | None, answer: Answer, begin: Callable[[], object]) -> None:
        """Call `begin`, which queues the request, as soon as the other engine's part allows it."""
        if role is None:
            begin()
            return
        if not role.prefills:
            task = asyncio.get_running_loop().create_task(self._fetch(role, answer, begin))
            self._fetching[id(answer)] = task
            task.add_done_callback(lambda _: self._fetching.pop(id(answer), None))
            return
        if len(self._kept) + len(self._rooms) >= MAX_KEPT:
            raise ErrorAnswer(503, "too many requests wait for another engine", "Service Unavailable")
        if not role.key:
            answer.keep(self._keep)
            begin()
            return
        room = self._room(role.key)
        room.answer = answer
        room.begin = begin
        answer.keep(lambda prefill: self._hand_over(role.key, prefill))
        if room.joined is not None:
            begin()

    def abandoned(self, role: RequestRole | None, answer: Answer) -> None:
        """Take note that the request's caller has left."""
        if role is not None and not role.prefills and id(answer) in self._fetching:
            self._fetching[id(answer)].cancel()
        elif role is not None and role.key:
            self._close_room(role.key, "its prefill was aborted")

    # --- vLLM: kept under the request's id until it is fetched or its lease ends ---------------------------------------

    def _keep(self, answer: Answer) -> None:
        engine = self._engine
        tokens = answer.kept_tokens
        key = f"{answer.id}-{engine.count}"  # ids may repeat, as with a caller that retries
        if tokens:
            timer = _later(engine.settings.lease_s, lambda: self._expire(key))
            self._kept[key] = (answer, timer)
            blocks = tokens // engine.settings.block_size
            answer.params = {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": list(range(blocks)),
                "remote_engine_id": f"simengine-{engine.port}",
                "remote_request_id": key,
                "remote_host": engine.settings.host,
                "remote_port": engine.port,
                "tp_size": 1,
            }
        answer.reply()

    def _expire(self, key: str) -> None:
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._counts["kv_expired"] += 1
            entry[0].free_kept()

    # --- SGLang: prefill and decode meet in a room ---------------------------------------------------------------------

    def _room(self, key: str) -> _Room:
        room = self._rooms.get(key)
        if room is None:
            room = self._rooms[key] = _Room()
            room.timer = _later(self._engine.settings.lease_s, lambda: self._close_room(key, "nobody came", expired=True))
        return room

    def _hand_over(self, key: str, answer: Answer) -> None:
        room = self._rooms.get(key)
        if room is not None:
            _later(self._transfer_s(answer.kept_tokens), lambda: self._handed_over(key, room))

    def _handed_over(self, key: str, room: _Room) -> None:
        if self._rooms.get(key) is not room or room.answer is None or room.joined is None:
            return
        self._drop(key, room)
        self._counts["kv_fetched"] += 1
        room.joined.reply(200, encode({"tokens": room.answer.kept_tokens}))
        room.answer.free_kept()
        room.answer.reply()

    def _close_room(self, key: str, why: str, *, expired: bool = False) -> None:
        room = self._rooms.get(key)
        if room is None:
            return
        self._drop(key, room)
        self._counts["kv_expired"] += expired
        if room.joined is not None and not room.joined.transport.is_closing():
            room.joined.reply(_REFUSED, encode({"detail": why}))
        if room.answer is not None:
            self._engine.fail(room.answer, f"KVTransferError: {why}")
            room.answer.free_kept()

    def _drop(self, key: str, room: _Room) -> None:
        del self._rooms[key]
        if room.timer is not None:
            room.timer.cancel()

    # --- between engines -----------------------------------------------------------------------------------------------

    def order(self, connection: SimConnection) -> bool:
        """Answer a call of another engine; False when the request is none."""
        if connection.path not in ("/sim/kv", "/sim/rooms") or connection.method != "POST":
            return False
        key = str(msgspec.json.decode(connection.body)["key"])
        if connection.path == "/sim/kv":
            entry = self._kept.get(key)
            if entry is None:
                connection.reply(_REFUSED, encode({"detail": "no KV is kept for this request"}))
            else:
                _later(self._transfer_s(entry[0].kept_tokens), lambda: self._read(key, connection))
            return True
        room = self._room(key)
        room.joined = connection
        connection.on_gone = lambda: self._close_room(key, "the decoding engine has left")
        if room.begin is not None:
            room.begin()
        return True

    def _read(self, key: str, connection: SimConnection) -> None:
        entry = None if connection.transport.is_closing() else self._kept.pop(key, None)
        if entry is None:
            connection.reply(_REFUSED, encode({"detail": "no KV is kept for this request"}))
            return
        answer, timer = entry
        timer.cancel()
        self._counts["kv_fetched"] += 1
        connection.reply(200, encode({"tokens": answer.kept_tokens}))
        answer.free_kept()

    def _transfer_s(self, tokens: int) -> float:
        return tokens / self._engine.settings.transfer_tokens_s / self._engine.settings.speed

    async def _fetch(self, role: RequestRole, answer: Answer, begin: Callable[[], object]) -> None:
        engine = self._engine
        room = engine.settings.dialect == "sglang"
        try:
            status = await _ask(role.host, role.port, "/sim/rooms" if room else "/sim/kv", role.key, engine.settings.lease_s)
        except (OSError, TimeoutError, ValueError):
            status = 0
        if answer.gone:
            return
        if status == 200:
            answer.handed()
        elif room or engine.settings.load_failure == "fail":
            engine.fail(answer, "KVTransferError: the KV cache of this request could not be fetched")
            return
        else:
            self._counts["kv_recomputed"] += 1
        begin()


def _nixl(params: Any) -> RequestRole | None:
    if not params:
        return None
    if params.get("do_remote_decode"):
        return RequestRole(True, "")
    if params.get("do_remote_prefill"):
        return RequestRole(False, str(params["remote_request_id"]), str(params["remote_host"]), int(params["remote_port"]))
    return None


async def _ask(host: str, port: int, path: str, key: str, within_s: float) -> int:
    """POST to another engine; returns the status of its reply. Raises OSError, TimeoutError, ValueError."""
    host = urlsplit(f"//{host}").hostname or host
    async with asyncio.timeout(within_s + 1):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            body = encode({"key": key})
            writer.write(b"POST %b HTTP/1.1\r\nhost: engine\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
            return int((await reader.readline()).split()[1])
        except IndexError:
            raise ValueError("no reply") from None
        finally:
            writer.close()


def _later(delay_s: float, then: Callable[[], object]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, then)
