"""Tokens: the verifier, the issuers' keys behind it, and what the two need of each other."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from domain.faults import Fault, Kind, Retry
from domain.identity import Caller, ProjectId, TenantId
from gateway.jwks_watch import RETRY_S, JwksWatch
from gateway.worker_state import IssuerState
from tenancy.jwt_claims import Outcome, Rejected
from tenancy.jwt_tokens import Tokens

CountToken = Callable[[str, Outcome], None]
"""Told of (issuer, outcome) once per request with a token; the issuer is one of ours or empty."""


class Projects(Protocol):
    """As much of a directory as the gate asks."""

    def for_tenant(self, tenant: TenantId, project: ProjectId, now_unix: float) -> object | None:
        """None where there is no such project."""
        ...


class HasDirectory(Protocol):
    """Where the directory in force is."""

    @property
    def directory(self) -> Projects:
        """It may be another one after any wait."""
        ...


class TokenGate:
    """Who a token stands for. One per worker, and one of the admin port.

    Args:
        watches: by issuer.
    """

    def __init__(self, tokens: Tokens, watches: Mapping[str, JwksWatch], count: CountToken) -> None:
        self._tokens = tokens
        self._watches = watches
        self._count = count

    async def learn(self) -> None:
        """Read every issuer's keys once. An issuer that is away does not keep the worker from starting."""
        await asyncio.gather(*(watch.first() for watch in self._watches.values()))

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What has to run as long as the worker serves."""
        return [watch.run() for watch in self._watches.values()]

    def states(self) -> tuple[IssuerState, ...]:
        """The issuers, for operators."""
        return tuple(watch.state() for watch in self._watches.values())

    async def authenticate(self, token: str, now_unix: float, live: HasDirectory) -> Caller | None:
        """The caller behind a token, or None: all refusals look the same. A token seen before waits for nothing.

        Args:
            live: the directory in force when the token has been verified.

        Raises:
            Fault: IDENTITY_UNAVAILABLE, when its issuer's keys could never be read.
        """
        found, outcome = self._tokens.remembered(token, now_unix), Outcome.CACHED
        try:
            if found is None:
                found, outcome = await self._verified(token, now_unix), Outcome.VERIFIED
            caller, issuer = found
            if live.directory.for_tenant(caller.tenant, caller.project, now_unix) is None:
                raise Rejected(Outcome.UNKNOWN_TENANT, issuer=issuer)
        except Rejected as error:
            self._count(error.issuer, error.outcome)
            if error.outcome is Outcome.NO_KEYS:
                raise Fault(
                    Kind.IDENTITY_UNAVAILABLE,
                    "Tokens cannot be checked right now. Try again shortly.",
                    retry=Retry(should=True, after_s=RETRY_S),
                    detail=str(error),
                ) from None
            return None
        self._count(issuer, outcome)
        return caller

    async def _verified(self, token: str, now_unix: float) -> tuple[Caller, str]:
        try:
            return self._tokens.verify(token, now_unix)
        except Rejected as error:
            if error.outcome not in (Outcome.UNKNOWN_KEY, Outcome.NO_KEYS):
                raise
            await self._watches[error.issuer].wanted()
        return self._tokens.verify(token, now_unix)
