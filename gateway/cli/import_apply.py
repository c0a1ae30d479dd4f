"""`tidegate import apply`: a tidegate-import.json over the admin API. What is there is never changed, so it can be run again."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from gateway.cli.admin_client import ADMIN, API, AdminClient, AdminUrl, Refused, TokenFile, segment, token_from
from gateway.cli.printing import fail, out, print_json
from gateway.importing.document import BadDocument, Document, KeyLimit, NewKey, NewLimit, NewPrice, NewTenant, read_document

Outcome = Literal["made", "kept", "differs", "refused"]
RATES: Final = ("uncached_input", "cached_input", "output", "reasoning")


def apply(
    file: Annotated[Path, typer.Argument(help="A tidegate-import.json.")],
    admin: AdminUrl = ADMIN,
    token_file: TokenFile = None,
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
    AdminClient(admin, token := token_from(token_file)).read(f"{API}/self")  # one sentence, not one per object, when we may not
    run = Run(AdminClient(admin, token, quiet=True), as_json)
    run.take(document)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in run.counts.items())
    if not as_json:
        out.print(counts, markup=False)
    raise typer.Exit(1 if run.counts["refused"] or run.counts["differs"] else 0)


class Run:
    """One pass over a document.

    Args:
        client: that prints no refusals of its own.
    """

    def __init__(self, client: AdminClient, as_json: bool) -> None:
        self._client = client
        self._as_json = as_json
        self._known: dict[str, list[dict[str, Any]]] = {}
        """Keys by tenant that were there before and have met no key of the document yet, the oldest first."""
        self.counts: dict[Outcome, int] = dict.fromkeys(("made", "kept", "differs", "refused"), 0)

    def take(self, document: Document) -> None:
        """Everything of it, in the order in which one thing needs the other."""
        for tenant in document.tenants:
            self._guarded("tenant", tenant.name, partial(self._tenant, tenant))
        for key in document.keys:
            self._guarded("key", _key_name(key), partial(self._key, key))
        for limit in document.limits:
            self._guarded("limit", _limit_id(limit), partial(self._limit, _limit_id(limit), limit.amount))
        for price in document.prices:
            self._guarded("price", f"{price.model} {price.revision}", partial(self._price, price))

    def _guarded(self, what: str, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Refused as refused:
            self._say("refused", what, name, refused.said)

    def _tenant(self, wanted: NewTenant) -> None:
        found = self._client.find(f"{API}/tenants/{segment(wanted.name)}")
        if found is None:
            self._client.post(f"{API}/tenants", {"name": wanted.name, "label": wanted.label, "disabled": wanted.disabled})
            return self._say("made", "tenant", wanted.name)
        if found["disabled"] is not wanted.disabled:
            return self._say("differs", "tenant", wanted.name, f"it is {'disabled' if found['disabled'] else 'enabled'}")
        return self._say("kept", "tenant", wanted.name)

    def _key(self, wanted: NewKey) -> None:
        name = _key_name(wanted)
        try:
            expires_unix = wanted.expires_unix()
        except ValueError:
            return self._say("refused", "key", name, f"expires_at {wanted.expires_at!r} is no moment; write it like 2027-01-31T00:00:00Z")
        found = self._there(wanted)
        if found is None:
            asked = {"project": wanted.project, "label": wanted.label, "expires_unix": expires_unix, "rights": _rights(wanted)}
            found = self._client.post(f"{API}/tenants/{segment(wanted.tenant)}/keys", asked)
            self._say("made", "key", name, id=found["id"], key=found["key"])
        elif _differs(found, wanted, expires_unix):
            self._say("differs", "key", name, "it is there with another expiry, other models or another class", id=found["id"])
        else:
            self._say("kept", "key", name, id=found["id"])
        for limit in wanted.limits:
            limit_id = _key_limit_id(found["id"], limit)
            self._guarded("limit", limit_id, partial(self._limit, limit_id, limit.amount))
        return None

    def _there(self, wanted: NewKey) -> dict[str, Any] | None:
        """A key is known again by tenant, project and label; of several, each meets one."""
        if wanted.tenant not in self._known:
            known = self._client.items(f"{API}/tenants/{segment(wanted.tenant)}/keys")
            self._known[wanted.tenant] = sorted((one for one in known if one["revoked_unix"] is None), key=lambda one: one["created_unix"])
        left = self._known[wanted.tenant]
        found = next((one for one in left if (one["project"], one["label"]) == (wanted.project, wanted.label)), None)
        if found is not None:
            left.remove(found)
        return found

    def _limit(self, limit_id: str, amount: int) -> None:
        path = f"{API}/limits/{segment(limit_id)}"
        found = self._client.find(path)
        if found is None:
            self._client.put_new(path, {"amount": amount})
            return self._say("made", "limit", limit_id)
        if found["amount"] != amount:
            return self._say("differs", "limit", limit_id, f"it is {found['amount']}, and {amount} in the file")
        return self._say("kept", "limit", limit_id)

    def _price(self, wanted: NewPrice) -> None:
        name = f"{wanted.model} {wanted.revision}"
        known = self._client.items(f"{API}/prices?model={segment(wanted.model)}")
        same = [one for one in known if one["revision"] == wanted.revision]
        rates = dict.fromkeys(RATES, 0) | wanted.nanousd_per_mtok
        if not same:
            asked = {"model": wanted.model, "revision": wanted.revision, "nanousd_per_mtok": wanted.nanousd_per_mtok}
            self._client.post(f"{API}/prices", asked)
            return self._say("made", "price", name)
        if max(same, key=lambda one: one["effective_unix"])["nanousd_per_mtok"] != rates:
            return self._say("differs", "price", name, "the last price that was set is another one")
        return self._say("kept", "price", name)

    def _say(self, outcome: Outcome, what: str, name: str, said: str = "", **more: str) -> None:
        self.counts[outcome] += 1
        if self._as_json:
            line = {"outcome": outcome, "what": what, "name": name} | ({"said": said} if said else {}) | more
            print_json(line)
            return
        typer.echo(f"{outcome}: {what} {name}" + "".join(f": {text}" for text in (said, *more.values()) if text))


def _key_name(wanted: NewKey) -> str:
    return f"{wanted.tenant}/{wanted.project} {wanted.label!r}"


def _limit_id(wanted: NewLimit) -> str:
    return f"{wanted.scope.level}:{wanted.scope.name}:{wanted.meter}:{wanted.window}"


def _key_limit_id(key_id: str, limit: KeyLimit) -> str:
    return f"key:{key_id}:{limit.meter}:{limit.window}"


def _rights(wanted: NewKey) -> dict[str, Any]:
    return {"models": wanted.models, "priority_class": wanted.priority_class}


def _differs(found: dict[str, Any], wanted: NewKey, expires_unix: float | None) -> bool:
    rights = found["rights"]
    there = found["expires_unix"], _sorted(rights["models"]), rights.get("priority_class")
    return there != (expires_unix, _sorted(wanted.models), wanted.priority_class)


def _sorted(names: list[str] | None) -> list[str] | None:
    return None if names is None else sorted(set(names))
