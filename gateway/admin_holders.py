"""Looks up the holder of a credential on the admin port: a key with roles, or a JWT whose issuer gives roles."""

from collections.abc import Callable
from typing import Final

from domain.faults import Fault
from domain.identity import Caller
from gateway.http.admin_api.principal import Principal
from gateway.http.admin_api.problem import RETRY, Problem
from gateway.tokens import TokenGate
from tenancy.directory import Directory
from tenancy.jwt import looks_like_token
from tenancy.rights import KeyScope, Role

AWAY: Final = "The database has not answered for a minute, so nobody knows which keys were revoked. Try again; the bootstrap token works."
NO_ISSUER: Final = "Tokens cannot be checked right now. Try again shortly."


class Holders:
    """Looks keys and tokens up in the current directory; also a `gateway.directory_watch.Follower`.

    Args:
        directory: the directory to begin with.
        believes: whether the directory is fresh enough to authenticate admins (`DirectoryWatch.believes_admins`).
    """

    def __init__(self, directory: Directory, believes: Callable[[], bool]) -> None:
        self.directory = directory
        self.tokens: TokenGate | None = None
        """Set once issuers were asked; until then a JWT is looked up as a key and not found."""
        self._believes = believes

    async def __call__(self, text: str, now_unix: float) -> Principal | None:
        """The holder, or None for an unknown credential and for one without a role.

        Raises:
            Problem: 503 for every credential once the database has not answered for a minute, since keys may have been revoked in the
                meantime; and 503 for a token whose issuer's keys could never be read.
        """
        if not self._believes():
            raise Problem(503, "store_unavailable", AWAY, headers=RETRY)
        if self.tokens is not None and looks_like_token(text):
            try:
                return _with_roles(await self.tokens.authenticate(text, now_unix, self))
            except Fault:
                raise Problem(503, "identity_unavailable", NO_ISSUER, headers=RETRY) from None
        caller = self.directory.keys.authenticate(text, now_unix, KeyScope.ADMIN)
        if caller is None:
            return None
        return Principal(f"key {caller.key_id}", self.directory.grant(caller.key_id, now_unix).holder.roles, caller.tenant)


def _with_roles(caller: Caller | None) -> Principal | None:
    if caller is None or not caller.roles:
        return None
    return Principal(caller.key_id, frozenset(map(Role, caller.roles)), caller.tenant)
