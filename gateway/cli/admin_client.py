"""The command line's client of the admin port: requests, the token, and what to say when there is no answer.

The token comes from a file or from the environment and never from the command line, where every user of the machine could
read it.
"""

import http.client
import os
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import quote, urlsplit

import msgspec
import typer
from rich.console import Console

ADMIN: Final = "http://127.0.0.1:8081"
WITHIN_S: Final = 10.0
TOKEN_VARIABLE: Final = "TIDEGATE_ADMIN_TOKEN"

AdminUrl = Annotated[str, typer.Option("--admin", help="Where the gateway's admin port is.")]
TokenFile = Annotated[Path | None, typer.Option(help=f"A file that holds the admin token; default: the variable {TOKEN_VARIABLE}.")]

err = Console(stderr=True, highlight=False)


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
    """

    def __init__(self, admin_url: str, token: str | None = None) -> None:
        parts = urlsplit(admin_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            fail(f"--admin {admin_url!r} is no address; write http://host:port", code=2)
        self._url = admin_url
        self._parts = parts
        self._token = token

    def get(self, path: str) -> bytes:
        """The body of a 200."""
        status, body = self._ask("GET", path)
        if status != 200:
            fail(f"{self._url}{path} answers {status}; is that the admin port?")
        return body

    def post(self, path: str, value: Any = None) -> Any:
        """Send a change; what the admin port answers, decoded."""
        return self._change("POST", path, value)

    def delete(self, path: str) -> None:
        """Take something away."""
        self._change("DELETE", path, None)

    def _change(self, method: str, path: str, value: Any) -> Any:
        status, body = self._ask(method, path, b"" if value is None else msgspec.json.encode(value))
        try:
            answer = msgspec.json.decode(body) if body else None
        except msgspec.DecodeError:
            fail(f"{self._url} does not answer like the admin port of a gateway of this version")
        if 200 <= status < 300:
            return answer
        said = answer.get("error", {}).get("message") if isinstance(answer, dict) and isinstance(answer.get("error"), dict) else None
        said = str(said or f"{self._url}{path} answers {status}; is that the admin port?")
        err.print(said, markup=False, soft_wrap=True)
        raise Refused(said)

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        try:
            connection = kind(self._parts.hostname or "", self._parts.port, timeout=WITHIN_S)
            try:
                connection.request(method, path, body or None, headers)
                reply = connection.getresponse()
                return reply.status, reply.read()
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


def segment(text: str) -> str:
    """An id as one segment of a path."""
    return quote(text, safe="")


def fail(message: str, code: int = 1) -> NoReturn:
    """End the command with a sentence."""
    err.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(code)
