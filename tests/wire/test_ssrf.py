"""What the admin port and DNS can make the gateway connect to: a table of hostile URLs, none of which gets a connection (R40)."""

import asyncio
import ipaddress
import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from backends.clients.endpoint import EngineEndpoint, dial, endpoint
from backends.clients.http1 import RelayUpstream
from backends.fetch import FetchError, fetch
from backends.reach import Reach, networks_of
from domain.membership import Member
from gateway.config.addresses import checked_engine_url
from gateway.fleet.registry import FleetRefusal, Registration, Registry
from tenancy.stores.memory import MemoryMemberStore

ALLOWED = ("10.0.0.0/8", "fc00::/7")
OWN_PORT = 8080

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1"],
    "127.0.0.1.nip.example": ["127.0.0.1"],
    "metadata.example": ["169.254.169.254"],
    "mixed.example": ["10.0.0.5", "169.254.169.254"],
    "mixed6.example": ["10.0.0.5", "::ffff:169.254.169.254"],
    "public.example": ["93.184.216.34"],
    "zero.example": ["0.0.0.0"],
    "multicast.example": ["224.0.0.1"],
    "zone.example": ["fe80::1%eth0"],
    "mapped.example": ["::ffff:10.0.0.5"],
    "nat64.example": ["64:ff9b::a9fe:a9fe"],
    "local64.example": ["64:ff9b:1::a00:5"],
    "sixtofour.example": ["2002:a9fe:a9fe::1"],
    "teredo.example": ["2001:0:a9fe:a9fe::1"],
    "compatible.example": ["::10.0.0.5"],
    "awsv6.example": ["fd00:ec2::254"],
    "alibaba.example": ["100.100.100.200"],
    "gateway.example": ["10.0.0.1"],
    "engine.example": ["10.0.0.5"],
}

ADDRESSES = [
    *(
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
    ),
    *("169.254.169.254", "169.254.170.2", "2852039166", "0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518"),
    *("0.0.0.0", "0", "0.0.0.1", "255.255.255.255", "240.0.0.1", "224.0.0.251", "239.255.255.250", "100.100.100.200", "192.0.0.192"),
    *("8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "192.167.1.1", "11.0.0.1", "9.255.255.255", "100.64.0.1", "198.18.0.1"),
    *("256.0.0.1", "10.0.0.256", "10.0.0", "10.0.5", "10.5", "010.0.0.5", "0xa.0.0.5", "167772165", "10.0.0.5.", "10.0.0.0x5"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[::ffff:10.0.0.5]"),
    *(
        "[::127.0.0.1]",
        "[::169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b::a00:5]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[2002:7f00:1::]",
    ),
    *("[2002:a9fe:a9fe::1]", "[2001:0:a9fe:a9fe::1]", "[fe80::1]", "[fe80::1%25eth0]", "[fe80::1%eth0]", "[fd00:ec2::254]", "[ff02::1]"),
    *("[2001:4860:4860::8888]", "[fec0::1]", "[v1.fe]", "[::1", "::1", "[]", "[10.0.0.5]", "[0:0:0:0:0:ffff:a9fe:a9fe]"),
    *(
        "metadata.google.internal",
        "metadata.google.internal.",
        "METADATA.GOOGLE.INTERNAL",
        "metadata.goog",
        "instance-data",
        "\uff4cocalhost",
    ),
    *(
        "\u2460\u2465\u2468.254.169.254",
        "127\u30020\u30020\u30021",
        "engine.example\u200b",
        "local%68ost",
        "127.0.0.1%00.example",
        "engine_.example-",
        "-x",
    ),
    *("a..b", ".", "x" * 254, *NAMES),
]
URLS = [
    *(f"http://{address}:8000" for address in ADDRESSES if address != "engine.example" and address != "gateway.example"),
    *("http://user:pass@10.0.0.5:8000", "http://user@10.0.0.5:8000", "http://10.0.0.5:8000@127.0.0.1", "http://@10.0.0.5:8000"),
    *("http://127.0.0.1#@10.0.0.5", "http://127.0.0.1?@10.0.0.5", "http://10.0.0.5\\@127.0.0.1", "http://127.0.0.1\\.10.0.0.5"),
    *("http:\\\\127.0.0.1", "http:/127.0.0.1", "http:127.0.0.1", "//127.0.0.1", "127.0.0.1:8000", "http:///127.0.0.1", "http://", ""),
    *("file:///etc/passwd", "gopher://10.0.0.5:8000/_x", "ftp://10.0.0.5", "unix:///run/x.sock", "data:text/plain,x", "javascript:0"),
    *(
        "HTTP+unix://10.0.0.5",
        "https+insecure://10.0.0.5",
        "ws://10.0.0.5:8000",
        "dict://10.0.0.5:11211/",
        "ldap://10.0.0.5",
        "jar:http://x!/",
    ),
    *(
        "http://10.0.0.5:0",
        "http://10.0.0.5:",
        "http://10.0.0.5:99999",
        "http://10.0.0.5:-1",
        "http://10.0.0.5:80a",
        "http://10.0.0.5:\uff18000",
    ),
    *(
        "http://10.0.0.5:8000/../x",
        "http://10.0.0.5:8000/%2e%2e/x",
        "http://10.0.0.5:8000/a//b",
        "http://10.0.0.5:8000/;x",
        "http://10.0.0.5 /",
    ),
    *(
        "http://10.0.0.5\t:8000",
        "http://10.0.0.5\n:8000",
        "\nhttp://10.0.0.5:8000",
        "http://10.0.0.5:8000/\r\nx: y",
        "http://10.0.0.5\x00:8000",
    ),
    *("http://10.0.0.5:8000/?url=http://127.0.0.1", "http://10.0.0.5:8000/#x", "http://gateway.example:8080", "http://10.0.0.1:8080"),
]


class Loop:
    """A loop that resolves as it is told and writes down who would be connected to, instead of connecting."""

    def __init__(self, *answers: dict[str, list[str]]) -> None:
        self._answers = list(answers)
        self.dialled: list[str] = []

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
        answers = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        found = answers.get(host.lower()) or ([host] if _is_address(host) else _as_libc(host))
        return [(0, 0, 0, "", (address, port)) for address in found]

    async def create_connection(self, _protocol: object, host: str, _port: int, **_: object) -> None:
        self.dialled.append(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _as_libc(host: str) -> list[str]:
    """Numbers as libc reads them; nothing else is asked of any name server."""
    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]
    except (OSError, UnicodeError):
        raise socket.gaierror(socket.EAI_NONAME, "no such name") from None


def reach() -> Reach:
    return Reach(networks_of(ALLOWED), frozenset((OWN_PORT,)), lambda address: address == "10.0.0.1")


async def registered(url: str, loop: Loop, store: MemoryMemberStore, run_dir: Path) -> Member:
    """As the admin API does it: the body is checked, then the place it names, and then it is written. What the first step refuses
    is a 400 there, as a Refusal of the second one is."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [info[4][0] for info in await loop.getaddrinfo(host, port)]

    made = Registry(pools=["chat"], static=[], reach=reach(), resolve=resolve, run_dir=run_dir, grace_s=1.0, wall=time.time)
    member = await made.checked(Registration.model_validate_json(json.dumps({"pool": "chat", "id": "x", "url": url})), {})
    await made.register(member, store)
    return member


@pytest.mark.req("R40")
def test_the_table_is_as_long_as_the_requirement_asks() -> None:
    assert len(set(URLS)) >= 120


@pytest.mark.req("R40")
@pytest.mark.parametrize("url", URLS, ids=ascii)
async def test_none_is_registered_and_none_is_connected_to(url: str, tmp_path: Path) -> None:
    loop, store = Loop(NAMES), MemoryMemberStore()
    with pytest.raises((FleetRefusal, ValidationError)) as refused:
        await registered(url, loop, store, tmp_path)
    assert isinstance(refused.value, ValidationError) or refused.value.status == 400
    assert await store.load() == []
    # and if it stood in the database all the same, written by somebody else
    with pytest.raises((OSError, ValueError)):
        await dial(hostile(url), loop, asyncio.Protocol)  # type: ignore[arg-type]  # a loop that only writes down
    assert [address for address in loop.dialled if reach().refusal(address, 8000)] == []


def hostile(url: str) -> EngineEndpoint:
    """The endpoint of a URL that the check of URLs would not have let through; what it refuses beforehand is a ValueError."""
    return endpoint(checked_engine_url(url), reach=reach())


@pytest.mark.req("R40")
@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8000", "http://engine.example:8000/prefix", "https://[fd00::5]:8443", "http://10.0.0.1:8000"]
)
async def test_what_may_be_registered_is(url: str, tmp_path: Path) -> None:
    loop, store = Loop(NAMES), MemoryMemberStore()
    assert (await registered(url, loop, store, tmp_path)).url == url
    await dial(endpoint(url, reach=reach()), loop, asyncio.Protocol)  # type: ignore[arg-type]  # as above
    assert len(loop.dialled) == 1


@pytest.mark.req("R40")
async def test_a_name_that_answers_otherwise_the_second_time_gains_nothing(tmp_path: Path) -> None:
    good, bad = {"turncoat.example": ["10.0.0.5"]}, {"turncoat.example": ["127.0.0.1"]}
    loop, store = Loop(good, good, bad), MemoryMemberStore()
    await registered("http://turncoat.example:8000", loop, store, tmp_path)
    target = endpoint("http://turncoat.example:8000", reach=reach())
    await dial(target, loop, asyncio.Protocol)  # type: ignore[arg-type]  # as above
    with pytest.raises(OSError, match=r"address 127\.0\.0\.1 is outside"):
        await dial(target, loop, asyncio.Protocol)  # type: ignore[arg-type]  # as above
    assert loop.dialled == ["10.0.0.5"]  # the address that was judged, not the name


def _aiohttp(target: EngineEndpoint, loop: asyncio.AbstractEventLoop) -> Any:
    from backends.clients.aiohttp_client import AiohttpUpstream

    return AiohttpUpstream(target, time.monotonic, loop)


@pytest.mark.req("R40")
@pytest.mark.parametrize("client", [lambda target, loop: RelayUpstream(target, time.monotonic, loop), _aiohttp], ids=["relay", "aiohttp"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_both_clients_judge_before_they_connect(client: Callable[..., Any], host: str) -> None:
    connections = 0

    async def canary(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_server(canary, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    way = client(endpoint(f"http://{host}:{port}", reach=reach()), asyncio.get_running_loop())
    try:
        with pytest.raises(FetchError, match=r"connect: .*outside engines\.register_networks"):
            await fetch(way, "/health", timeout_s=5, max_bytes=1000)
    finally:
        await way.close()
        server.close()
    assert connections == 0
