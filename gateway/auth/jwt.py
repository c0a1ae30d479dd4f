"""Authenticates JWTs: joins the verifier with the issuers' keys, and reads keys anew when a token names an unknown one.

The checks of a token's form, signature and claims are `tenancy/jwt.py`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from domain import retry_after
from domain.faults import Fault, Kind
from domain.identity import Caller, ProjectId, TenantId
from gateway.auth.jwks import JwksWatch
from gateway.process.snapshots import IssuerState
from tenancy.jwt import JwtOutcome, Rejected, Tokens

CountToken = Callable[[str, JwtOutcome], None]
"""Called with (issuer, outcome) once per request with a JWT; the issuer is a configured one, or empty."""


class ProjectLookup(Protocol):
    """The part of a directory that authentication needs."""

    def for_tenant(self, tenant: TenantId, project: ProjectId, now_unix: float) -> object | None:
        """The project of a tenant; None where there is no such project."""
        ...


class HasDirectory(Protocol):
    """Holds the current directory."""

    @property
    def directory(self) -> ProjectLookup:
        """The current directory; it may change during any wait."""
        ...


class JwtVerifier:
    """Finds the caller of a JWT. One per worker, and one for the admin port.

    Args:
        watches: the keys of each issuer, by issuer.
    """

    def __init__(self, tokens: Tokens, watches: Mapping[str, JwksWatch], count: CountToken) -> None:
        self._tokens = tokens
        self._watches = watches
        self._count = count

    async def learn(self) -> None:
        """Read every issuer's keys once. An issuer that is away does not keep the worker from starting."""
        await asyncio.gather(*(watch.first() for watch in self._watches.values()))

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """The coroutines that have to run as long as the worker serves."""
        return [watch.run() for watch in self._watches.values()]

    def states(self) -> tuple[IssuerState, ...]:
        """The state of each issuer's keys, for operators."""
        return tuple(watch.state() for watch in self._watches.values())

    async def authenticate(self, token: str, now_unix: float, live: HasDirectory) -> Caller | None:
        """The caller of a token, or None: all refusals look the same. A token that was verified before is answered without a wait.

        Args:
            live: holds the directory; it is read after the token has been verified.

        Raises:
            Fault: IDENTITY_UNAVAILABLE, when its issuer's keys could never be read.
        """
        verified = self._tokens.remembered(token, now_unix)
        outcome = JwtOutcome.CACHED
        try:
            if verified is None:
                verified = await self._verified(token, now_unix)
                outcome = JwtOutcome.VERIFIED
            caller, issuer = verified
            if live.directory.for_tenant(caller.tenant, caller.project, now_unix) is None:
                raise Rejected(JwtOutcome.UNKNOWN_TENANT, issuer=issuer)
        except Rejected as error:
            self._count(error.issuer, error.outcome)
            if error.outcome is JwtOutcome.NO_KEYS:
                raise Fault(
                    Kind.IDENTITY_UNAVAILABLE,
                    "Tokens cannot be checked right now. Try again shortly.",
                    retry=retry_after.of_unread_keys(),
                    detail=str(error),
                ) from None
            return None
        self._count(issuer, outcome)
        return caller

    async def _verified(self, token: str, now_unix: float) -> tuple[Caller, str]:
        try:
            return self._tokens.verify(token, now_unix)
        except Rejected as error:
            if error.outcome not in (JwtOutcome.UNKNOWN_KEY, JwtOutcome.NO_KEYS):
                raise
            await self._watches[error.issuer].wanted()
        return self._tokens.verify(token, now_unix)
