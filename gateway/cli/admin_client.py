"""The command line's client of the admin API: requests, conditional changes, and the sentences for failures.

`AdminHttp` carries requests to a gateway; `gateway.cli.offline` carries them to an API in the same process. The address and the token
are found by `gateway.cli.connection`.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any, Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec
import typer

from gateway.cli.missing import Reader, what_is_missing
from gateway.cli.printing import err, fail
from gateway.config.trust import verify_for

API: Final = "/admin/v1"
"""Path prefix of the admin API on the admin port."""
ADMIN: Final = "http://127.0.0.1:8081"
WITHIN_S: Final = 15.0
"""Longest wait for an answer; longer than a change may wait for the database."""
SILENCE_S: Final = 30.0
"""Longest silence of a stream of events, which has a heartbeat every ten seconds."""
PAGE: Final = 500
MAX_ITEMS: Final = 100_000
"""Most items read of one list; larger lists are for scripts that use cursors."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class RefusedByGateway(typer.Exit):
    """The gateway refused a request. The command ends with its message, already printed unless the client is quiet."""

    def __init__(self, message: str) -> None:
        super().__init__(1)
        self.message = message


class Transport(Protocol):
    """Carries one request to an admin API."""

    @property
    def where(self) -> str:
        """The API's place, for messages."""
        ...

    def __call__(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """Status, body and ETag of the answer. A failure prints a sentence and ends the command."""
        ...


class AdminHttp:
    """Carries requests to the admin port of a gateway, one connection each.

    Args:
        url: `http(s)://host:port`.
        source: where the address is written, for messages.
        without: a way to do without a gateway, for messages.
    """

    def __init__(self, url: str, source: str = "--admin", without: str = "") -> None:
        parts = urlsplit(url)
        try:
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not usable:
            fail(f"{source}: {url!r} is no address; write http://host:port", code=2)
        self.where = url
        self._root = f"{parts.scheme}://{parts.netloc}"
        self._source = source
        self._without = without

    def __call__(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str]:
        """Send one request."""
        # imported only here: the import takes longer than all of `--help`
        import httpx

        try:
            with httpx.Client(timeout=WITHIN_S, trust_env=False, verify=verify_for(self.where)) as client:
                reply = client.request(method, f"{self._root}{path}", content=body or None, headers=headers)
                return reply.status_code, reply.content, reply.headers.get("etag", "")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            fail(
                f"no gateway answers at {self.where} ({self._source}; {type(error).__name__}); start one with `tidegate serve`, name its "
                f"admin port with --admin{self._without}"
            )

    def events(self, path: str, headers: dict[str, str]) -> Iterator[tuple[str, bytes]]:
        """The server-sent events of a route, until the gateway ends them: name and data."""
        import httpx

        try:
            within = httpx.Timeout(WITHIN_S, read=SILENCE_S)
            with (
                httpx.Client(timeout=within, trust_env=False, verify=verify_for(self.where)) as client,
                client.stream("GET", f"{self._root}{path}", headers=headers) as reply,
            ):
                if reply.status_code != 200:
                    fail(_message_of(reply.read()) or f"{self.where}{path} answers {reply.status_code}; is that the admin port?")
                name = ""
                for line in reply.iter_lines():
                    field, _, value = line.partition(": ")
                    if field == "event":
                        name = value
                    elif field == "data":
                        yield name, value.encode()
        except (httpx.HTTPError, OSError) as error:
            fail(f"the gateway at {self.where} sends no more events ({type(error).__name__})")


def _message_of(body: bytes) -> str:
    try:
        answer = msgspec.json.decode(body)
        return str(answer["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""


class AdminClient:
    """A client of one admin API. Every failure prints a sentence and ends the command (`typer.Exit`).

    Args:
        transport: carries the requests; an address stands for `AdminHttp`.
        token: needed for the admin API of a gateway; None for the public routes alone.
        quiet: refusals are raised without being printed.
    """

    def __init__(self, transport: Transport | str, token: str | None = None, *, quiet: bool = False) -> None:
        self._transport = AdminHttp(transport) if isinstance(transport, str) else transport
        self.where = self._transport.where
        self._token = token
        self._quiet = quiet
        self._etag = ""

    @property
    def asks_gateway(self) -> bool:
        """Whether requests go to a running gateway, and not to an API in this process."""
        return isinstance(self._transport, AdminHttp)

    def get(self, path: str, statuses: Collection[int] = (200,)) -> bytes:
        """The body of an answer with one of these statuses; another status ends the command."""
        status, body, _ = self._ask("GET", path)
        if status not in statuses:
            fail(f"{self.where}{path} answers {status}; is that the admin port?")
        return body

    def post(self, path: str, value: Any = None) -> Any:
        """POST a change; returns the decoded answer."""
        return self._change("POST", path, value)

    def delete(self, path: str) -> None:
        """DELETE a resource, whatever its state."""
        self._change("DELETE", path, None)

    def read(self, path: str) -> Any:
        """GET a route of the admin API; returns the decoded answer."""
        return self._change("GET", path, None)

    def find(self, path: str) -> Any:
        """GET a route of the admin API; returns the decoded answer, or None for a 404."""
        status, body, etag = self._ask("GET", path)
        return None if status == 404 else self._answer("GET", path, None, (status, body, etag))

    def post_to_found(self, path: str) -> Any:
        """POST a change; returns the decoded answer, or None for a 404."""
        status, body, etag = self._ask("POST", path)
        return None if status == 404 else self._answer("POST", path, None, (status, body, etag))

    def items(self, path: str, most: int = MAX_ITEMS) -> list[dict[str, Any]]:
        """All items of a list, fetched page by page, up to `most`."""
        joint = "&" if "?" in path else "?"
        records: list[dict[str, Any]] = []
        cursor = ""
        while len(records) < most:
            page = self.read(f"{path}{joint}limit={min(PAGE, most - len(records))}{cursor}")
            records += page["items"]
            if not page["next_cursor"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        return records

    def events(self, path: str) -> Iterator[tuple[str, Any]]:
        """GET a route of server-sent events of a running gateway; their names and decoded data, until the gateway ends them."""
        if not isinstance(self._transport, AdminHttp):
            fail("only a running gateway has events; leave --offline out", code=2)
        headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
        for name, data in self._transport.events(path, headers):
            yield name, msgspec.json.decode(data)

    def rewrite(self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        """GET a resource, change it and PUT it back; refused when it changed in the meantime (If-Match)."""
        current = self.read(path)
        return self._change("PUT", path, change(current), self._etag)

    def put(self, path: str, value: Any) -> Any:
        """PUT a resource, new or existing; an existing one is replaced only in the state just read (If-Match)."""
        status, _, etag = self._ask("GET", path)
        return self._change("PUT", path, value, etag if status == 200 else "")

    def put_new(self, path: str, value: Any) -> Any:
        """PUT a new resource; refused when it exists."""
        return self._change("PUT", path, value)

    def remove(self, path: str) -> None:
        """DELETE a resource in the state just read (If-Match)."""
        self.read(path)
        self._change("DELETE", path, None, self._etag)

    def _change(self, method: str, path: str, value: Any, if_match: str = "") -> Any:
        replied = self._ask(method, path, b"" if value is None else msgspec.json.encode(value), if_match)
        return self._answer(method, path, value, replied)

    def _answer(self, method: str, path: str, value: Any, replied: tuple[int, bytes, str]) -> Any:
        status, body, self._etag = replied
        try:
            answer = msgspec.json.decode(body) if body else None
        except msgspec.DecodeError:
            fail(f"{self.where} does not answer like the admin port of a gateway of this version")
        if 200 <= status < 300:
            return answer
        message = answer.get("error", {}).get("message") if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else None
        message = str(message or f"{self.where}{path} answers {status}; is that the admin port?")
        # imported only here: failures alone need it, and the import takes longer than all of `--help`
        from gateway.admin.problem import NOT_FOUND

        if message == NOT_FOUND:  # the API's sentence is the same for every name
            named = what_is_missing(method, path.removeprefix(API), value, Reader(self._exists, self._listed, self._token is not None))
            message = named or f"{path.removeprefix(API).lstrip('/')}: {message}"
        if not self._quiet:
            err.print(message, markup=False, soft_wrap=True)
        raise RefusedByGateway(message)

    def _exists(self, path: str) -> bool | None:
        status = self._ask("GET", f"{API}/{path}")[0]
        return status != 404 if status in (200, 404) else None

    def _listed(self, path: str, most: int) -> list[dict[str, Any]]:
        if not path:
            return []
        try:
            return AdminClient(self._transport, self._token, quiet=True).items(f"{API}/{path}", most)
        except RefusedByGateway:
            return []

    def _ask(self, method: str, path: str, body: bytes = b"", if_match: str = "") -> tuple[int, bytes, str]:
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if if_match:
            headers["if-match"] = if_match
        return self._transport(method, path, body, headers)


def sure(question: str, yes: bool) -> None:
    """Ask before a destructive change; ends the command unless the answer is yes."""
    if not yes:
        typer.confirm(question, abort=True)


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="")
