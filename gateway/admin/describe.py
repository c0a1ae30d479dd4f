"""The OpenAPI description of the admin API, and the request and response bodies that its routes share.

- `document`, `errors`: errors, headers and the bearer scheme in the OpenAPI document;
- `…Body`, `New…`, `…Shown`: bodies of organisations, tenants, projects and keys, and their conversion from records (`account_shown`,
  `key_shown`);
- `PageQuery`, `page_of`: pagination by a cursor that encodes where the last page ended; callers send it back unread.

Bodies that one route alone has are beside that route in `gateway/admin/routes/`.
"""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from fastapi import Depends, FastAPI, Header, Request
from pydantic import AfterValidator, BaseModel, Field

from domain.priority import CLASSES
from domain.strict import Strict
from gateway.admin.call import AdminCall, call_of
from gateway.admin.problem import AdminProblem
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, MAX_LABEL_CHARS, NAME, NAME_RULE, Organisation, Project, Tenant
from tenancy.key_networks import MAX_NETWORK_CHARS, MAX_NETWORKS
from tenancy.keys import MAX_OVERLAP_S, MAX_TAG_VALUE_CHARS, MAX_TAGS, OVERLAP_S, KeyRecord
from tenancy.keys import TAG_NAME as TAG_NAME
from tenancy.rights import MAX_CAP, MAX_NAME_CHARS, MAX_NAMES, Caps, KeyScope, Rights, Role


class ErrorDetail(BaseModel):
    """The error."""

    message: str = Field(description="A sentence for human readers.")
    type: str = Field(description="`invalid_request_error`, or `server_error` for an error that the caller did not cause.")
    param: str | None = Field(description="The field, header or parameter that is wrong.")
    code: str | None = Field(description="Error code for programs.")


class ErrorBody(BaseModel):
    """Every answer from 400 on."""

    error: ErrorDetail


ERROR_DESCRIPTIONS: Final = {
    400: "Something in the request is wrong; `param` names it.",
    401: "No valid admin token or key.",
    403: "The caller's roles do not allow it.",
    404: "There is no such thing, or it belongs to another tenant.",
    409: "It exists already, or something else hangs on it.",
    412: "It was changed since it was read.",
    413: "The body is too large.",
    415: "The body is not declared as JSON.",
    422: "The Idempotency-Key was used for another request.",
    428: "If-Match is missing.",
    503: "The database or the audit cannot be written or read; nothing was changed.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Entries for FastAPI's `responses`."""
    return {status: {"model": ErrorBody, "description": ERROR_DESCRIPTIONS[status]} for status in statuses}


READ_ERRORS: Final = errors(400, 401, 403, 404, 422, 503)
POST_ERRORS: Final = errors(400, 401, 403, 404, 409, 413, 415, 422, 503)
CHANGE_ERRORS: Final = errors(400, 401, 403, 404, 409, 412, 413, 415, 422, 428, 503)


def _posting(
    request: Request,
    _key: Annotated[
        str | None,
        Header(alias="idempotency-key", description="Any text of your own: a repeated request with the same key is executed once in 24 h."),
    ] = None,
) -> AdminCall:
    return call_of(request)


def _changing(
    request: Request,
    _etag: Annotated[str | None, Header(alias="if-match", description="The ETag of the version that you read, or `*`; required.")] = None,
) -> AdminCall:
    return call_of(request)


Asking = Annotated[AdminCall, Depends(call_of)]
"""The call of a GET."""
Posting = Annotated[AdminCall, Depends(_posting)]
"""The call of a POST, with its Idempotency-Key."""
Changing = Annotated[AdminCall, Depends(_changing)]
"""The call of a PUT or DELETE, with its If-Match."""


def document(api: FastAPI, prefix: str) -> dict[str, Any]:
    """The OpenAPI document, with the bearer scheme and the path prefix of the API."""
    if "security" not in (openapi := api.openapi()):
        openapi.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        openapi["security"] = [{"bearer": []}]
        openapi["servers"] = [{"url": prefix}]
    return openapi


def printable(text: str) -> str:
    """The text itself, if it can be shown on one line of a terminal. Raises ValueError for line breaks and control characters."""
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text


MAX_UNIX = 253_402_300_799
"""The end of the year 9999: the last moment that calendars can write."""


def _named(text: str) -> str:
    if not NAME.fullmatch(text):
        raise ValueError(f"write {NAME_RULE}")
    return text


def _storable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds characters that cannot be printed")
    return text


Name = Annotated[str, Field(max_length=63, pattern=f"^{NAME.pattern}$"), AfterValidator(_named)]
Label = Annotated[str, Field(max_length=MAX_LABEL_CHARS), AfterValidator(_storable)]
Text = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(_storable)]
Names = Annotated[list[Text], Field(max_length=MAX_NAMES)]
Cap = Annotated[int, Field(ge=1, le=MAX_CAP)]
TagsBody = dict[
    Annotated[str, Field(max_length=32, pattern=f"^{TAG_NAME.pattern}$")],
    Annotated[str, Field(min_length=1, max_length=MAX_TAG_VALUE_CHARS), AfterValidator(_storable)],
]
NetworksBody = list[Annotated[str, Field(min_length=1, max_length=MAX_NETWORK_CHARS)]]
Moment = Annotated[float, Field(strict=False, ge=0, le=MAX_UNIX, allow_inf_nan=False)]


class CapsBody(Strict):
    """Upper bounds on the parameters of one request."""

    max_input_tokens: Cap | None = Field(default=None, description="Most tokens of the prompt.")
    max_output_tokens: Cap | None = Field(default=None, description="Most output tokens per choice.")
    max_choices: Cap | None = Field(default=None, description="Largest `n`.")
    max_logprobs: Annotated[int, Field(ge=0, le=MAX_CAP)] | None = Field(default=None, description="Largest `logprobs` or `top_logprobs`.")
    tools: bool = Field(default=True, description="False where requests may carry no tools.")


class RightsBody(Strict):
    """The rights that one level grants; a list that is left out leaves the rights of the levels above."""

    models: Names | None = Field(default=None, description="Public model names.")
    loras: Names | None = Field(default=None, description="Adapter names.")
    endpoints: Names | None = Field(default=None, description="Paths of the data port, as `/v1/embeddings`.")
    caps: CapsBody = Field(default=CapsBody(), description="Upper bounds on request parameters.")
    priority_class: Literal["critical", "interactive", "default", "batch"] | None = Field(
        default=None, description="The highest priority class of the requests; null for the class of the policy."
    )

    def rights(self) -> Rights:
        """The rights as the directory stores them."""
        lists = {name: None if (names := getattr(self, name)) is None else frozenset(names) for name in ("models", "loras", "endpoints")}
        highest = None if self.priority_class is None else CLASSES[self.priority_class]
        return Rights(**lists, caps=Caps(**self.caps.model_dump()), priority_class=highest)


class AccountBody(Strict):
    """The fields of an organisation or a project that can be set."""

    label: Label = Field(default="", description="A note for human readers.")
    disabled: bool = Field(default=False, description="Disables the account: every key below it is refused.")
    rights: RightsBody = Field(default=RightsBody(), description="The rights that the account grants.")


class NewOrganisation(AccountBody):
    """An organisation to make."""

    name: Name


class TenantBody(AccountBody):
    """The fields of a tenant that can be set."""

    organisation: Name = Field(default=DEFAULT_ORGANISATION, description="The organisation that the tenant belongs to.")


class NewTenant(TenantBody):
    """A tenant to make; its project `default` is made with it."""

    name: Name


class NewProject(AccountBody):
    """A project to make."""

    name: Name


class KeyBody(Strict):
    """The fields of a key that can be changed."""

    label: Label = Field(default="", description="A note for human readers.")
    disabled: bool = Field(default=False, description="Disables the key: it is refused until it is enabled again.")
    expires_unix: Moment | None = Field(default=None, description="When the key expires, in seconds since 1970; null for never.")
    roles: list[Literal["owner", "admin", "operator", "billing", "auditor", "tenant-admin"]] = Field(
        default_factory=list, max_length=6, description="Roles of the key on the admin port; none for a key of the data port."
    )
    inference: bool = Field(
        default=True, description="Whether the data port accepts the key. A key without a role is for the data port only."
    )
    rights: RightsBody = Field(default=RightsBody(), description="The rights that the key grants.")
    tags: TagsBody = Field(
        default_factory=dict, max_length=MAX_TAGS, description="Tags that policy rules can test (`key_tags`); changed as a whole."
    )

    networks: NetworksBody = Field(
        default_factory=list,
        max_length=MAX_NETWORKS,
        description="Networks, as address/bits, that the key may be used from; none for everywhere; changed as a whole.",
    )

    def roles_wanted(self) -> frozenset[Role]:
        """The roles as the directory stores them."""
        return frozenset(map(Role, self.roles))

    def scopes(self) -> frozenset[KeyScope]:
        """The ports that accept the key."""
        return frozenset(([KeyScope.INFERENCE] if self.inference else []) + ([KeyScope.ADMIN] if self.roles else []))


class NewKey(KeyBody):
    """A key to make."""

    project: Name = Field(default=str(DEFAULT_PROJECT), description="The project that the key belongs to.")


class Rotation(Strict):
    """How a key gets a new secret."""

    overlap_s: Annotated[float, Field(strict=False, ge=0, le=MAX_OVERLAP_S, allow_inf_nan=False)] = Field(
        default=OVERLAP_S, description="Seconds for which the old secret works beside the new one; 0 for no overlap."
    )


class OrganisationShown(BaseModel):
    """An organisation."""

    name: str
    label: str
    disabled: bool
    rights: RightsBody
    created_unix: float


class TenantShown(OrganisationShown):
    """A tenant."""

    organisation: str


class ProjectShown(OrganisationShown):
    """A project."""

    tenant: str


class KeyShown(BaseModel):
    """A key without its secret."""

    id: str
    tenant: str
    project: str
    label: str
    disabled: bool
    created_unix: float
    expires_unix: float | None
    revoked_unix: float | None
    old_until_unix: float | None = Field(description="When the secret before the last rotation expires.")
    roles: list[str]
    inference: bool
    rights: RightsBody
    tags: dict[str, str]
    networks: list[str]


class KeyMade(KeyShown):
    """A key with its secret, which is shown this once and stored nowhere."""

    key: str


def rights_shown(rights: Rights) -> dict[str, Any]:
    """Rights as a body shows them."""
    lists = {name: None if (names := getattr(rights, name)) is None else sorted(names) for name in ("models", "loras", "endpoints")}
    caps = {name: getattr(rights.caps, name) for name in Caps.__struct_fields__}
    return {**lists, "caps": caps, "priority_class": None if rights.priority_class is None else rights.priority_class.word}


def account_shown(record: Organisation | Tenant | Project) -> dict[str, Any]:
    """An organisation, tenant or project as a body shows it."""
    shown: dict[str, Any] = {name: getattr(record, name) for name in ("name", "label", "disabled", "created_unix")}
    shown["rights"] = rights_shown(record.rights)
    if isinstance(record, Tenant):
        shown["organisation"] = record.organisation
    elif isinstance(record, Project):
        shown["tenant"] = record.tenant
    return shown


def key_shown(record: KeyRecord) -> dict[str, Any]:
    """A key as a body shows it."""
    same = ("id", "tenant", "project", "label", "disabled", "created_unix", "expires_unix", "revoked_unix", "old_until_unix")
    return {
        **{name: getattr(record, name) for name in same},
        "roles": sorted(role.value for role in record.roles),
        "inference": KeyScope.INFERENCE in record.scopes,
        "rights": rights_shown(record.rights),
        "tags": dict(record.tags),
        "networks": list(record.networks),
    }


DEFAULT_PAGE_RECORDS: Final = 50
MAX_PAGE_RECORDS: Final = 500
NUL: Final = "\0"
"""A character that no name contains and that Postgres accepts in no text."""


class PageQuery(Strict):
    """The page of a list to show."""

    # not strict: values of a query string are text
    limit: Annotated[int, Field(strict=False, ge=1, le=MAX_PAGE_RECORDS)] = Field(
        default=DEFAULT_PAGE_RECORDS, description="Most items of a page."
    )
    cursor: str | None = Field(
        default=None, max_length=1024, description="`next_cursor` of the page before; without a cursor the list starts at its beginning."
    )


def encode_cursor(place: Any) -> str:
    """The cursor for a position in a list."""
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def decode_cursor(cursor: str | None, kind: Any) -> Any:
    """The position that a cursor stands for; None for the start of the list. Raises Problem 400 for a cursor that no page ever gave."""
    if cursor is None:
        return None
    if kind is int:
        kind = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]  # databases store no larger number
    try:
        place = msgspec.json.decode(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True), type=kind)
        if isinstance(place, str) and NUL in place:
            raise ValueError
        return place
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise AdminProblem(
            400, "invalid_value", "The cursor is none that this list gave; leave it out to begin at the start.", "cursor"
        ) from None


T = TypeVar("T")


def page_of(records: Sequence[T], limit: int, shown: Callable[[T], Any], place: Callable[[T], Any]) -> dict[str, Any]:
    """A page of `limit` records; callers fetch one record more, whose presence means that there is another page."""
    more = encode_cursor(place(records[limit - 1])) if len(records) > limit else None
    return {"items": [shown(record) for record in records[:limit]], "next_cursor": more}
