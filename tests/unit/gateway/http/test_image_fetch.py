"""Fetching images by URL, against a real server on the loopback: what is fetched, what is refused, and that nothing else is reached.

The fetcher of these tests may reach 127.0.0.1, which the product's refuses: a test below holds that.
"""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trustme

from backends.reach import is_public
from gateway.deps import Deps
from gateway.http.image_fetch import MAX_OF_TENANT, MAX_REDIRECTS, ImageBudget, ImageFetcher, ImageRefused, image_type
from policies.image_urls import ImageUrls
from tests.scripted_server import Peer, Script, ScriptedServer, scripted

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100


def reply(body: bytes = PNG, status: str = "200 OK", **headers: str) -> Script:
    """A server that answers each request alike."""
    given = {"content-type": "image/png", "content-length": str(len(body)), **{name.replace("_", "-"): v for name, v in headers.items()}}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(f"HTTP/1.1 {status}\r\n{lines}connection: close\r\n\r\n".encode() + body)

    return script


def names(**addresses: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that knows hosts by their first label, and counts the questions."""

    async def resolve(host: str, _port: int) -> list[str]:
        resolve.asked.append(host)  # type: ignore[attr-defined]
        if host.partition(".")[0] not in addresses:
            raise OSError("no such name")
        return addresses[host.partition(".")[0]]

    resolve.asked = []  # type: ignore[attr-defined]
    return resolve


def local(address: str) -> bool:
    return address == "127.0.0.1" or is_public(address)


def fetcher(resolve: Any = None, trust: Callable[[], ssl.SSLContext | bool] = lambda: False) -> ImageFetcher:
    return ImageFetcher(resolve or names(images=["127.0.0.1"]), may_reach=local, trust=trust)


def rules(server: ScriptedServer, *more: str, **fields: Any) -> ImageUrls:
    return ImageUrls.model_validate({"hosts": [f"images.test:{server.port}", *more], **fields})


def plenty() -> ImageBudget:
    return ImageBudget(10**9)


async def refusal(fetching: Awaitable[Any]) -> ImageRefused:
    with pytest.raises(ImageRefused) as refused:
        await fetching
    assert "127.0.0.1" not in refused.value.reason
    assert "10.0.0" not in refused.value.reason
    return refused.value


# --- what is fetched ------------------------------------------------------------------------------------------------


async def test_an_image_comes_as_a_data_url_and_its_host_is_asked_by_name() -> None:
    async with scripted(reply(content_type="image/jpeg")) as server:
        url = f"http://images.test:{server.port}/a.png?sig=1%2F2#part"
        found = await fetcher().fetch([url, url], rules(server), plenty(), "acme")
    assert found == {url: "data:image/png;base64," + base64.b64encode(PNG).decode()}, "the type is that of its bytes"
    assert len(server.peers) == 1, "once, though it stands twice"
    head = server.peers[0].received.decode()
    assert head.startswith("GET /a.png?sig=1%2F2 HTTP/1.1\r\n")
    assert f"images.test:{server.port}" in head
    assert "cookie" not in head.lower()
    assert "authorization" not in head.lower()


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"<svg xmlns=", None),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)
def test_the_type_is_that_of_the_first_bytes(data: bytes, kind: str | None) -> None:
    assert image_type(data) == kind


async def test_a_redirect_is_followed_to_a_host_of_the_list() -> None:
    async with scripted(reply()) as last, scripted(reply(b"", "302 Found", location=f"http://store.test:{last.port}/b")) as first:
        resolve = names(images=["127.0.0.1"], store=["127.0.0.1"])
        found = await fetcher(resolve).fetch(
            [f"http://images.test:{first.port}/a"], rules(first, f"store.test:{last.port}"), plenty(), "acme"
        )
    assert next(iter(found.values())).startswith("data:image/png")
    assert resolve.asked == ["images.test", "store.test"], "each name once"  # type: ignore[attr-defined]


async def test_tls_is_verified_for_the_name_though_the_connection_goes_to_the_address() -> None:
    authority = trustme.CA()
    serving, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("images.test").configure_cert(serving)
    authority.configure_trust(trusting)
    async with scripted(reply(), ssl=serving) as server:
        mine = fetcher(names(images=["127.0.0.1"], other=["127.0.0.1"]), lambda: trusting)
        policy = rules(server, f"other.test:{server.port}")
        url = f"https://images.test:{server.port}/a"
        assert url in await mine.fetch([url], policy, plenty(), "acme")
        refused = await refusal(mine.fetch([f"https://other.test:{server.port}/a"], policy, plenty(), "acme"))
        assert "CERTIFICATE_VERIFY_FAILED" in refused.detail


async def test_a_cookie_of_one_host_is_not_sent_to_the_next_one() -> None:
    async with scripted(reply()) as last:
        script = reply(b"", "302 Found", location=f"http://store.test:{last.port}/b", set_cookie="who=images; Path=/")
        async with scripted(script) as first:
            url = f"http://images.test:{first.port}/a"
            mine = fetcher(names(images=["127.0.0.1"], store=["127.0.0.1"]))
            await mine.fetch([url], rules(first, f"store.test:{last.port}"), plenty(), "acme")
    assert b"/b" in last.peers[0].received
    assert b"cookie" not in last.peers[0].received.lower(), "both are on one address, as behind a CDN"


async def test_an_international_name_is_looked_up_as_it_is_written() -> None:
    async with scripted(reply()) as server:
        resolve = names(**{"xn--strae-oqa": ["127.0.0.1"]})
        url = f"http://xn--strae-oqa.test:{server.port}/a"
        policy = ImageUrls(hosts=[f"xn--strae-oqa.test:{server.port}"])
        assert url in await fetcher(resolve).fetch([url], policy, plenty(), "acme")
        assert resolve.asked == ["xn--strae-oqa.test"], "a Unicode name has two readings, one of them another host"  # type: ignore[attr-defined]
        assert f"host: xn--strae-oqa.test:{server.port}".encode() in server.peers[0].received.lower()


# --- what is refused before any connection --------------------------------------------------------------------------

PRIVATE = {
    "loopback": ["127.0.0.53"],
    "private": ["10.0.0.5"],
    "linklocal": ["169.254.169.254"],
    "shared": ["100.64.0.1"],
    "azure": ["168.63.129.16"],
    "unspecified": ["0.0.0.0"],
    "multicast": ["224.0.0.251"],
    "v6": ["::1"],
    "ula": ["fd00::5"],
    "zone": ["fe80::1%eth0"],
    "mapped": ["::ffff:10.0.0.5"],
    "compatible": ["::10.0.0.5"],
    "nat64": ["64:ff9b::a00:5"],
    "translated": ["::ffff:0:10.0.0.5"],
    "sitelocal": ["fec0::5"],
    "segments": ["5f00::5"],
    "unallocated": ["4000::5"],
    "sixtofour": ["2002:a00:5::1"],
    "mixed": ["93.184.216.34", "10.0.0.5"],
    "nothing": [],
}


@pytest.mark.parametrize("name", PRIVATE)
async def test_a_name_with_an_address_that_is_not_public_is_never_connected_to(name: str) -> None:
    connected: list[Peer] = []

    async def script(peer: Peer) -> None:
        connected.append(peer)

    async with scripted(script) as server:
        resolve = names(**PRIVATE)
        product = ImageFetcher(resolve, trust=lambda: False)
        policy = ImageUrls(hosts=[f"*.wide.test:{server.port}"])
        refused = await refusal(product.fetch([f"http://{name}.wide.test:{server.port}/a"], policy, plenty(), "acme"))
    assert "no public address" in refused.reason
    assert not any(address in refused.reason for address in PRIVATE[name])
    assert connected == []


def test_the_products_fetcher_reaches_public_addresses_alone() -> None:
    product = Deps.__dataclass_fields__["images"].default_factory
    assert product is ImageFetcher
    assert ImageFetcher().may_reach is is_public
    for address in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"):
        assert is_public(address)
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "2130706433", "0x7f.1", "", "localhost", "255.255.255.255", "198.18.0.1", "192.0.0.9"):
        assert not is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/a",
        "http://2130706433/a",
        "http://0x7f000001/a",
        "http://0x7f.0.0.1/a",
        "http://017700000001/a",
        "http://127.1/a",
        "http://[::1]/a",
        "http://[::ffff:127.0.0.1]/a",
        "http://[::ffff:7f00:1]/a",
        "http://localhost/a",
        "http://evil.test/a",
        "http://images.test./a",
        "http://images.test:22/a",
        "http://images.test:0/a",
        "http://images.test@127.0.0.1/a",
        "http://user:pass@images.test/a",
        "http://@images.test/a",
        "http://127.0.0.1\\@images.test/a",
        "http://images.test\\.evil.test/a",
        "http://images.test#@127.0.0.1/",
        "http://127.0.0.1?@images.test/",
        "http://images.test%00.evil.test/a",
        "http://images.test:80:81/a",
        "http:///a",
        "http://",
        "http://images.test/a b",
        "http://images.test/a\r\nhost: x",
        "http://\uff49mages.test/a",
        "ftp://images.test/a",
        "file:///etc/passwd",
        "gopher://images.test/_x",
        "http://" + "a" * 5000 + ".test/",
    ],
)
async def test_urls_that_lead_elsewhere_or_can_be_read_in_two_ways(url: str) -> None:
    resolve = names(images=["127.0.0.1"], localhost=["127.0.0.1"], evil=["127.0.0.1"])
    policy = ImageUrls(hosts=["images.test"])
    if url == "http://images.test#@127.0.0.1/":
        refused = await refusal(fetcher(resolve).fetch([url], policy, plenty(), "acme"))
        assert resolve.asked == ["images.test"], "what is behind # is no host"  # type: ignore[attr-defined]
        return
    refused = await refusal(fetcher(resolve).fetch([url], policy, plenty(), "acme"))
    assert "list" in refused.reason or "URL" in refused.reason
    assert refused.url == url
    assert resolve.asked == [], "not even looked up"  # type: ignore[attr-defined]


# --- what is refused on the way -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("http://private.test/", "no public address"),
        ("http://127.0.0.1:{port}/", "not in the policy's list"),
        ("http://169.254.169.254/latest/meta-data/", "not in the policy's list"),
        ("http://evil.test/", "not in the policy's list"),
        ("//evil.test/a", "not in the policy's list"),
        ("file:///etc/passwd", "its URL"),
        ("", "its URL"),
        ("/again", "redirects more than 3 times"),
    ],
)
async def test_a_redirect_is_checked_like_the_first_url(location: str, says: str) -> None:
    async def script(peer: Peer) -> None:
        target = location.replace("{port}", str(server.port))
        await reply(b"", "302 Found", location=target)(peer)

    async with scripted(script) as server:
        mine = fetcher(names(images=["127.0.0.1"], private=["10.0.0.5"], evil=["127.0.0.1"]))
        refused = await refusal(mine.fetch([f"http://images.test:{server.port}/a"], rules(server, "private.test"), plenty(), "acme"))
        assert says in refused.reason
        assert len(server.peers) == (MAX_REDIRECTS + 1 if location == "/again" else 1)


@pytest.mark.parametrize(
    ("script", "says", "again"),
    [
        (reply(b"x" * 5000), "more than 2000 bytes", False),
        (reply(PNG + b"x" * 5000, content_length=""), "more than 2000 bytes", False),
        (reply(content_length="99999999999"), "more than 2000 bytes", False),
        (reply(content_type="text/html"), "no image", False),
        (reply(content_type=""), "no image", False),
        (reply(b"<html>" * 9), "no JPEG, PNG, GIF or WebP", False),
        (reply(b"\x1f\x8b" * 9, content_encoding="gzip"), "compresses", False),
        (reply(status="404 Not Found"), "status 404", False),
        (reply(status="503 Unavailable"), "status 503", True),
        (reply(content_length="500"), "broke off", True),
        (reply(status="not http"), "could not be reached", True),
    ],
)
async def test_replies_that_are_no_image_of_the_allowed_size(script: Script, says: str, *, again: bool) -> None:
    async with scripted(script) as server:
        refused = await refusal(fetcher().fetch([f"http://images.test:{server.port}/a"], rules(server, max_bytes=2000), plenty(), "acme"))
    assert says in refused.reason
    assert refused.again is again


async def test_the_images_of_a_request_have_one_budget() -> None:
    async with scripted(reply()) as server:
        urls = [f"http://images.test:{server.port}/{at}" for at in range(3)]
        one = -(-len(PNG) * 4 // 3)
        assert len(await fetcher().fetch(urls, rules(server), ImageBudget(3 * one + 3), "acme")) == 3
        assert "caps.body_bytes" in (await refusal(fetcher().fetch(urls, rules(server), ImageBudget(2 * one), "acme"))).reason


async def test_an_image_that_stands_in_the_request_several_times_is_counted_each_time() -> None:
    async with scripted(reply()) as server:
        url, one = f"http://images.test:{server.port}/a", -(-len(PNG) * 4 // 3)
        assert "caps.body_bytes" in (await refusal(fetcher().fetch([url] * 3, rules(server), ImageBudget(3 * one - 1), "acme"))).reason
        assert len(await fetcher().fetch([url] * 3, rules(server), ImageBudget(3 * one), "acme")) == 1
    assert len(server.peers) == 2


async def test_what_has_come_is_counted_before_the_rest_has() -> None:
    class Full(Exception):
        pass

    def grow(so_far: int) -> None:
        grown.append(so_far)
        if so_far > 2 * one:
            raise Full

    grown: list[int] = []
    one = -(-len(PNG) * 4 // 3)

    async def script(peer: Peer) -> None:
        head = await peer.request()
        if b"/slow" in head:
            await peer.wait_closed_by_client()
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: %d\r\n\r\n" % len(PNG) + PNG)

    async with scripted(script) as server:
        urls = [f"http://images.test:{server.port}/{at}" for at in ("slow", 1, 2, 3)]
        with pytest.raises(Full):
            await fetcher().fetch(urls, rules(server, within_s=60), ImageBudget(10**6, grow), "acme")
    assert grown == [one, 2 * one, 3 * one]


async def test_a_slow_drip_ends_with_the_time() -> None:
    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: 1000\r\n\r\n" + PNG)
        while True:
            await peer.send(b"x")
            await asyncio.sleep(0.01)

    async with scripted(drip) as server:
        url = f"http://images.test:{server.port}/a"
        refused = await refusal(fetcher().fetch([url], rules(server, within_s=0.2), plenty(), "acme"))
        assert (refused.reason, refused.again, refused.url) == ("it did not come within 0.2 s; try again", True, url)
        await asyncio.wait_for(server.peers[0].wait_closed_by_client(), 10)


async def test_an_image_in_tiny_pieces_is_given_up() -> None:
    pieces = 20_000

    async def crumbs(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ntransfer-encoding: chunked\r\n\r\n")
        await peer.send(b"%x\r\n%b\r\n" % (len(PNG), PNG) + b"1\r\nx\r\n" * pieces + b"0\r\n\r\n")

    async with scripted(crumbs) as server:
        url = f"http://images.test:{server.port}/a"
        refused = await refusal(fetcher().fetch([url], rules(server, within_s=60), plenty(), "acme"))
    assert "pieces" in refused.reason


async def test_a_host_that_is_away() -> None:
    async with scripted(reply()) as server:
        port = server.port
    gone = ImageUrls(hosts=[f"*.wide.test:{port}"])
    assert "could not be reached" in (await refusal(fetcher().fetch([f"http://images.wide.test:{port}/"], gone, plenty(), "acme"))).reason
    assert "was not found" in (await refusal(fetcher().fetch([f"http://unknown.wide.test:{port}/"], gone, plenty(), "acme"))).reason


async def test_a_tenant_fetches_a_few_at_once_and_others_go_on() -> None:
    let_go, waiting = asyncio.Event(), 0

    async def held(peer: Peer) -> None:
        nonlocal waiting
        await peer.request()
        if b"/slow" in peer.received:
            waiting += 1
            await let_go.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\nconnection: close\r\n\r\n" + PNG)

    async with scripted(held) as server:
        mine, policy = fetcher(), rules(server, max_images=32)
        many = asyncio.create_task(
            mine.fetch([f"http://images.test:{server.port}/slow{at}" for at in range(2 * MAX_OF_TENANT)], policy, plenty(), "acme")
        )
        while waiting < MAX_OF_TENANT:
            await asyncio.sleep(0.005)
        await mine.fetch([f"http://images.test:{server.port}/fast"], policy, plenty(), "bolt")
        assert waiting == MAX_OF_TENANT
        let_go.set()
        assert len(await many) == 2 * MAX_OF_TENANT


async def test_a_fetch_that_is_given_up_closes_its_connection() -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.wait_closed_by_client()

    async with scripted(silent) as server:
        fetching = asyncio.create_task(fetcher().fetch([f"http://images.test:{server.port}/a"], rules(server), plenty(), "acme"))
        while not (server.peers and server.peers[0].received):
            await asyncio.sleep(0.005)
        fetching.cancel()
        await asyncio.gather(fetching, return_exceptions=True)
        await asyncio.wait_for(server.peers[0].eof.wait(), 10)
