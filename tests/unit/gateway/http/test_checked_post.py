"""Posting to a service of the settings, against a real server on the loopback: what is sent, what is refused, and that nothing else is
reached, whatever its name leads to (R40)."""

import asyncio
import ssl
from collections.abc import Awaitable

import pytest
import trustme

from gateway.http.checked_post import FRESH_S, MAX_REPLY_BYTES, CheckedPost
from tests.scripted_server import Peer, Script, ScriptedServer, scripted


def reply(body: bytes = b'{"findings":[]}', status: str = "200 OK", times: int = 1, **headers: str) -> Script:
    given = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)

    async def script(peer: Peer) -> None:
        for _ in range(times):
            if not await peer.request():
                return
            await peer.send(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)

    return script


class Names:
    """A resolver with one answer, and a clock."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.asked: list[tuple[str, int]] = []
        self.now = 0.0

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        if not self.addresses:
            raise OSError("no such name")
        return self.addresses


def service(server: ScriptedServer, names: Names, *, private: bool = True, scheme: str = "http") -> CheckedPost:
    url = f"{scheme}://guard.test:{server.port}/hook?team=a"
    return CheckedPost(url, lambda body: {"x-of": str(len(body))}, lambda: names.now, private=private, connections=4, resolve=names)


async def refusal(posting: Awaitable[tuple[int, bytes]]) -> str:
    with pytest.raises(OSError) as refused:
        await posting
    return str(refused.value)


async def test_a_body_is_posted_by_name_on_a_connection_that_is_kept() -> None:
    async with scripted(reply(times=3)) as server:
        names = Names("127.0.0.1")
        mine = service(server, names)
        assert await mine.post(b'{"a":1}') == (200, b'{"findings":[]}')
        head = server.peers[0].received.decode().lower()
        assert head.startswith("post /hook?team=a http/1.1\r\n")
        assert f"host: guard.test:{server.port}\r\n" in head
        assert "x-of: 7\r\n" in head
        assert "content-type: application/json\r\n" in head
        assert head.endswith('\r\n\r\n{"a":1}')
        await mine.post(b"{}")
        await mine.close()
    assert len(server.peers) == 1
    assert names.asked == [("guard.test", server.port)]


async def test_a_name_is_resolved_and_checked_again_after_a_while() -> None:
    async with scripted(reply(times=3)) as server:
        names = Names("127.0.0.1")
        mine = service(server, names)
        await mine.post(b"{}")
        names.now, names.addresses = FRESH_S, ["169.254.169.254"]
        assert "may not be reached" in await refusal(mine.post(b"{}"))
        names.addresses = []
        assert "no such name" in await refusal(mine.post(b"{}"))
        names.addresses = ["127.0.0.1"]
        assert (await mine.post(b"{}"))[0] == 200
        await mine.close()


NEVER = ("169.254.169.254", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "0.0.0.0", "224.0.0.251", "::")
FORMS = ("::ffff:10.0.0.5", "::10.0.0.5", "64:ff9b::a00:5", "2002:a00:5::1", "::ffff:93.184.216.34", "2130706433", "0x7f.1", "")
OWN = ("127.0.0.1", "127.0.0.53", "::1", "10.0.0.5", "172.16.9.9", "192.168.1.1", "100.64.0.1", "fd00::5")
PUBLIC = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.req("R40")
@pytest.mark.parametrize(
    ("scheme", "private", "allowed"),
    [("https", False, PUBLIC), ("https", True, (*PUBLIC, *OWN)), ("http", False, PUBLIC), ("http", True, OWN)],
)
def test_the_addresses_that_may_be_reached(scheme: str, *, private: bool, allowed: tuple[str, ...]) -> None:
    mine = CheckedPost(f"{scheme}://guard.test/", lambda _: {}, lambda: 0.0, private=private, connections=1, resolve=Names())
    for address in (*NEVER, *FORMS, *OWN, *PUBLIC):
        assert mine.may_reach(address) is (address in allowed), address


@pytest.mark.req("R40")
@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["10.0.0.5"], ["93.184.216.34", "127.0.0.1"], ["::1"]])
async def test_without_private_nothing_of_the_own_network_is_connected_to(addresses: list[str]) -> None:
    async with scripted(reply()) as server:
        mine = service(server, Names(*addresses), private=False)
        assert "may not be reached" in await refusal(mine.post(b"{}"))
        await mine.close()
        assert server.peers == []


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    async with scripted(reply()) as elsewhere, scripted(reply(b"", "307 Temporary Redirect", location=elsewhere.url)) as server:
        mine = service(server, Names("127.0.0.1"))
        assert await mine.post(b"{}") == (307, b"")
        await mine.close()
        assert elsewhere.peers == []


async def test_tls_is_verified_for_the_name() -> None:
    authority = trustme.CA()
    serving, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("guard.test").configure_cert(serving)
    authority.configure_trust(trusting)
    async with scripted(reply(), ssl=serving) as server:
        for trust, works in ((trusting, True), (ssl.create_default_context(), False)):
            mine = service(server, Names("127.0.0.1"), scheme="https")
            mine.trust = lambda _url, trust=trust: trust  # type: ignore[misc]
            if works:
                assert (await mine.post(b"{}"))[0] == 200
            else:
                assert "CERTIFICATE_VERIFY_FAILED" in await refusal(mine.post(b"{}"))
            await mine.close()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (reply(b"x" * (MAX_REPLY_BYTES + 1)), "more than"),
        (reply(b"\x1f\x8b", content_encoding="gzip"), "compressed"),
        (reply(content_length="500"), "RemoteProtocolError"),
        (reply(status="what is this"), "RemoteProtocolError"),
    ],
)
async def test_replies_that_are_none(script: Script, says: str) -> None:
    async with scripted(script) as server:
        mine = service(server, Names("127.0.0.1"))
        assert says in await refusal(mine.post(b"{}"))
        await mine.close()


async def test_a_question_that_is_given_up_closes_its_connection() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as server:
        mine = service(server, Names("127.0.0.1"))
        asking = asyncio.ensure_future(mine.post(b"{}"))
        while not server.peers or not server.peers[0].received:
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.wait_for(server.peers[0].eof.wait(), 10)
        await mine.close()


async def test_a_service_that_is_away_is_an_error_with_its_reason() -> None:
    async with scripted(reply()) as server:
        pass
    mine = service(server, Names("127.0.0.1"))
    assert "ConnectError" in await refusal(mine.post(b"{}"))
    await mine.close()
