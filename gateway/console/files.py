"""The console's pages under `/console/`: static files of this package, read once at the start, and the routes that begin and end a session.

The answers carry a content security policy under which a page loads scripts, styles and data from this port only, and runs no script that
is written inside a page: a name or a prompt that holds markup stays text.
"""

import mimetypes
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

import msgspec
import structlog
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import RedirectResponse, Response

from domain.strict import Strict
from gateway.admin.access import Authenticator
from gateway.admin.problem import AdminProblem, error_reply
from gateway.console.provider_routes import ProviderAccess, provider_router
from gateway.console.session import FOREIGN, MAX_CREDENTIAL_CHARS, SessionSeal, cookie_for, own_request

ROOT: Final = "/console"
STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".html": "text/html; charset=utf-8"}

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
"""`no-cache` makes the browser ask whether a file is still the same, so that an upgrade shows at the next look."""

log = structlog.get_logger("tidegate.console")


class SignIn(Strict):
    """A credential of the admin API."""

    token: Annotated[str, Field(min_length=1, description="The bootstrap token, a key with a role, or an identity provider's token.")]


class StaticFile(msgspec.Struct, frozen=True):
    """One file as it is sent."""

    body: bytes
    content_type: str
    etag: str


@cache
def static_files(folder: Path = STATIC) -> Mapping[str, StaticFile]:
    """Every file of the console by its path below `/console/`; read once in a process and those forked from it."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            body = path.read_bytes()
            kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain; charset=utf-8"
            files[path.relative_to(folder).as_posix()] = StaticFile(body, kind, f'"{sha256(body).hexdigest()[:32]}"')
    return files


def console_router(authenticator: Authenticator, seal: SessionSeal, provider: ProviderAccess | None = None) -> APIRouter:
    """The routes of the console.

    Args:
        authenticator: checks the credential of a person who signs in.
        seal: makes the cookie of a session.
        provider: signs people in at an identity provider; None where none is configured.
    """
    files = static_files()
    router = APIRouter()
    offered = {"provider": None if provider is None else provider.flow.client.label}
    if provider is not None:
        router.include_router(provider_router(provider, authenticator, seal, HEADERS))

    @router.get(f"{ROOT}/session", include_in_schema=False)
    async def ways() -> Response:
        return Response(msgspec.json.encode(offered), 200, {**HEADERS, "cache-control": "no-store"}, "application/json")

    @router.api_route(ROOT, methods=["GET", "HEAD"], include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse(f"{ROOT}/", 308)

    @router.post(f"{ROOT}/session", include_in_schema=False)
    async def sign_in(request: Request, body: SignIn) -> Response:
        if not own_request(request.headers):
            return error_reply(403, FOREIGN, "foreign_request")
        token = body.token.strip()
        if len(token) > MAX_CREDENTIAL_CHARS or not token.isascii():
            message = f"A credential for the console has at most {MAX_CREDENTIAL_CHARS} ASCII characters. Use a key with a role instead."
            return error_reply(400, message, "invalid_value", param="token")
        address = request.client.host if request.client else ""
        try:
            principal = await authenticator.authenticate(f"Bearer {token}", "POST", request.url.path, address)
        except AdminProblem as problem:
            return error_reply(problem.status, str(problem), problem.code, problem.headers, problem.param)
        log.info("console.sign_in", actor=principal.actor, address=address)
        shown = {
            "actor": principal.actor,
            "roles": sorted(role.value for role in principal.roles),
            "tenant": principal.tenant,
        }
        cookie = cookie_for(seal.seal(token), secure=request.url.scheme == "https")
        headers = {"cache-control": "no-store", "set-cookie": cookie}
        return Response(msgspec.json.encode(shown), 200, headers, "application/json")

    @router.delete(f"{ROOT}/session", include_in_schema=False)
    async def sign_out(request: Request) -> Response:
        if not own_request(request.headers):
            return error_reply(403, FOREIGN, "foreign_request")
        return Response(status_code=204, headers={"set-cookie": cookie_for("", secure=request.url.scheme == "https")})

    @router.api_route(ROOT + "/{path:path}", methods=["GET", "HEAD"], include_in_schema=False)
    async def file(request: Request, path: str) -> Response:
        found = files.get(path or "index.html")
        if found is None:
            return error_reply(404, f"The console has no file {path[:100]!r}; it begins at {ROOT}/.", "unknown_url")
        headers = {**HEADERS, "etag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, 200, headers, found.content_type)

    return router
