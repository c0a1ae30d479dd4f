"""The first step of `gateway/lifecycle.py`: the caller of the API key or token, and the caller's rights and limits."""

from domain.faults import Fault, Kind
from domain.identity import Caller
from gateway.deps import Deps
from gateway.http.edge.exchange import Exchange
from gateway.story import Story
from tenancy.grant import Grant
from tenancy.jwt import looks_like_token
from tenancy.key_networks import may_come_from


async def authenticate(exchange: Exchange, story: Story, deps: Deps) -> Caller:
    """The caller of the API key in `Authorization: Bearer`, `x-api-key` or `api-key`; where issuers are configured, the header may carry a
    token (JWT) instead. Suspends only for a token signed with a key that is not known yet.

    Of several headers one has to be valid: SDKs and proxies send a placeholder in the header that they are not told to use. Two that are
    valid must be of the same tenant, or nobody could say who pays.

    Raises:
        Fault: KEY_MISSING; KEY_INVALID, with the same message for every defect of a key or token; IDENTITY_UNAVAILABLE when the keys of
            a token's issuer could never be read; NOT_PERMITTED when the key may not be used from the caller's address.
    """
    headers = exchange.head.headers
    authorization = headers.get(b"authorization")
    token = b""
    if authorization is not None:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            token = b""
    caller: Caller | None = None
    if b"x-api-key" in headers or b"api-key" in headers:
        caller = await _caller_of_any((token, headers.get(b"x-api-key", b""), headers.get(b"api-key", b"")), deps)
    elif not token:
        if exchange.own is None:
            raise _missing_key()
        caller = _still_valid(exchange.own.caller, deps)
        story.asked.price_percent = exchange.own.price_percent
    else:
        text, now_unix = token.decode("latin-1").strip(), deps.wall()
        if deps.tokens is not None and looks_like_token(text):
            caller = await deps.tokens.authenticate(text, now_unix, deps.live)
        else:
            caller = deps.live.directory.keys.authenticate(text, now_unix)
    if caller is None:
        raise _invalid_key()
    story.asked.caller = caller
    if caller.networks and not may_come_from(caller.networks, exchange.client):
        seen = exchange.client or "a connection without an address"
        raise Fault(
            Kind.NOT_PERMITTED, f"This key may not be used from {seen}. Send the request from a network that the key is allowed for."
        )
    return caller


def _still_valid(caller: Caller, deps: Deps) -> Caller | None:
    """The caller of a request that the gateway makes; None once its key, or the project of its token, is no longer valid."""
    directory, now_unix = deps.live.directory, deps.wall()
    if caller.by_token:
        return caller if directory.for_tenant(caller.tenant, caller.project, now_unix) is not None else None
    return caller if directory.keys.is_valid(caller.key_id, now_unix) else None


async def _caller_of_any(credentials: tuple[bytes, ...], deps: Deps) -> Caller | None:
    """The caller of the first valid credential; None where none is valid, or two are of different tenants."""
    texts = [text for credential in dict.fromkeys(credentials) if (text := credential.decode("latin-1").strip())]
    if not texts:
        raise _missing_key()
    found: Caller | None = None
    unread: Fault | None = None
    for text in texts:
        if deps.tokens is not None and looks_like_token(text):
            try:
                caller = await deps.tokens.authenticate(text, deps.wall(), deps.live)
            except Fault as fault:  # its issuer cannot be asked; another credential may be valid
                caller, unread = None, fault
        else:
            caller = deps.live.directory.keys.authenticate(text, deps.wall())
        if found is not None and caller is not None and caller.tenant != found.tenant:
            return None
        found = found or caller
    if found is None and unread is not None:
        raise unread
    return found


def _missing_key() -> Fault:
    headers = "'Authorization: Bearer KEY', 'x-api-key: KEY' or 'api-key: KEY'"
    return Fault(Kind.KEY_MISSING, f"You did not provide an API key. Send it as {headers}.")


def _invalid_key() -> Fault:
    return Fault(Kind.KEY_INVALID, "The API key is not valid. Check it, or ask for a new one.")


def grant_of(caller: Caller, deps: Deps) -> Grant:
    """The caller's rights and limits.

    Raises:
        Fault: KEY_INVALID when the key, or the project of a token, was removed after it was authenticated.
    """
    directory, now_unix = deps.live.directory, deps.wall()
    if now_unix < directory.until_unix and (compiled := directory.grants.get(caller.key_id)) is not None:
        return compiled
    if caller.by_token:
        grant = directory.for_tenant(caller.tenant, caller.project, now_unix)
        if grant is None:
            raise _invalid_key()
        return grant
    try:
        return directory.grant(caller.key_id, now_unix)
    except KeyError:
        raise _invalid_key() from None
