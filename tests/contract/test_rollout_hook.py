"""Messages about rollouts over a real socket: what receivers get, and what is made of their answers."""

import hmac

import httpx
import pytest

from gateway.signed_webhook import SIGNATURE, post_message, signature
from tests.scripted_server import Peer, Script, scripted

SECRET, BODY = b"s" * 32, b'{"event":"rollout.done"}'


def answering(status: bytes) -> Script:
    async def answer(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")

    return answer


@pytest.mark.parametrize(("line", "status"), [(b"204 No Content", 204), (b"302 Found", 302), (b"503 Busy", 503)])
async def test_a_message_is_one_signed_post_to_the_url_as_written(line: bytes, status: int) -> None:
    async with scripted(answering(line)) as server:
        sent = {SIGNATURE: signature(SECRET, 1_800_000_000, BODY)}
        assert await post_message(f"{server.url}/hooks/rollouts?team=a", BODY, sent) == status
        head, _, body = server.peers[0].received.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    got = {name.lower(): value.strip() for name, _, value in (one.partition(b":") for one in lines)}
    assert (first, body) == (b"POST /hooks/rollouts?team=a HTTP/1.1", BODY)
    assert got[b"content-type"] == b"application/json"
    wanted = hmac.new(SECRET, b"1800000000." + body, "sha256").hexdigest()
    assert got[SIGNATURE.encode()].decode() == f"t=1800000000,v1={wanted}"


async def test_nobody_there_is_an_error_at_once() -> None:
    async with scripted(answering(b"200 OK")) as server:
        url = server.url
    with pytest.raises(httpx.ConnectError):
        await post_message(url, BODY, {})
