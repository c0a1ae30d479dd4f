"""The routes of a sign-in at an identity provider: the way there, the way back, and the page that says why a sign-in failed.

A browser opens both by itself, so their answers are redirects and pages without a script. The cookie of the way is `SameSite=Lax`, because
the browser comes back from the provider's site; it gives no access to anything.
"""

from collections.abc import Awaitable, Callable, Mapping
from html import escape
from typing import Final

import msgspec
import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.admin.access import Authenticator
from gateway.admin.problem import AdminProblem
from gateway.config.addresses import CALLBACK
from gateway.console.oidc import COOKIE, SIGN_IN_S, PersonsToken, ProviderSignIn, SignInRefused
from gateway.console.session import MAX_CREDENTIAL_CHARS, SessionSeal, cookie_for, session_cookie

BEGIN: Final = "/console/sign-in"
Known = Callable[[str], Awaitable[bool]]
"""Whether a token is valid, whatever roles it has. Raises AdminProblem."""

NO_ROLE: Final = (
    "You are signed in at the identity provider, but you have no role here. Ask an administrator for a group that auth.jwt maps to a role."
)
NOT_TAKEN: Final = (
    "The gateway does not accept the token that the identity provider gave. The reason is in the log of the admin port at level debug; an "
    "operator compares auth.jwt with the token's audience, times and claims, and looks whether its tenant exists."
)

log = structlog.get_logger("tidegate.console")

PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Not signed in · Tidegate</title>
<link rel="icon" href="/console/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/console/style.css">
</head>
<body>
<main class="sign-in"><section class="panel">
<div class="brand"><img src="/console/icon.svg" alt=""> Tidegate</div>
<h1>Not signed in</h1>
<p class="banner bad" role="alert">{message}</p>
<p><a href="{console}">Back to the sign-in page</a></p>
</section></main>
</body>
</html>
"""


class ProviderAccess(msgspec.Struct, frozen=True):
    """Signing in at an identity provider."""

    flow: ProviderSignIn
    known: Known


def provider_router(provider: ProviderAccess, authenticator: Authenticator, seal: SessionSeal, headers: Mapping[str, str]) -> APIRouter:
    """The two routes of the flow.

    Args:
        authenticator: checks the provider's token as it checks every credential.
        seal: makes the cookie of a session.
        headers: of every answer.
    """
    flow = provider.flow
    router = APIRouter()
    private = {**headers, "cache-control": "no-store"}
    secure = flow.client.secure

    def failed(request: Request, refusal: SignInRefused, *, over: bool) -> Response:
        log.warning("console.sign_in_refused", reason=refusal.reason, issuer=flow.client.issuer, address=_address(request))
        # the console is where the sign-in would have ended, also for those who came by another name of this host
        page = PAGE.format(message=escape(str(refusal)), console=escape(flow.client.redirect_url.removesuffix("callback")))
        response = Response(page, refusal.status, private, "text/html; charset=utf-8")
        if over:
            response.headers.append("set-cookie", _cookie("", secure=secure))
        return response

    @router.get(BEGIN, include_in_schema=False)
    async def begin(request: Request) -> Response:
        try:
            where, cookie = await flow.begin(request.headers.get("host", ""), afresh="afresh" in request.query_params)
        except SignInRefused as refusal:
            return failed(request, refusal, over=False)
        return Response(status_code=303, headers={**private, "location": where, "set-cookie": _cookie(cookie, secure=secure)})

    @router.get(CALLBACK, include_in_schema=False)
    async def back(request: Request) -> Response:
        try:
            credential = await flow.finish(request.query_params, session_cookie(request.headers, COOKIE))
            actor = await _checked(credential, request)
        except SignInRefused as refusal:
            return failed(request, refusal, over=True)
        log.info("console.sign_in", actor=actor, issuer=flow.client.issuer, address=_address(request))
        length_s = seal.length_s(credential.until_unix)
        session = cookie_for(seal.seal(credential.token, credential.until_unix), secure=secure, length_s=length_s)
        response = Response(status_code=303, headers={**private, "location": "/console/", "set-cookie": session})
        response.headers.append("set-cookie", _cookie("", secure=secure))
        return response

    async def _checked(credential: PersonsToken, request: Request) -> str:
        """The actor of a token. Raises SignInRefused."""
        token = credential.token
        if len(token) > MAX_CREDENTIAL_CHARS:
            message = (
                f"The provider's token has {len(token)} characters, and a session holds {MAX_CREDENTIAL_CHARS}. An operator has to make "
                "the provider put fewer claims into it."
            )
            raise SignInRefused(403, "token_length", message)
        try:
            principal = await authenticator.authenticate(f"Bearer {token}", "GET", CALLBACK, _address(request))
        except AdminProblem as problem:
            if problem.status != 401:
                raise SignInRefused(problem.status, problem.code, str(problem)) from None
            if await provider.known(token):
                raise SignInRefused(403, "no_role", NO_ROLE) from None
            raise SignInRefused(403, "token_refused", NOT_TAKEN) from None
        return principal.actor

    return router


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _cookie(value: str, *, secure: bool) -> str:
    age_s = int(SIGN_IN_S) if value else 0
    return f"{COOKIE}={value}; Path=/console/; Max-Age={age_s}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
