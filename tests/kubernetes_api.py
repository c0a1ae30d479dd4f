"""An API server of Kubernetes for tests, scripted from the API's documentation ("Kubernetes API Concepts", and the reference of
EndpointSlice v1, Pod v1 and InferencePool v1); it is no Kubernetes, and knows these three kinds alone.

It selects by labels (`=` alone) and by name, lists in pages (`limit`, `continue`), watches from a resource version in chunks of a line per
event, sends bookmarks to those who allow them, says "410 Gone" as a status or as an event once older changes are compacted, ends a watch
after `timeoutSeconds`, refuses tokens (401) and roles (403), and can be cut off: connections end or stay silent.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

PATHS = {
    "/apis/discovery.k8s.io/v1/namespaces/engines/endpointslices": "EndpointSlice",
    "/api/v1/namespaces/engines/pods": "Pod",
    "/apis/inference.networking.k8s.io/v1/namespaces/engines/inferencepools": "InferencePool",
}
VERSIONS = {"EndpointSlice": "discovery.k8s.io/v1", "Pod": "v1", "InferencePool": "inference.networking.k8s.io/v1"}

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


def pod(name: str, address: str | None, *, ready: bool = True, port: int | None = 8000, zone: str = "", **labels: str) -> Json:
    """A pod that runs; `address` None for one that is not placed yet."""
    shown = {key.replace("__", "/").replace("_", "-"): value for key, value in ({"app": "vllm"} | labels).items()}
    if zone:
        shown["topology.kubernetes.io/zone"] = zone
    main: Json = {"name": "main", "image": "engine"}
    if port is not None:
        main["ports"] = [{"containerPort": port, "protocol": "TCP"}]
    sidecar = {"name": "sidecar", "image": "proxy", "ports": [{"name": "proxy", "containerPort": 9000, "protocol": "TCP"}]}
    status: Json = {"phase": "Running" if address else "Pending"}
    if address:
        status |= {"podIP": address, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "engines", "labels": shown},
        "spec": {"containers": [sidecar, main]},
        "status": status,
    }


def terminating(found: Json) -> Json:
    """The same pod from the moment it is deleted until its containers have ended."""
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def inference_pool(name: str, *ports: int, **labels: str) -> Json:
    spec = {
        "selector": {"matchLabels": labels or {"app": "vllm"}},
        "targetPorts": [{"number": port} for port in ports or (8000,)],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    }
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "engines"},
        "spec": spec,
    }


def selected(piece: Json | None, asked: dict[str, str]) -> bool:
    """Whether an object is one of those that a request asks for."""
    if piece is None:
        return False
    wanted = dict(pair.split("=", 1) for pair in asked.get("labelSelector", "").split(",") if pair)
    named = asked.get("fieldSelector", "").removeprefix("metadata.name=")
    labels = piece["metadata"].get("labels") or {}
    return wanted.items() <= labels.items() and named in ("", piece["metadata"]["name"])


class KubernetesApi:
    """The server's state; `port` once it runs."""

    def __init__(self) -> None:
        self.port = 0
        self.tls: ssl.SSLContext | None = None
        self.objects: dict[tuple[str, str], Json] = {}
        """By kind and name."""
        self.version = 100
        self.compacted = 0
        """Changes up to this version are forgotten."""
        self.events: list[tuple[int, str, Json | None, Json | None]] = []
        """Version and kind of each change, and the object before and after it; a change without both is one of other objects."""
        self.token: str | None = None
        self.forbidden = False
        self.forbidden_kinds: set[str] = set()
        self.silent = False
        """Take requests and answer none."""
        self.asked: list[dict[str, str]] = []
        """The parameters of every request."""
        self._changed = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls is not None else ''}://127.0.0.1:{self.port}"

    @property
    def lists(self) -> int:
        return sum("watch" not in asked for asked in self.asked)

    def put(self, piece: Json) -> None:
        self._change(piece["kind"], piece["metadata"]["name"], piece)

    def delete(self, name: str, kind: str = "EndpointSlice") -> None:
        self._change(kind, name, None)

    def bookmark(self) -> None:
        """A change of other objects, of which watchers learn the version alone."""
        self._change("", "", None)

    def _change(self, kind: str, name: str, after: Json | None) -> None:
        self.version += 1
        before = self.objects.pop((kind, name), None)
        if after is not None:
            after = {**after, "metadata": {**after["metadata"], "resourceVersion": str(self.version)}}
            self.objects[kind, name] = after
        elif before is not None:
            before = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.version)}}
        self.events.append((self.version, kind, before, after))
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

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
        kind = PATHS.get(target.path, "")
        self.asked.append({**asked, "kind": kind})
        self._open.add(writer)
        if self.silent:
            await asyncio.Event().wait()
        elif self.token is not None and f"authorization: bearer {self.token}" not in head.lower():
            _reply(writer, 401, _status(401, "Unauthorized"))
        elif self.forbidden or kind in self.forbidden_kinds:
            _reply(writer, 403, _status(403, f"{target.path} is forbidden"))
        elif not kind:
            _reply(writer, 404, _status(404, "not found"))
        elif "watch" not in asked:
            _reply(writer, 200, self._page(kind, asked))
        elif int(asked["resourceVersion"]) < self.compacted:
            _reply(writer, 410, _status(410, "too old resource version"))
        else:
            await self._watch(kind, asked, writer)

    def _page(self, kind: str, asked: dict[str, str]) -> Json:
        found = {name: piece for (of, name), piece in self.objects.items() if of == kind and selected(piece, asked)}
        names = [name for name in sorted(found) if name > asked.get("continue", "")]
        page = names[: int(asked.get("limit", "500"))]
        metadata = {"resourceVersion": str(self.version)}
        if len(names) > len(page):
            metadata["continue"] = page[-1]
        items = [found[name] for name in page]
        return {"kind": f"{kind}List", "apiVersion": VERSIONS[kind], "metadata": metadata, "items": items}

    async def _watch(self, kind: str, asked: dict[str, str], writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        seen = int(asked["resourceVersion"])
        try:
            async with asyncio.timeout(int(asked["timeoutSeconds"])):
                while True:
                    changed = self._changed
                    for version, of, before, after in self.events:
                        if version > seen and (event := _event(kind, asked, version, of == kind, before, after)) is not None:
                            writer.write(_chunk(json.dumps(event)))
                            seen = version
                    await changed.wait()
        except TimeoutError:
            writer.write(b"0\r\n\r\n")


def _event(kind: str, asked: dict[str, str], version: int, ours: bool, before: Json | None, after: Json | None) -> Json | None:
    """What a watch is told of one change; an object that the selector no longer selects is deleted for it."""
    was, now = ours and selected(before, asked), ours and selected(after, asked)
    if now:
        return {"type": "MODIFIED" if was else "ADDED", "object": after}
    if was:
        metadata = {"resourceVersion": str(version)}
        gone = after or before or {}
        return {"type": "DELETED", "object": {**gone, "metadata": {**gone["metadata"], **metadata}}}
    if before is None and after is None and asked.get("allowWatchBookmarks") == "true":
        empty: Json = {"addressType": "", "endpoints": None} if kind == "EndpointSlice" else {"spec": None}
        piece = {"kind": kind, "apiVersion": VERSIONS[kind], "metadata": {"resourceVersion": str(version)}, **empty}
        return {"type": "BOOKMARK", "object": piece}
    return None


def _chunk(line: str) -> bytes:
    data = line.encode() + b"\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def _status(code: int, message: str) -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code}


def _reply(writer: asyncio.StreamWriter, status: int, document: Json) -> None:
    body = json.dumps(document).encode()
    writer.write(f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)


@asynccontextmanager
async def kubernetes_api(*pieces: Json, tls: ssl.SSLContext | None = None) -> AsyncIterator[KubernetesApi]:
    """A server on a free port of loopback."""
    api = KubernetesApi()
    api.tls = tls
    for piece in pieces:
        api.put(piece)
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0, ssl=tls)
    api.port = server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        server.close()
        await api.end()
