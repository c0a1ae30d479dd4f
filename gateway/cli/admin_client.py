"""The command line's HTTP client of the admin port: requests, the token, and the sentences for failures.

The token comes from a file or from the environment and never from the command line, which every user of the machine can read.
"""

import http.client
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import typer

from gateway.cli.printing import err, fail

API: Final = "/admin/v1"
"""Path prefix of the admin API on the admin port."""
ADMIN: Final = "http://127.0.0.1:8081"
WITHIN_S: Final = 15.0
"""Longest wait for an answer; longer than a change may wait for the database."""
PAGE: Final = 500
MAX_ITEMS: Final = 100_000
"""Most items read of one list; larger lists are for scripts that use cursors."""
TOKEN_VARIABLE: Final = "TIDEGATE_ADMIN_TOKEN"

AdminUrl = Annotated[str, typer.Option("--admin", help="Where the gateway's admin port is.")]
OverApi = Annotated[str | None, typer.Option("--admin", help="Over the admin API there, and not straight on the store of --config.")]
TokenFile = Annotated[Path | None, typer.Option(help=f"A file that holds the admin token or a key with a role; default: {TOKEN_VARIABLE}.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class RefusedByGateway(typer.Exit):
    """The gateway refused a request. The command ends with its message, already printed unless the client is quiet."""

    def __init__(self, message: str) -> None:
        super().__init__(1)
        self.message = message


class AdminClient:
    """A client of one admin port. Every failure prints a sentence and ends the command (`typer.Exit`).

    Args:
        admin_url: `http(s)://host:port`.
        token: needed for the admin API; None for the public routes alone.
        quiet: refusals are raised without being printed.
    """

    def __init__(self, admin_url: str, token: str | None = None, *, quiet: bool = False) -> None:
        parts = urlsplit(admin_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"--admin {admin_url!r} is no address; write http://host:port", code=2)
        self._url = admin_url
        self._parts = parts
        self._token = token
        self._quiet = quiet
        self._etag = ""

    def get(self, path: str) -> bytes:
        """The body of a 200; another status ends the command."""
        status, body, _ = self._ask("GET", path)
        if status != 200:
            fail(f"{self._url}{path} answers {status}; is that the admin port?")
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
        return None if status == 404 else self._answer(path, status, body, etag)

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
        return self._answer(path, *self._ask(method, path, b"" if value is None else msgspec.json.encode(value), if_match))

    def _answer(self, path: str, status: int, body: bytes, etag: str) -> Any:
        self._etag = etag
        try:
            answer = msgspec.json.decode(body) if body else None
        except msgspec.DecodeError:
            fail(f"{self._url} does not answer like the admin port of a gateway of this version")
        if 200 <= status < 300:
            return answer
        message = answer.get("error", {}).get("message") if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else None
        message = str(message or f"{self._url}{path} answers {status}; is that the admin port?")
        if not self._quiet:
            err.print(message, markup=False, soft_wrap=True)
        raise RefusedByGateway(message)

    def _ask(self, method: str, path: str, body: bytes = b"", if_match: str = "") -> tuple[int, bytes, str]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        if if_match:
            headers["if-match"] = if_match
        try:
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=WITHIN_S)
            try:
                connection.request(method, path, body or None, headers)
                reply = connection.getresponse()
                return reply.status, reply.read(), reply.headers.get("etag", "")
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            fail(f"no gateway answers at {self._url} ({type(error).__name__}); start one, or name its admin port with --admin")


def token_from(file: Path | None) -> str:
    """The admin token, from a file or the environment; ends the command when there is none that is usable."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not token:
            fail(f"no admin token: set {TOKEN_VARIABLE}, or name a file that holds it with --token-file", code=2)
    else:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"--token-file {file} cannot be read ({type(error).__name__})", code=2)
    if not token.isascii() or not token.isprintable():
        fail("the admin token has characters that no token has; look at the file or variable it comes from", code=2)
    return token


def api(admin: str, token_file: Path | None) -> AdminClient:
    """A client of the admin API, with the token that every one of its routes requires."""
    return AdminClient(admin, token_from(token_file))


def sure(question: str, yes: bool) -> None:
    """Ask before a destructive change; ends the command unless the answer is yes."""
    if not yes:
        typer.confirm(question, abort=True)


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="")
