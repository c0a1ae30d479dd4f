"""The guard before every route of the admin API: authentication, authorisation, and a body that is one small JSON object.

The guard runs before FastAPI reads the body, so that unauthorised callers cause no parsing.
"""

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any, Final

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from domain.faults import Fault
from gateway.admin.access import ROLE_TABLE
from gateway.admin.call import MAX_KEY_CHARS, AdminCall, Parts
from gateway.admin.describe import NUL
from gateway.admin.problem import AdminProblem
from gateway.http.openai.json_guard import parse_object
from tenancy.rights import Role

MAX_BODY_BYTES: Final = 64 * 1024
MAX_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Largest request to be explained: as much as the data port takes by default."""
MAX_ROLLOUT_BYTES: Final = 1024 * 1024
"""Largest rollout document: it may name a thousand tenants and a thousand models."""
MAX_POLICIES_BYTES: Final = 12 * 1024 * 1024
"""Largest policies as JSON: their text (`gateway.sync.policy_copy.MAX_CHARS`), plus the JSON quoting. A simulation's trace is
as long (`gateway.process.simulation_job.MAX_TRACE_CHARS`)."""
MAX_TRIAL_BYTES: Final = 1024 * 1024
"""Largest text that guard rules are tried on, with the rules: as much as `POST /v1/guard` takes."""
LONGER_BODIES: Final = {
    "/requests/explanation": MAX_REQUEST_BYTES,
    "/policies": MAX_POLICIES_BYTES,
    "/policies/check": MAX_POLICIES_BYTES,
    "/rollouts": MAX_ROLLOUT_BYTES,
    "/simulations": MAX_POLICIES_BYTES,
    "/guards/test": MAX_TRIAL_BYTES,
}
MAX_HEADER_CHARS: Final = 1024


class GuardedRoute(APIRoute):
    """A route that only answers callers whom `rbac.ROLE_TABLE` allows."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]  # FastAPI says Coroutine
        """FastAPI's own handler, behind the guard."""
        inner = super().get_route_handler()
        method = min(self.methods or {""})  # each route has one: `api.rows_of` says so
        allowed = ROLE_TABLE.get((method, self.path), frozenset[Role]())
        takes_body = self.body_field is not None

        async def guarded(request: Request) -> Response:
            parts: Parts = request.app.state.parts
            address = request.client.host if request.client else ""
            authorization = request.headers.get("authorization", "")
            principal = await parts.authenticator.authenticate(authorization, method, request.url.path, address)
            roles = principal.roles & allowed
            if not roles:
                raise AdminProblem(403, "forbidden", _refusal(principal.roles, allowed))
            _check_text("path", request.path_params)
            for name, value in request.query_params.multi_items():
                _check_text("query", {name: value})
            body = await _body(request, takes_body, LONGER_BODIES.get(self.path, MAX_BODY_BYTES))
            request.state.call = AdminCall(
                parts,
                principal,
                roles,
                address,
                _digest(method, request, body),
                _header(request, "idempotency-key", MAX_KEY_CHARS) if method == "POST" else None,
                _header(request, "if-match", MAX_HEADER_CHARS),
            )
            return await inner(Request(request.scope, _replay(body)))

        return guarded


def _refusal(roles: frozenset[Role], allowed: frozenset[Role]) -> str:
    names = ", ".join(sorted(role.value for role in roles))
    return f"This needs one of the roles {', '.join(role.value for role in Role if role in allowed)}; yours: {names}."


def _header(request: Request, name: str, longest: int) -> str | None:
    value = request.headers.get(name)
    if value is None:
        return None
    if not value.strip() or len(value) > longest or not value.isascii() or not value.isprintable():
        raise AdminProblem(400, "invalid_value", f"{name} holds 1 to {longest} printable ASCII characters.", name)
    return value.strip()


def _digest(method: str, request: Request, body: bytes) -> bytes:
    head = f"{method} {request.url.path}?{request.url.query}\n".encode("utf-8", "replace")
    return sha256(head + body).digest()


async def _body(request: Request, takes_body: bool, max_bytes: int) -> bytes:
    """The complete body: at most `most` bytes of unambiguous JSON; empty where the route takes none. Raises Problem."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_bytes:
                raise AdminProblem(413, "too_large", f"The body is over {max_bytes} bytes.")
    except ClientDisconnect:
        raise AdminProblem(400, "incomplete", "The body did not come whole.") from None
    if not takes_body:
        if body:
            raise AdminProblem(400, "unexpected_body", "This request takes no body.")
        return b""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise AdminProblem(415, "unsupported_media_type", "Send JSON with content-type: application/json.", "content-type")
    try:
        document = parse_object(body)
    except Fault as fault:
        raise AdminProblem(400, "invalid_json", str(fault)) from None
    if b"\\u0000" in body:  # JSON has no other way to write it
        _check_text("body", document)
    return body


def _check_text(where: str, value: Any, name: str = "") -> None:
    """Refuse a NUL character anywhere in the value, because Postgres stores none. Raises Problem that names the field."""
    if isinstance(value, str) and NUL in value:
        raise AdminProblem(400, "invalid_value", f"{name or where}: holds a NUL character, which no text may have.", name or None)
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_text(where, key, name)
            _check_text(where, inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            _check_text(where, inner, f"{name}.{at}")


def _replay(body: bytes) -> Callable[[], Awaitable[Any]]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
