"""The command line's client of the admin port: requests, the token, and what to say when there is no answer.

The token comes from a file or from the environment and never from the command line, where every user of the machine could
read it.
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
"""Where the admin API lies on the admin port."""
ADMIN: Final = "http://127.0.0.1:8081"
WITHIN_S: Final = 15.0
"""Longer than a change may wait for the database."""
PAGE: Final = 500
MAX_ITEMS: Final = 100_000
"""Items of one list that are read; what is larger is for a script with cursors."""
TOKEN_VARIABLE: Final = "TIDEGATE_ADMIN_TOKEN"

AdminUrl = Annotated[str, typer.Option("--admin", help="Where the gateway's admin port is.")]
OverApi = Annotated[str | None, typer.Option("--admin", help="Over the admin API there, and not straight on the store of --config.")]
TokenFile = Annotated[Path | None, typer.Option(help=f"A file that holds the admin token or a key with a role; default: {TOKEN_VARIABLE}.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Refused(typer.Exit):
    """The gateway took no change; the command ends with what it said, which is printed already, unless somebody knows better."""

    def __init__(self, said: str) -> None:
        super().__init__(1)
        self.said = said


class AdminClient:
    """Talks to one admin port. Every failure ends the command with a sentence; nothing is raised.

    Args:
        admin_url: `http(s)://host:port`.
        token: for changes; None to look only.
        quiet: refusals are raised and not printed.
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
        """The body of a 200."""
        status, body, _ = self._ask("GET", path)
        if status != 200:
            fail(f"{self._url}{path} answers {status}; is that the admin port?")
        return body

    def post(self, path: str, value: Any = None) -> Any:
        """Send a change; what the admin port answers, decoded."""
        return self._change("POST", path, value)

    def delete(self, path: str) -> None:
        """Take something away."""
        self._change("DELETE", path, None)

    def read(self, path: str) -> Any:
        """What a route of the admin API shows, decoded."""
        return self._change("GET", path, None)

    def find(self, path: str) -> Any:
        """The same, or None when there is no such thing."""
        status, body, etag = self._ask("GET", path)
        return None if status == 404 else self._answer(path, status, body, etag)

    def items(self, path: str, most: int = MAX_ITEMS) -> list[dict[str, Any]]:
        """A whole list, page by page, up to `most`."""
        joint = "&" if "?" in path else "?"
        found: list[dict[str, Any]] = []
        cursor = ""
        while len(found) < most:
            page = self.read(f"{path}{joint}limit={min(PAGE, most - len(found))}{cursor}")
            found += page["items"]
            if not page["next_cursor"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        return found

    def rewrite(self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        """Read something, change it and put it back, unless somebody else changed it meanwhile."""
        seen = self.read(path)
        return self._change("PUT", path, change(seen), self._etag)

    def put(self, path: str, value: Any) -> Any:
        """Set something, whether it is there or not: what is there is replaced as it was seen just now."""
        status, _, etag = self._ask("GET", path)
        return self._change("PUT", path, value, etag if status == 200 else "")

    def put_new(self, path: str, value: Any) -> Any:
        """Set something that is not there; refused when it came to be there meanwhile."""
        return self._change("PUT", path, value)

    def remove(self, path: str) -> None:
        """Take something away as it was seen just now."""
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
        said = answer.get("error", {}).get("message") if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else None
        said = str(said or f"{self._url}{path} answers {status}; is that the admin port?")
        if not self._quiet:
            err.print(said, markup=False, soft_wrap=True)
        raise Refused(said)

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
    """The admin token, from a file or the environment."""
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
    """A client of the admin API, with the token that every route of it asks for."""
    return AdminClient(admin, token_from(token_file))


def sure(question: str, yes: bool) -> None:
    """Ask before something is destroyed; ends the command unless the answer is yes."""
    if not yes:
        typer.confirm(question, abort=True)


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="")
