"""An engine whose machine vanishes says nothing: no FIN, no RST. TCP itself has to notice, whatever the gateway's own deadlines are."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.clients.aiohttp_client import AiohttpUpstream
from backends.clients.endpoint import endpoint
from backends.clients.http1 import RelayUpstream
from backends.ports import Call
from tests.contract.test_upstream import Sink
from tests.scale import LONG
from tests.scripted_server import Peer, scripted

pytestmark = pytest.mark.slow

Note = Callable[[str, object], None]

FREED_S = 35.0
SILENCE_S = 100.0
ROOT = Path(__file__).parents[2]


def sockets_to(port: int) -> list[socket.socket]:
    """This process's connected sockets towards a port, whoever opened them."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            one = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket, or gone meanwhile
        try:
            peer = one.getpeername() if one.family == socket.AF_INET else None
        except OSError:
            peer = None
        if peer is not None and peer[1] == port:
            found.append(one)
        else:
            one.close()
    return found


@pytest.mark.fault("half-open connection")
@pytest.mark.parametrize("adapter", [RelayUpstream, AiohttpUpstream], ids=["relay", "aiohttp"])
async def test_every_connection_to_an_engine_is_watched_by_tcp(adapter: type) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as engine:
        upstream = adapter(endpoint(engine.url), time.monotonic, asyncio.get_running_loop())
        flight = upstream.dispatch(Call("POST", "/v1/chat/completions", b"{}", "req-1", None, None), Sink())
        async with asyncio.timeout(5):
            while not engine.peers or not engine.peers[0].received:
                await asyncio.sleep(0.01)
        (one,) = sockets_to(engine.port)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        tcp = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT]
        assert [one.getsockopt(socket.IPPROTO_TCP, option) for option in tcp] == [15, 5, 3, 30_000]
        one.close()
        flight.abort()
        await upstream.close()


def _can_unshare() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.fault("half-open connection")
@pytest.mark.skipif(not LONG, reason="takes 40 s: what is tested is a time-out of half a minute")
@pytest.mark.parametrize("client", ["relay", "aiohttp"])
async def test_requests_on_a_machine_that_vanished_are_freed(client: str, record_property: Note) -> None:
    if not _can_unshare():
        pytest.skip("no network namespaces here: needs root on Linux, and iproute2")
    command = ["unshare", "-n", sys.executable, "-m", "tests.fault.two_machines", client, str(SILENCE_S)]
    done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SILENCE_S + 60)
    assert done.returncode == 0, done.stderr
    freed = json.loads(done.stdout.splitlines()[-1])
    assert len(freed) == 3
    assert max(freed.values()) <= FREED_S
    record_property("figure", f"{client}: " + ", ".join(f"{name} freed after {after_s:.1f} s" for name, after_s in freed.items()))
