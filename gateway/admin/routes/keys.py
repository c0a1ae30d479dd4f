"""API keys. A key's secret appears in the answer that makes it, and nowhere else.

A caller who may change a key can come to hold it, so he must be allowed to grant every role that the key has. Tags decide which of the
operators' rules apply to a key, so a tenant-admin sets only tags whose names begin with `own.`.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from domain.identity import KeyId, ProjectId, TenantId
from gateway.admin.access import ADMINS, audit, may_grant
from gateway.admin.call import AdminCall, Done, Entropy, Transactions, answer
from gateway.admin.describe import (
    CHANGE_ERRORS,
    POST_ERRORS,
    READ_ERRORS,
    Asking,
    Changing,
    KeyBody,
    KeyMade,
    KeyShown,
    NewKey,
    PageQuery,
    Posting,
    Rotation,
    decode_cursor,
    key_shown,
    page_of,
)
from gateway.admin.guard import GuardedRoute
from gateway.admin.problem import RETRY, AdminProblem, etag_of, not_found
from gateway.admin.routes.tenants import TenantName
from gateway.sync.revocations import PendingRevocation, PendingRevocations, TooManyPending
from tenancy.audit import shadow
from tenancy.directory_ports import DirectoryChange, NotFound, room_for_key
from tenancy.journal import JournalAway
from tenancy.key_networks import BadNetworks, Networks, key_networks_of
from tenancy.keys import OWN_TAG, CannotRotate, KeyRecord, Tags, changed_reserved_tags, digest_of, parse, revoked, rotated, tags_of
from tenancy.rights import Role

router = APIRouter(route_class=GuardedRoute, tags=["Keys"])

KeyName = Annotated[str, Path(max_length=10, description="The public part of the key.")]


class Revoked(BaseModel):
    """A key that was revoked."""

    id: str
    tenant: str
    pending: bool = Field(description="Whether the database is away, so that only this gateway knows of the revocation yet.")


class KeyPage(BaseModel):
    """Keys by id."""

    items: list[KeyShown]
    next_cursor: str | None


@router.get("/tenants/{tenant}/keys", response_model=KeyPage, responses=READ_ERRORS, summary="List a tenant's keys")
async def list_all(call: Asking, tenant: TenantName, query: Annotated[PageQuery, Query()]) -> Response:
    """Show the keys of a tenant, without secrets."""
    after = decode_cursor(query.cursor, str) or ""
    owner = call.own(tenant)
    async with call.parts.reading() as directory:
        await directory.tenants.get(call.tenant, owner)
        records = await directory.keys.page(owner, after, query.limit + 1)
    return answer(200, page_of(records, query.limit, key_shown, lambda record: record.id))


@router.post("/tenants/{tenant}/keys", status_code=201, response_model=KeyMade, responses=POST_ERRORS, summary="Make a key")
async def create(call: Posting, tenant: TenantName, body: NewKey) -> Response:
    """Make a key; its text is in this answer and nowhere else."""

    async def work(books: Transactions, entropy: Entropy) -> Done:
        owner = call.own(tenant)
        roles = body.roles_wanted()
        _check_roles(call, roles)
        _check_tags(call, (), tags_of(body.tags))
        _check_use(body)
        await _check_project(call, books.directory, owner, body.project)
        key_id = call.parts.id_of(entropy)
        text = call.parts.text_of(key_id, entropy)
        record = KeyRecord(
            id=key_id,
            tenant=owner,
            project=ProjectId(body.project),
            kid=call.parts.pepper.kid,
            digests=(_digest(call, text),),
            label=body.label,
            created_unix=call.parts.wall(),
            expires_unix=body.expires_unix,
            disabled=body.disabled,
            scopes=body.scopes(),
            roles=roles,
            rights=body.rights.rights(),
            tags=tags_of(body.tags),
            networks=_networks(body),
        )
        await room_for_key(books.directory, owner, call.parts.bounds)
        created = await books.directory.keys.create(owner, record)
        return Done(201, "key.create", _target(created), key_shown(created), tenant=tenant, after=_audited(call, created), secret=text)

    return await call.change(work)


@router.get("/tenants/{tenant}/keys/{key_id}", response_model=KeyShown, responses=READ_ERRORS, summary="Show a key")
async def get(call: Asking, tenant: TenantName, key_id: KeyName) -> Response:
    """Show one key without its secret, with its ETag."""
    async with call.parts.reading() as directory:
        shown = key_shown(await _key(directory, call.own(tenant), key_id))
    return answer(200, shown, etag_of(shown))


@router.put("/tenants/{tenant}/keys/{key_id}", response_model=KeyShown, responses=CHANGE_ERRORS, summary="Change a key")
async def put(call: Changing, tenant: TenantName, key_id: KeyName, body: KeyBody) -> Response:
    """Replace what is said of a key; disable or enable it."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        owner = call.own(tenant)
        record = await _key(books.directory, owner, key_id)
        call.check_match(key_shown(record))
        _check_roles(call, record.roles | body.roles_wanted())
        _check_tags(call, record.tags, tags_of(body.tags))
        _check_use(body)
        changed = msgspec.structs.replace(
            record,
            label=body.label,
            disabled=body.disabled,
            expires_unix=body.expires_unix,
            scopes=body.scopes(),
            roles=body.roles_wanted(),
            rights=body.rights.rights(),
            tags=tags_of(body.tags),
            networks=_networks(body),
        )
        updated = await books.directory.keys.update(owner, changed)
        return _changed(call, "key.change", record, updated)

    return await call.change(work)


@router.post("/tenants/{tenant}/keys/{key_id}/rotate", response_model=KeyMade, responses=POST_ERRORS, summary="Give a key a new secret")
async def rotate(call: Posting, tenant: TenantName, key_id: KeyName, body: Rotation) -> Response:
    """Give a key a new secret; the old one works for the overlap."""

    async def work(books: Transactions, entropy: Entropy) -> Done:
        owner = call.own(tenant)
        record = await _key(books.directory, owner, key_id)
        _check_roles(call, record.roles)
        text = call.parts.text_of(record.id, entropy)
        try:
            wish = rotated(record, call.parts.pepper.kid, _digest(call, text), call.parts.wall(), body.overlap_s)
        except CannotRotate as error:
            raise AdminProblem(409, "cannot_rotate", f"The {error}.") from None
        updated = await books.directory.keys.update(owner, wish)
        return _changed(call, "key.rotate", record, updated, secret=text)

    return await call.change(work)


@router.post("/tenants/{tenant}/keys/{key_id}/revoke", response_model=KeyShown, responses=POST_ERRORS, summary="Revoke a key")
async def revoke(call: Posting, tenant: TenantName, key_id: KeyName) -> Response:
    """Revoke a key for good; every gateway on the database refuses it within 5 s."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        owner = call.own(tenant)
        record = await _key(books.directory, owner, key_id)
        _check_roles(call, record.roles)
        updated = await books.directory.keys.update(owner, revoked(record, call.parts.wall()))
        return _changed(call, "key.revoke", record, updated)

    return await call.change(work)


@router.post("/keys/{key_id}/revoke", response_model=Revoked, responses=POST_ERRORS, summary="Revoke a key, also without the database")
async def revoke_by_id(call: Posting, key_id: KeyName) -> Response:
    """Revoke a key for good by its id alone. While the database is away this gateway refuses the key within 5 s, and writes the revocation
    down when the database is there again (202, `pending`); other gateways have to be told one by one until then."""

    async def work(books: Transactions, _entropy: Entropy) -> Done:
        record = await books.directory.keys.get(call.tenant, KeyId(key_id))
        _check_roles(call, record.roles)
        updated = await books.directory.keys.update(record.tenant, revoked(record, call.parts.wall()))
        done = _changed(call, "key.revoke", record, updated)
        return msgspec.structs.replace(done, shown=_revocation(record, pending=False))

    try:
        return await call.change(work)
    except JournalAway:
        if call.parts.pending is None:
            raise
        return await _revoke_pending(call, call.parts.pending, KeyId(key_id))


async def _revoke_pending(call: AdminCall, pending: PendingRevocations, key_id: KeyId) -> Response:
    """Keep the revocation on this gateway until the database takes it."""
    record = call.parts.known_key(key_id)
    if record is None or (call.tenant is not None and record.tenant != call.tenant):
        raise not_found()
    _check_roles(call, record.roles)
    role = next(role for role in Role if role in call.roles)
    entry = PendingRevocation(key_id, record.tenant, call.parts.wall(), call.principal.actor, role.value, call.address[:64])
    try:
        await asyncio.to_thread(pending.add, entry)
    except (OSError, TooManyPending) as error:
        message = f"The database is away, and the revocation cannot be kept on this gateway: {error or 'too many wait'}. Try again."
        raise AdminProblem(503, "store_unavailable", message, headers=RETRY) from None
    audit.warning("key.revoke", actor=entry.actor, address=entry.address, target=_target(record), pending=True)
    return answer(202, _revocation(record, pending=True))


def _revocation(record: KeyRecord, *, pending: bool) -> dict[str, Any]:
    return {"id": record.id, "tenant": record.tenant, "pending": pending}


async def _check_project(call: AdminCall, directory: DirectoryChange, tenant: TenantId, project: str) -> None:
    await directory.tenants.get(call.tenant, tenant)
    try:
        await directory.projects.get(call.tenant, tenant, ProjectId(project))
    except NotFound:
        raise AdminProblem(400, "unknown_project", f"project: the tenant has no {project!r}.", "project") from None


async def _key(directory: DirectoryChange, tenant: TenantId, key_id: str) -> KeyRecord:
    record = await directory.keys.get(tenant, KeyId(key_id))
    if record.tenant != tenant:
        raise not_found()
    return record


def _check_roles(call: AdminCall, roles: frozenset[Role]) -> None:
    if not may_grant(call.roles, roles):
        raise AdminProblem(403, "forbidden", "Your roles do not let you give away, change or end a key with these roles.", "roles")


def _check_tags(call: AdminCall, before: Tags, after: Tags) -> None:
    if call.roles & ADMINS:
        return
    if reserved := changed_reserved_tags(before, after):
        message = (
            f"tags: only owners and admins set, change or remove the tag {reserved[0]!r}, because rules of policies may read it; send it "
            f"as it is. Your roles let you set tags whose names begin with {OWN_TAG!r}."
        )
        raise AdminProblem(403, "forbidden", message, "tags")


def _check_use(body: KeyBody) -> None:
    if not body.scopes():
        raise AdminProblem(
            400, "invalid_value", "A key without a role is for inference; set inference to true, or give it a role.", "inference"
        )


def _networks(body: KeyBody) -> Networks:
    try:
        return key_networks_of(body.networks)
    except BadNetworks as error:
        raise AdminProblem(400, "invalid_value", f"networks: {error}.", "networks") from None


def _digest(call: AdminCall, text: str) -> bytes:
    parsed = parse(text)
    assert parsed is not None
    return digest_of(call.parts.pepper.secret, parsed.secret)


def _changed(call: AdminCall, action: str, before: KeyRecord, after: KeyRecord, secret: str | None = None) -> Done:
    return Done(
        200,
        action,
        _target(after),
        key_shown(after),
        tenant=after.tenant,
        before=_audited(call, before),
        after=_audited(call, after),
        secret=secret,
    )


def _target(record: KeyRecord) -> str:
    return f"tenant/{record.tenant}/key/{record.id}"


def _audited(call: AdminCall, record: KeyRecord) -> dict[str, Any]:
    """The key as the audit shows it: instead of each stored digest a shadow of it, which only reveals that the digest changed."""
    return {**key_shown(record), "digests": [shadow(call.parts.pepper.secret, digest) for digest in record.digests]}
