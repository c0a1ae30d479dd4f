"""Posts JSON to one service outside the fleet, for as long as a worker lives: to an address that was checked, on connections that are kept.

The URL stands in the settings, and yet its host's name may lead anywhere, so the addresses are checked at each use (R40). Redirects are not
followed. httpx is imported where such a service is configured, and nowhere else (decision 0003).
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from backends.reach import is_private, is_public
from domain.clock import Clock
from gateway.config.trust import verify_for
from gateway.http.checked_address import AddressRefused, Resolve, Resolver, checked_address, no_cookies, request_to

if TYPE_CHECKING:
    import httpx

WITHIN_S: Final = 10.0
"""Longest time of one step of a request. Who waits for the answer has a shorter bound of his own."""
MAX_REPLY_BYTES: Final = 1024 * 1024
FRESH_S: Final = 5.0
"""How long an address that was checked is used before the name is resolved again."""
IDLE_S: Final = 4.0
"""How long an idle connection is kept: less than the five seconds after which common servers close it."""

Headers = Callable[[bytes], Mapping[str, str]]
"""Makes further headers of a request, such as a signature, from its body."""


class CheckedPost:
    """A service at one URL.

    Args:
        url: of the settings, checked there.
        headers: further headers of each request.
        private: whether the service may be in the operator's own network; with plain HTTP it then may be nowhere else.
        clock: monotonic seconds.
        connections: open connections, at most.
        resolve: finds the addresses of a name; None for the system's resolver.
    """

    def __init__(
        self, url: str, headers: Headers, clock: Clock, *, private: bool, connections: int, resolve: Resolve | None = None
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._url = url
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if secure else 80)
        self._headers = headers
        self._clock = clock
        self._connections = connections
        self._resolve = Resolver() if resolve is None else resolve
        self.may_reach: Callable[[str], bool] = is_public
        if private:
            self.may_reach = (lambda address: is_public(address) or is_private(address)) if secure else is_private
        self.trust: Callable[[str], ssl.SSLContext | bool] = verify_for
        """Makes the TLS context; another one in tests alone."""
        self._address = ""
        self._checked_at = float("-inf")
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def prepare(self) -> None:
        """Import httpx and read the certificates, which takes longer than a question may wait."""
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._opened)

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """The status and the body of the reply.

        Raises:
            OSError: the service cannot be reached, its address may not be, or its reply is too long or breaks off.
        """
        import httpx

        if self._client is None:
            await self.prepare()
        client = self._client
        assert client is not None
        headers = {"content-type": "application/json", **self._headers(body)}
        request = request_to(client, "POST", httpx.URL(self._url), await self._checked(), headers, body)
        try:
            reply = await client.send(request, stream=True, follow_redirects=False)
            try:
                return reply.status_code, await _whole(reply)
            finally:
                await reply.aclose()
        except httpx.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}"[:200]) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> "httpx.AsyncClient":
        import httpx

        limits = httpx.Limits(max_connections=self._connections, max_keepalive_connections=self._connections, keepalive_expiry=IDLE_S)
        transport = httpx.AsyncHTTPTransport(verify=self.trust(self._url), trust_env=False, limits=limits)
        fixed = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "tidegate"}
        return httpx.AsyncClient(transport=transport, headers=fixed, cookies=no_cookies(), timeout=WITHIN_S, trust_env=False)

    async def _checked(self) -> str:
        """The address to connect to. Raises OSError."""
        now = self._clock()
        if now - self._checked_at >= FRESH_S:
            try:
                self._address = await checked_address(self._resolve, self.may_reach, self._host, self._port)
            except (AddressRefused, UnicodeError) as error:
                raise OSError(f"{self._host} {error}, which may not be reached") from None
            self._checked_at = now
        return self._address


async def _whole(reply: "httpx.Response") -> bytes:
    """The body of a reply. Raises OSError where it is compressed or too long."""
    if reply.headers.get("content-encoding", "identity").lower() != "identity":
        raise OSError("the reply is compressed, though asked not to be")
    body = bytearray()
    async for piece in reply.aiter_raw():
        body += piece
        if len(body) > MAX_REPLY_BYTES:
            raise OSError(f"the reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(body)
