"""An API server of Kubernetes for tests, scripted from the API's documentation ("Kubernetes API Concepts", and the reference of
EndpointSlice v1); it is no Kubernetes, and knows EndpointSlices alone.

It lists in pages (`limit`, `continue`), watches from a resource version in chunks of a line per event, sends bookmarks to those who
allow them, says "410 Gone" as a status or as an event once older changes are compacted, ends a watch after `timeoutSeconds`, refuses
tokens (401) and roles (403), and can be cut off: connections end or stay silent.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATH = "/apis/discovery.k8s.io/v1/namespaces/engines/endpointslices"

Json = dict[str, Any]


def endpoint(address: str, *, uid: str = "", zone: str | None = None, **conditions: bool) -> Json:
    found: Json = {"addresses": [address], "conditions": conditions or {"ready": True, "serving": True, "terminating": False}}
    if uid:
        found["targetRef"] = {"kind": "Pod", "name": uid, "uid": uid}
    if zone is not None:
        found["zone"] = zone
    return found


def leaving(address: str, **more: Any) -> Json:
    return endpoint(address, ready=False, serving=True, terminating=True, **more)


def labelled(name: str, *endpoints: Json, ports: list[Json] | None = None, family: str = "IPv4", **labels: str) -> Json:
    shown = {"kubernetes.io/service-name": "chat", **{key.replace("__", "/"): value for key, value in labels.items()}}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "engines", "labels": shown},
        "addressType": family,
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports,
        "endpoints": list(endpoints),
    }


class KubernetesApi:
    """The server's state; `port` once it runs."""

    def __init__(self) -> None:
        self.port = 0
        self.slices: dict[str, Json] = {}
        self.version = 100
        self.compacted = 0
        """Changes up to this version are forgotten."""
        self.events: list[tuple[int, Json]] = []
        self.token: str | None = None
        self.forbidden = False
        self.silent = False
        """Take requests and answer none."""
        self.asked: list[dict[str, str]] = []
        """The parameters of every request."""
        self._changed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def lists(self) -> int:
        return sum("watch" not in asked for asked in self.asked)

    def put(self, piece: Json) -> None:
        name = piece["metadata"]["name"]
        self.version += 1
        piece = {**piece, "metadata": {**piece["metadata"], "resourceVersion": str(self.version)}}
        self._tell("MODIFIED" if name in self.slices else "ADDED", piece)
        self.slices[name] = piece

    def delete(self, name: str) -> None:
        piece = self.slices.pop(name)
        self.version += 1
        self._tell("DELETED", {**piece, "metadata": {**piece["metadata"], "resourceVersion": str(self.version)}})

    def bookmark(self) -> None:
        """A change of other objects, of which watchers learn the version alone."""
        self.version += 1
        piece = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "", "endpoints": None}
        self._tell("BOOKMARK", {**piece, "metadata": {"resourceVersion": str(self.version)}})

    def compact(self) -> None:
        self.compacted = self.version

    def say(self, line: str) -> None:
        """Write this line to every watch."""
        for writer in self._open:
            writer.write(_chunk(line))

    def say_gone(self) -> None:
        self.say(json.dumps({"type": "ERROR", "object": _status(410, "too old resource version")}))

    def cut(self) -> None:
        """End every connection."""
        for writer in list(self._open):
            writer.transport.abort()

    def _tell(self, kind: str, piece: Json) -> None:
        self.events.append((self.version, {"type": kind, "object": piece}))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._answer(head.decode(), writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._open.discard(writer)
            writer.close()

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = urlsplit(head.split(" ", 2)[1])
        asked = {key: values[0] for key, values in parse_qs(target.query).items()}
        self.asked.append(asked)
        self._open.add(writer)
        if self.silent:
            await asyncio.Event().wait()
        elif self.token is not None and f"authorization: bearer {self.token}" not in head.lower():
            _reply(writer, 401, _status(401, "Unauthorized"))
        elif self.forbidden:
            _reply(writer, 403, _status(403, "endpointslices.discovery.k8s.io is forbidden"))
        elif target.path != PATH:
            _reply(writer, 404, _status(404, "not found"))
        elif "watch" not in asked:
            _reply(writer, 200, self._page(asked))
        elif int(asked["resourceVersion"]) < self.compacted:
            _reply(writer, 410, _status(410, "too old resource version"))
        else:
            await self._watch(asked, writer)

    def _page(self, asked: dict[str, str]) -> Json:
        names = [name for name in sorted(self.slices) if name > asked.get("continue", "")]
        page = names[: int(asked.get("limit", "500"))]
        metadata = {"resourceVersion": str(self.version)}
        if len(names) > len(page):
            metadata["continue"] = page[-1]
        items = [self.slices[name] for name in page]
        return {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata, "items": items}

    async def _watch(self, asked: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        seen = int(asked["resourceVersion"])
        try:
            async with asyncio.timeout(int(asked["timeoutSeconds"])):
                while True:
                    changed = self._changed
                    for version, event in self.events:
                        if version > seen and (event["type"] != "BOOKMARK" or asked.get("allowWatchBookmarks") == "true"):
                            writer.write(_chunk(json.dumps(event)))
                            seen = version
                    await changed.wait()
        except TimeoutError:
            writer.write(b"0\r\n\r\n")


def _chunk(line: str) -> bytes:
    data = line.encode() + b"\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}


def _reply(writer: asyncio.StreamWriter, status: int, document: Json) -> None:
    body = json.dumps(document).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def kubernetes_api(*slices: Json) -> AsyncIterator[KubernetesApi]:
    """A server on a free port of loopback."""
    api = KubernetesApi()
    for piece in slices:
        api.put(piece)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    api.port = server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        server.close()
        await api.end()
