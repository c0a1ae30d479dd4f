"""`tidegate import apply`: applies a tidegate-import.json over the admin API. Existing objects stay unchanged, so it can be run again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from gateway.cli.admin_client import API, AdminClient, RefusedByGateway, segment
from gateway.cli.amounts import Meant, doubt_of
from gateway.cli.connection import StoreOptions
from gateway.cli.printing import fail, out, print_json
from gateway.importing.plan import (
    BadDocument,
    ImportDocument,
    ImportedKey,
    ImportedPrice,
    ImportedTenant,
    KeyLimit,
    NewLimit,
    read_document,
)
from tenancy.limits import METERS_BY_NAME, Meter, counted, meter_name, shown_amount
from tenancy.money import SMALLEST_PLAUSIBLE_RATE, shown_dollars

Outcome = Literal["made", "kept", "differs", "refused"]


def apply(
    file: Annotated[Path, typer.Argument(help="A tidegate-import.json.")],
    gateway: StoreOptions,
    yes: Meant = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line, for scripts.")] = False,
) -> None:
    """Make the tenants, keys, limits and prices of a file, and print what became of each; new keys are printed this once.

    What is there already stays as it is: run it again after mending what was refused. Exit codes: 0 all of it is there now, 1 something
    was refused or is there with another value, 2 the file cannot be read.
    """
    try:
        document = read_document(file)
    except BadDocument as error:
        fail(str(error), code=2)
    client = gateway.api(quiet=True)
    try:
        client.read(f"{API}/self")
    except RefusedByGateway as refused:  # one sentence, not one per object, when the token is not accepted
        fail(refused.message)
    run = ImportRun(client, as_json, yes)
    run.take(document)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in run.counts.items())
    if not as_json:
        out.print(counts, markup=False)
    raise typer.Exit(1 if run.counts["refused"] or run.counts["differs"] else 0)


class ImportRun:
    """One pass over a document.

    Args:
        client: a quiet client, which prints no refusals of its own.
        meant: amounts of 0 and suspiciously small ones are meant.
    """

    def __init__(self, client: AdminClient, as_json: bool, meant: bool = False) -> None:
        self._client = client
        self._meant = meant
        self._as_json = as_json
        self._known: dict[str, list[dict[str, Any]]] = {}
        """By tenant: existing keys that no key of the document has matched yet, the oldest first."""
        self.counts: dict[Outcome, int] = dict.fromkeys(("made", "kept", "differs", "refused"), 0)

    def take(self, document: ImportDocument) -> None:
        """Apply the document: tenants, keys, limits and prices, in the order of their dependencies."""
        for tenant in document.tenants:
            self._guarded("tenant", tenant.name, partial(self._tenant, tenant))
        for key in document.keys:
            self._guarded("key", _key_name(key), partial(self._key, key))
        for limit in document.limits:
            self._guarded("limit", _limit_id(limit), partial(self._limit, _limit_id(limit), limit))
        for price in document.prices:
            self._guarded("price", f"{price.model} {price.revision}", partial(self._price, price))

    def _guarded(self, kind: str, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except RefusedByGateway as refused:
            self._report("refused", kind, name, refused.message)

    def _tenant(self, wanted: ImportedTenant) -> None:
        tenant = self._client.find(f"{API}/tenants/{segment(wanted.name)}")
        if tenant is None:
            self._client.post(f"{API}/tenants", {"name": wanted.name, "label": wanted.label, "disabled": wanted.disabled})
            return self._report("made", "tenant", wanted.name)
        if tenant["disabled"] is not wanted.disabled:
            return self._report("differs", "tenant", wanted.name, f"it is {'disabled' if tenant['disabled'] else 'enabled'}")
        return self._report("kept", "tenant", wanted.name)

    def _key(self, wanted: ImportedKey) -> None:
        name = _key_name(wanted)
        try:
            expires_unix = wanted.expires_unix()
        except ValueError:
            return self._report(
                "refused", "key", name, f"expires_at {wanted.expires_at!r} is no moment; write it like 2027-01-31T00:00:00Z"
            )
        key = self._existing_key(wanted)
        if key is None:
            body = {"project": wanted.project, "label": wanted.label, "expires_unix": expires_unix, "rights": _rights(wanted)}
            body |= {"tags": wanted.tags} if wanted.tags else {}
            key = self._client.post(f"{API}/tenants/{segment(wanted.tenant)}/keys", body)
            self._report("made", "key", name, id=key["id"], key=key["key"])
        elif _differs(key, wanted, expires_unix):
            self._report("differs", "key", name, "it is there with another expiry, other models, tags or another class", id=key["id"])
        else:
            self._report("kept", "key", name, id=key["id"])
        for limit in wanted.limits:
            limit_id = _key_limit_id(key["id"], limit)
            self._guarded("limit", limit_id, partial(self._limit, limit_id, limit))
        return None

    def _existing_key(self, wanted: ImportedKey) -> dict[str, Any] | None:
        """The existing key with the same tenant, project and label, or None; each existing key is matched at most once."""
        if wanted.tenant not in self._known:
            listed = self._client.items(f"{API}/tenants/{segment(wanted.tenant)}/keys")
            self._known[wanted.tenant] = sorted((key for key in listed if key["revoked_unix"] is None), key=lambda key: key["created_unix"])
        unmatched = self._known[wanted.tenant]
        match = next((key for key in unmatched if (key["project"], key["label"]) == (wanted.project, wanted.label)), None)
        if match is not None:
            unmatched.remove(match)
        return match

    def _limit(self, limit_id: str, wanted: NewLimit | KeyLimit) -> None:
        meter = METERS_BY_NAME.get(wanted.meter)
        if meter is None:
            return self._report(
                "refused", "limit", limit_id, f"{wanted.meter!r} is no meter; write one of {', '.join(map(meter_name, Meter))}"
            )
        try:
            amount = counted(wanted.meter, wanted.amount)
        except ValueError as error:
            return self._report("refused", "limit", limit_id, f"amount: {error}")
        doubt = doubt_of(meter, amount)
        if doubt is not None and not self._meant:
            return self._report(
                "refused", "limit", limit_id, f"amount {wanted.amount} is understood as {doubt}; correct it, or add --yes if that is meant"
            )
        path = f"{API}/limits/{segment(limit_id)}"
        limit = self._client.find(path)
        if limit is None:
            self._client.put_new(path, {"amount": wanted.amount})
            return self._report("made", "limit", limit_id)
        if limit["amount"] != amount:
            said = f"it is {shown_amount(meter, limit['amount'])}, and {shown_amount(meter, amount)} in the file"
            return self._report("differs", "limit", limit_id, said)
        return self._report("kept", "limit", limit_id)

    def _price(self, wanted: ImportedPrice) -> None:
        name = f"{wanted.model} {wanted.revision}"
        try:
            rates = wanted.rates()
        except ValueError as error:
            return self._report("refused", "price", name, str(error))
        tiny = [shown_dollars(rate) for rate in msgspec.structs.astuple(rates) if 0 < rate < SMALLEST_PLAUSIBLE_RATE]
        if tiny and not self._meant:
            said = f"{tiny[0]} per million tokens is hardly meant; is it a price per token? Correct it, or add --yes if it is meant"
            return self._report("refused", "price", name, said)
        prices = self._client.items(f"{API}/prices?model={segment(wanted.model)}")
        same = [price for price in prices if price["revision"] == wanted.revision]
        if not same:
            body = {"model": wanted.model, "revision": wanted.revision, "nanousd_per_mtok": msgspec.structs.asdict(rates)}
            self._client.post(f"{API}/prices", body)
            return self._report("made", "price", name)
        if max(same, key=lambda price: price["effective_unix"])["nanousd_per_mtok"] != msgspec.structs.asdict(rates):
            return self._report("differs", "price", name, "the last price that was set is another one")
        return self._report("kept", "price", name)

    def _report(self, outcome: Outcome, kind: str, name: str, detail: str = "", **more: str) -> None:
        self.counts[outcome] += 1
        if self._as_json:
            line = {"outcome": outcome, "what": kind, "name": name} | ({"said": detail} if detail else {}) | more
            print_json(line)
            return
        typer.echo(f"{outcome}: {kind} {name}" + "".join(f": {text}" for text in (detail, *more.values()) if text))


def _key_name(key: ImportedKey) -> str:
    return f"{key.tenant}/{key.project} {key.label!r}"


def _limit_id(limit: NewLimit) -> str:
    return f"{limit.scope.level}:{limit.scope.name}:{limit.meter}:{limit.window}"


def _key_limit_id(key_id: str, limit: KeyLimit) -> str:
    return f"key:{key_id}:{limit.meter}:{limit.window}"


def _rights(key: ImportedKey) -> dict[str, Any]:
    return {"models": key.models, "priority_class": key.priority_class}


def _differs(key: dict[str, Any], wanted: ImportedKey, expires_unix: float | None) -> bool:
    rights = key["rights"]
    existing = key["expires_unix"], _sorted(rights["models"]), rights.get("priority_class")
    lacks_tags = any(key["tags"].get(name) != value for name, value in wanted.tags.items())
    return lacks_tags or existing != (expires_unix, _sorted(wanted.models), wanted.priority_class)


def _sorted(names: list[str] | None) -> list[str] | None:
    return None if names is None else sorted(set(names))
