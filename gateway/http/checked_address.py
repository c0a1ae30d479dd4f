"""Requests to hosts outside the fleet, without letting a name lead the gateway to an address that it must not reach.

A host's name is resolved once. Where one of its addresses may not be reached, the request is refused; else the connection goes to an
address that was checked, and no name is resolved again. The host's name stays in the `Host` header and in TLS, whose certificate must be
for that name. No cookie is kept, because hosts behind one address would get each other's.

Names are resolved in threads of this module. uvloop has two threads for the names of all connections, and a host outside whose name
servers do not answer would keep the names of engines waiting.

httpx is handed in by those who have imported it: no worker needs it to start (decision 0003).
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from http.cookiejar import CookieJar

    import httpx

MAX_LOOKUPS: Final = 32
"""Threads that resolve names. A thread cannot be stopped, so one whose request was given up counts until the resolver answers."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host's name; raises OSError where it has none."""


class AddressRefused(Exception):
    """A host has no address, or one that must not be reached; the text names them, for operators."""


class Resolver:
    """Asks the system's resolver for the addresses of names, each once, in daemon threads, so that none holds up the worker's end.

    Args:
        ask: `socket.getaddrinfo`; another one in tests alone.
    """

    def __init__(self, ask: Callable[..., list[Any]] = socket.getaddrinfo, most: int = MAX_LOOKUPS) -> None:
        self._ask = ask
        self._places = asyncio.Semaphore(most)

    async def __call__(self, host: str, port: int) -> list[str]:
        """The addresses of a name. Raises OSError where it has none."""
        await self._places.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[Any]] = loop.create_future()

        def answered(found: list[Any] | None, error: Exception | None) -> None:
            self._places.release()
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(found or [])

        def look_up() -> None:
            found, failed = None, None
            try:
                found = self._ask(host, port, type=socket.SOCK_STREAM)
            except Exception as error:  # noqa: BLE001 - raised again where the answer is awaited
                failed = error
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(answered, found, failed)

        try:
            threading.Thread(target=look_up, name="host-name", daemon=True).start()
        except RuntimeError as error:
            self._places.release()
            raise OSError(f"the name cannot be resolved now: {error}") from None
        return list(dict.fromkeys(str(address[4][0]) for address in await answer))


async def checked_address(resolve: Resolve, may_reach: Callable[[str], bool], host: str, port: int) -> str:
    """The address to connect to for a host.

    Args:
        may_reach: whether an address may be connected to.

    Raises:
        AddressRefused: it has none, or one of its addresses may not be reached.
        OSError, UnicodeError: its name cannot be resolved.
    """
    addresses = await resolve(host, port)
    if not addresses or not all(map(may_reach, addresses)):
        raise AddressRefused(f"has the addresses {', '.join(addresses) or 'none'}")
    return addresses[0]


def request_to(
    client: "httpx.AsyncClient", method: str, url: "httpx.URL", address: str, headers: Mapping[str, str], content: bytes = b""
) -> "httpx.Request":
    """A request for a URL that goes to an address, whatever its host's name leads to."""
    named = {**headers, "host": url.netloc.decode("ascii")}
    to_address, by_name = url.copy_with(host=address), {"sni_hostname": url.raw_host.decode("ascii")}
    return client.build_request(method, to_address, headers=named, content=content or None, extensions=by_name)


def no_cookies() -> "CookieJar":
    """A jar that keeps none."""
    from http.cookiejar import CookieJar, DefaultCookiePolicy  # as httpx, only where it is needed

    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
