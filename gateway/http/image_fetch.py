"""Fetches images that chats name by URL, without letting a caller reach anything but the hosts of its policy.

A URL is taken apart once, by httpx, which also sends the request. The host's name is resolved once. Where one of its addresses is not
public the image is refused; else the connection goes to an address that was checked, and no name is resolved again. The host's name stays
in the `Host` header and in TLS, whose certificate must be for that name. A redirect is a new URL: it is checked like the first one. No
cookie is kept, because hosts behind one address would get each other's.

httpx is imported by the first fetch, in a thread, because no worker needs it to start (decision 0003).
"""

import asyncio
import base64
import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from backends.reach import is_public
from gateway.config.trust import verify_for
from gateway.http.checked_address import AddressRefused, Resolve, Resolver, checked_address, no_cookies, request_to
from policies.image_urls import PORTS, ImageUrls

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS: Final = 3
"""Image hosts redirect once, to a store or from http to https."""
MAX_URL_CHARS: Final = 4096
"""Signed URLs of object stores have about 1,500."""
MAX_AT_ONCE: Final = 32
"""Fetches of a worker at the same time, so that slow hosts hold neither all its memory nor its file descriptors."""
MAX_OF_TENANT: Final = 8
"""Fetches of one tenant in a worker at the same time."""
FREE_PIECES: Final = 1000
"""Pieces of any size that an image may come in; a piece costs about 50 µs of the worker's time."""
MEAN_PIECE_BYTES: Final = 256
"""Least mean size of the pieces beyond `FREE_PIECES`. A packet of the slowest network has 500 bytes; only chunks are smaller."""

SIGNATURES: Final = (
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
"""The first bytes of the kinds of images that engines and OpenAI take, and their types."""

_URL: Final = re.compile(r"https?://[!-.0->A-\[\]-~]+(?:[/?#][!-\[\]-~]*)?", re.IGNORECASE)
"""Printable ASCII without a backslash, which some readers take for a slash, and without a user name in front of the host."""
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {"accept": "image/*", "accept-encoding": "identity", "user-agent": "tidegate"}


class ImageRefused(Exception):
    """An image that was not fetched.

    Args:
        reason: for the caller: what is wrong and what to do. Names no address.
        detail: for operators.
        again: whether the same request may succeed later.
        url: the URL of the image, as the request has it; set where the fetch ends.
    """

    def __init__(self, reason: str, *, detail: str = "", again: bool = False, url: str = "") -> None:
        super().__init__(reason)
        self.url = url
        self.reason = reason
        self.detail = detail or reason
        self.again = again


def image_type(data: bytes) -> str | None:
    """The type of an image by its first bytes; None where they are of no image that is taken."""
    return next((kind for signature, kind in SIGNATURES if signature.match(data)), None)


class ImageFetcher:
    """Fetches images of a worker's requests.

    Args:
        resolve: finds the addresses of a name; None for the system's resolver.
        may_reach: whether an address may be connected to; other than the default in tests alone.
        trust: makes the TLS context; called once, in a thread.
    """

    def __init__(
        self,
        resolve: Resolve | None = None,
        may_reach: Callable[[str], bool] = is_public,
        trust: Callable[[], ssl.SSLContext | bool] = lambda: verify_for("https:"),
    ) -> None:
        self._resolve = Resolver(most=MAX_AT_ONCE) if resolve is None else resolve
        self.may_reach = may_reach
        self._trust = trust
        self._tls: ssl.SSLContext | bool | None = None
        self._places = asyncio.Semaphore(MAX_AT_ONCE)
        self._of_tenant: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fetch(self, urls: Iterable[str], rules: ImageUrls, budget: "ImageBudget", tenant: str) -> dict[str, str]:
        """The images as `data:` URLs, by their URLs. All are refused with the first one that is.

        Args:
            urls: the URLs as they stand in the request. One that stands there twice is fetched once, and counted twice.
            budget: counts the bytes of the `data:` URLs as they come.

        Raises:
            ImageRefused: with the URL of the image that is refused.
            Fault: raised by the budget.
        """
        times = Counter(urls)
        distinct = list(times)
        tasks = [asyncio.ensure_future(self._one(url, rules, budget.part(times[url]), tenant)) for url in distinct]
        try:
            async with asyncio.timeout(rules.within_s):
                images = await asyncio.gather(*tasks)
        except TimeoutError:
            late = next((url for url, task in zip(distinct, tasks, strict=True) if task.cancelled() or not task.done()), distinct[0])
            raise ImageRefused(f"it did not come within {rules.within_s:g} s; try again", again=True, url=late) from None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return dict(zip(distinct, images, strict=True))

    async def _one(self, url: str, rules: ImageUrls, take: "Take", tenant: str) -> str:
        place = self._of_tenant.setdefault(tenant, asyncio.Semaphore(MAX_OF_TENANT))
        async with place, self._places:
            if self._tls is None:
                self._tls = await asyncio.to_thread(self._prepared)
            try:
                return await self._followed(url, rules, take)
            except ImageRefused as refused:
                refused.url = url
                raise

    def _prepared(self) -> ssl.SSLContext | bool:
        """Import httpx and read the certificates, which take longer than a turn of the loop may."""
        import httpx

        _ = httpx.AsyncClient
        return self._trust()

    async def _followed(self, url: str, rules: ImageUrls, take: "Take") -> str:
        import httpx

        assert self._tls is not None
        transport = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
        # the timeout of the whole fetch counts; this one ends a single step that hangs
        async with httpx.AsyncClient(
            transport=transport, headers=_HEADERS, cookies=no_cookies(), timeout=rules.within_s, trust_env=False
        ) as client:
            target, secure = url, False
            for _ in range(MAX_REDIRECTS + 1):
                parsed = _parsed(target)
                if secure and parsed.scheme != "https":
                    raise ImageRefused("its host redirects from https to http; send the final URL")
                request = await self._request(client, parsed, rules)
                try:
                    reply = await client.send(request, stream=True, follow_redirects=False)
                except (httpx.HTTPError, OSError) as error:
                    detail = f"{type(error).__name__}: {error}"
                    raise ImageRefused("its host could not be reached; try again", detail=detail, again=True) from None
                try:
                    if reply.status_code not in _REDIRECTS:
                        return await _read(reply, rules, take)
                    location = reply.headers.get("location", "")
                finally:
                    await reply.aclose()
                target, secure = _joined(parsed, location), parsed.scheme == "https"
        raise ImageRefused(f"its host redirects more than {MAX_REDIRECTS} times; send the final URL")

    async def _request(self, client: "httpx.AsyncClient", url: "httpx.URL", rules: ImageUrls) -> "httpx.Request":
        """The request for a URL, to an address that was checked."""
        # as it is written: the Unicode form of an international name would be written anew, by other rules, where it is looked up
        host, port = url.raw_host.decode("ascii"), PORTS[url.scheme] if url.port is None else url.port
        if not rules.allows(url.scheme, host, port):
            raise ImageRefused(
                "its host is not in the policy's list (image_urls.hosts); send the image as a data: URL, or ask the operator"
            )
        try:
            address = await checked_address(self._resolve, self.may_reach, host, port)
        except AddressRefused as refused:
            raise ImageRefused("its host has no public address; send the image as a data: URL", detail=f"{host} {refused}") from None
        except (OSError, UnicodeError) as error:
            raise ImageRefused("the name of its host was not found; check the URL", detail=f"{host}: {error}", again=True) from None
        return request_to(client, "GET", url, address, {})


Take = Callable[[int], None]
"""Counts further bytes of an image; raises where there is no room for them."""


class ImageBudget:
    """Counts the images of one request, as they will stand in it, while they come.

    Args:
        most_bytes: the most bytes that they may have together.
        grow: called with their bytes so far before any more is kept; raises a Fault where the worker has no room.
    """

    def __init__(self, most_bytes: int, grow: Callable[[int], None] = lambda _bytes: None) -> None:
        self._most_bytes = most_bytes
        self._grow = grow
        self._bytes = 0

    def part(self, times: int) -> Take:
        """What counts an image that stands `times` times in the request."""

        def take(data_bytes: int) -> None:
            self._bytes += -(-data_bytes * 4 // 3) * times
            if self._bytes > self._most_bytes:
                hint = "the request is larger than the policy allows (caps.body_bytes); send smaller images"
                raise ImageRefused(f"with the images {hint}")
            self._grow(self._bytes)

        return take


def _parsed(url: str) -> "httpx.URL":
    """The URL, taken apart. Raises ImageRefused where it can be read in more than one way, or carries credentials."""
    import httpx

    if len(url) > MAX_URL_CHARS or _URL.fullmatch(url) is None:
        kind = f"http or https URL without a user name, of at most {MAX_URL_CHARS} printable ASCII characters"
        raise ImageRefused(f"its URL is no {kind}; escape other characters")
    try:
        parsed = httpx.URL(url)
        is_whole = parsed.scheme in PORTS and parsed.raw_host != b"" and not parsed.userinfo
    except (httpx.InvalidURL, ValueError):
        is_whole = False
    if not is_whole:
        raise ImageRefused("its URL has no host that can be read in one way; send a plain URL")
    return parsed.copy_with(fragment=None)


def _joined(url: "httpx.URL", location: str) -> str:
    import httpx

    try:
        return str(url.join(location)) if location else ""
    except (httpx.InvalidURL, ValueError):
        return ""


async def _read(reply: "httpx.Response", rules: ImageUrls, take: Take) -> str:
    """The image of a reply as a `data:` URL."""
    import httpx

    if reply.status_code != 200:
        again = reply.status_code >= 500 or reply.status_code == 429
        raise ImageRefused(f"its host answered with status {reply.status_code}; check the URL", again=again)
    declared, encoding = reply.headers.get("content-type", ""), reply.headers.get("content-encoding", "identity")
    if not declared.lower().startswith("image/"):
        raise ImageRefused("its host says that it is no image (content-type); send the URL of the image itself")
    if encoding.lower() != "identity":
        raise ImageRefused("its host compresses it, though asked not to; send the image as a data: URL")
    too_large = ImageRefused(f"it has more than {rules.max_bytes} bytes (image_urls.max_bytes of the policy); send a smaller one")
    length = reply.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > rules.max_bytes:
        raise too_large
    data = bytearray()
    pieces = 0
    try:
        async for piece in reply.aiter_raw():
            data += piece
            pieces += 1
            if len(data) > rules.max_bytes:
                raise too_large
            if pieces > FREE_PIECES + len(data) // MEAN_PIECE_BYTES:
                raise ImageRefused("its host sends it in pieces of a few bytes; send the image as a data: URL")
            take(len(piece))
    except (httpx.HTTPError, OSError) as error:
        raise ImageRefused("it broke off; try again", detail=f"{type(error).__name__}: {error}", again=True) from None
    kind = image_type(bytes(data[:16]))
    if kind is None:
        raise ImageRefused("it is no JPEG, PNG, GIF or WebP; send it as one of these")
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
