"""The admin port's routes that change the fleet: who may ask, and what is asked. What may be done is `gateway/fleet/registry.py`'s."""

import hmac
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final, NoReturn

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from domain.membership import Owner
from gateway.fleet.registry import Refusal, Registry
from gateway.http.admin_errors import error_reply

MAX_BODY_BYTES: Final = 64 * 1024

audit = structlog.get_logger("tidegate.audit", audit=True)

Seen = Callable[[], Awaitable[Mapping[str, Owner]]]
"""The backends workers know, with their owners."""

HOW_TO_ENABLE: Final = (
    "Changing the fleet is switched off: set secrets.admin_token to {file: path} or {env: NAME} with a token of at least 24 "
    "characters, and restart the gateway (SIGHUP)."
)

UNTIL: Final = {
    True: "Every gateway on this database drains it, until it is resumed or removed.",
    False: "All workers of this gateway drain it, until it is resumed or the gateway is restarted; other gateways are not told.",
}


def add_backend_routes(app: FastAPI, registry: Registry, token: str | None, seen: Seen) -> None:
    """Add the routes; without a token each of them answers 403."""

    async def register(request: Request) -> Response:
        member = await registry.register(await _body(request), await seen())
        shown = {"pool": member.pool, "id": member.id, "url": member.url, "source": member.owner, "state": "unknown"}
        return JSONResponse(shown, 201)

    async def drain(request: Request) -> Response:
        backend_id = request.path_params["backend_id"]
        owner, grace_s = await registry.drain(backend_id, request.query_params.get("grace_s"), await seen())
        shown = {"id": backend_id, "state": "draining", "grace_s": grace_s, "source": owner, "message": UNTIL[owner == "registered"]}
        return JSONResponse(shown, 202)

    async def resume(request: Request) -> Response:
        backend_id = request.path_params["backend_id"]
        owner = await registry.resume(backend_id, await seen())
        return JSONResponse({"id": backend_id, "state": "unknown", "source": owner})

    async def remove(request: Request) -> Response:
        await registry.remove(request.path_params["backend_id"], await seen())
        return Response(status_code=204)

    digest = None if token is None else sha256(token.encode()).digest()
    for method, path, answer in (
        ("POST", "/backends", register),
        ("POST", "/backends/{backend_id}/drain", drain),
        ("POST", "/backends/{backend_id}/resume", resume),
        ("DELETE", "/backends/{backend_id}", remove),
    ):
        app.add_api_route(path, _guarded(answer, digest), methods=[method], response_model=None)


def _guarded(answer: Callable[[Request], Awaitable[Response]], digest: bytes | None) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            _admit(request, digest)
            return await answer(request)
        except Refusal as refusal:
            headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
            return error_reply(refusal.status, str(refusal), refusal.code, headers)

    return guarded


def _admit(request: Request, digest: bytes | None) -> None:
    """Raises Refusal unless the request carries the token. Digests are compared, so that neither bytes nor length tell by time."""
    if digest is None:
        raise Refusal(403, "admin_writes_disabled", HOW_TO_ENABLE)
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(sha256(given.strip().encode("latin-1")).digest(), digest):
        audit.warning("refused: no valid admin token", method=request.method, path=request.url.path[:200])
        raise Refusal(401, "invalid_admin_token", "The admin token is missing or wrong. Send it as 'Authorization: Bearer TOKEN'.")


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            _too_large()
    return body


def _too_large() -> NoReturn:
    raise Refusal(413, "too_large", f"The body is over {MAX_BODY_BYTES} bytes.")
