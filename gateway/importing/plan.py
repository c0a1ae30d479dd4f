"""The result of an import (`ImportPlan`): pools and policies, limits, prices, tenants and keys for the admin API, and remarks.

`write` writes a plan as files: tidegate.yaml, policies, and `tidegate-import.json` with the objects that belong into the database.
`read_document` reads that file again, written by an import or by hand; an unknown field is refused, because it would be lost silently.

A plan never contains a secret: keys of engines are names of environment variables, and keys of callers are made anew.
"""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from policies.schema import EVERYONE
from policies.yaml.located import Located
from policies.yaml.problems import Path_
from tenancy.accounts import DEFAULT_PROJECT
from tenancy.limits import MAX_ROLLING_DAYS, Level, Limit, LimitWindow, Meter, Rolling, Scope, Window, meter_name
from tenancy.money import MAX_RATE, dollars_of, nanousd_of
from tenancy.prices import ANY_REVISION, TokenRates, rates_of

FORMAT: Final = "tidegate-import/1"
MAX_NAME_CHARS: Final = 63
_ENVIRONMENT: Final = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_CALENDAR: Final = {
    **dict.fromkeys(("1h", "60m"), Window.HOUR),
    **dict.fromkeys(("1d", "24h"), Window.DAY),
    **dict.fromkeys(("7d", "1w"), Window.WEEK),
    **dict.fromkeys(("30d", "1mo"), Window.MONTH),
}
"""Calendar windows by LiteLLM's budget durations (`get_next_standardized_reset_time` there)."""
_DAYS: Final = re.compile(r"([1-9][0-9]{0,2})([dw])")
_UNFIT: Final = re.compile(r"[^a-z0-9]+")


class Remark(msgspec.Struct, frozen=True, order=True):
    """A remark for the operator, with its position in the source. It repeats no value that could be secret."""

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.text}"


class ImportPlan(msgspec.Struct):
    """The files and changes that the import writes, and remarks on settings that it does not carry over."""

    pools: list[dict[str, Any]] = []
    engines: dict[str, Any] = {}
    models: dict[str, str] = {}
    """Pool by public model name; the first one of a model with several pools."""
    shares: dict[str, list[dict[str, Any]]] = {}
    """Pools with their weights, by the names of models that several pools serve."""
    aliases: dict[str, str] = {}
    """The model that answers, by the names that stand for it; these names are in `models` too."""
    fallbacks: dict[str, list[dict[str, Any]]] = {}
    """The `fallback` list by model."""
    treatments: dict[str, dict[str, Any]] = {}
    """The entry of `for_model` by model."""
    routing: str = ""
    """The routing policy; empty for Tidegate's own default."""
    tenants: list[dict[str, Any]] = []
    policies: dict[str, list[str]] = {}
    """Public model names by tenant, for tenants that may use only some of them."""
    keys: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    prices: list[dict[str, Any]] = []
    guards: list[dict[str, Any]] = []
    """The guard rules of the policy for everyone."""
    detectors: dict[str, dict[str, Any]] = {}
    """`guards.detectors` of the settings."""
    guard_names: dict[str, list[str]] = {}
    """By the names of the source's guardrails: the rules that keys and requests have to ask for; none where they apply anyway."""
    tenant_guards: dict[str, list[str]] = {}
    """Guardrails of the source that all keys of a tenant ask for."""
    left: list[Remark] = []
    notes: list[Remark] = []

    def leave(self, source: Located, path: Path_, why: str) -> None:
        """Record that a part is not carried over."""
        self.left.append(_remark(source, path, why))

    def note(self, source: Located, path: Path_, text: str) -> None:
        """Record a remark on a part that is carried over."""
        self.notes.append(_remark(source, path, text))

    def limit(self, source: Located, path: Path_, scope: Scope, meter: Meter, window: LimitWindow, amount: int) -> None:
        """Add a limit, or record that it is left because Tidegate cannot have such a limit."""
        limit = limit_of(scope, meter, window, amount)
        if isinstance(limit, str):
            self.leave(source, path, limit)
        else:
            self.limits.append(limit)


def limit_of(scope: Scope, meter: Meter, window: LimitWindow, amount: int) -> dict[str, Any] | str:
    """A limit as the admin API takes it, or the reason why there can be no such limit."""
    try:
        Limit(scope, meter, window, amount)
    except ValueError as error:
        return f"is no limit that can be kept: {error}"
    return {
        "scope": {"level": scope.level.value, "name": scope.name},
        "meter": meter_name(meter),
        "window": window.value,
        "amount": dollars_of(amount) if meter is Meter.COST_NANOUSD else amount,
    }


def model_scope(name: str) -> Scope:
    """The scope of all traffic to one public model name."""
    return Scope(Level.MODEL, name)


def environment_name(value: Any) -> str | None:
    """The variable that LiteLLM's `os.environ/NAME` names; None for anything else."""
    match = _ENVIRONMENT.fullmatch(value) if isinstance(value, str) else None
    return match[1] if match else None


def slug(text: str, taken: set[str]) -> str:
    """A valid name made of any text and distinct from those in `taken`, to which it is added."""
    plain = _UNFIT.sub("-", text.lower()).strip("-")[: MAX_NAME_CHARS - 5].strip("-") or "unnamed"
    name = plain
    count = 1
    while name in taken:
        count += 1
        name = f"{plain}-{count}"
    taken.add(name)
    return name


def whole(value: Any) -> int | None:
    """A positive whole number, also one written as `100.0`; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value != value // 1 or value > 1e15:
        return None
    return int(value)


def period(duration: Any) -> LimitWindow | None:
    """The window of a LiteLLM budget duration, or None where no limit has one like it; no duration means for ever.

    LiteLLM begins a budget anew at the hour (`1h`), at midnight (`1d`, `24h`), on Monday (`7d`, `1w`) and on the first of a month (`30d`,
    `1mo`), which calendar windows do too. Other numbers of days run from the day on which a budget was made; a rolling window of so
    many days never lets more through.
    """
    if duration is None:
        return Window.EVER
    text = str(duration)
    if (calendar := _CALENDAR.get(text)) is not None:
        return calendar
    match = _DAYS.fullmatch(text)
    days = int(match[1]) * (7 if match[2] == "w" else 1) if match else 0
    return Rolling(days) if 1 <= days <= MAX_ROLLING_DAYS else None


NO_PERIOD: Final = (
    "has a budget_duration that no limit has here: 1h, 1d, 7d, 30d and 1mo are carried as calendar windows, and other days and weeks as "
    f"rolling windows of up to {MAX_ROLLING_DAYS} days"
)


def period_in_words(window: LimitWindow) -> str:
    """The note on a budget's window; empty for a budget that does not come back."""
    if isinstance(window, Rolling):
        return (
            f"counts any {window.days} days on end (window {window.value}); LiteLLM begins anew every {window.days} days, counted from the "
            "day on which the budget was made"
        )
    if window is Window.EVER:
        return ""
    other = ", as in LiteLLM; for any 30 days on end write rolling-30d" if window is Window.MONTH else ""
    return f"counts per calendar {window.value} in UTC{other}"


def nanousd(value: Any) -> int | None:
    """Dollars as whole nano-dollars; None when it is no amount."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        return None
    return round(value * 1e9)


def _remark(source: Located, path: Path_, text: str) -> Remark:
    problem = source.problem(path, text)
    return Remark(source.file, problem.line, problem.path or "file", text)


MAX_DOCUMENT_BYTES: Final = 16 * 1024 * 1024
"""Largest file: some 100,000 keys with their limits."""


class BadDocument(Exception):
    """The file is no such document; the message names the place and the remedy."""


class ImportedTenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant to make."""

    name: str
    label: str = ""
    disabled: bool = False


class KeyLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit of a key that is not made yet."""

    meter: str
    window: str
    amount: int | str
    """Text only for `cost_usd`: dollars, as `"12.50"`."""


class ImportedKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make."""

    tenant: str
    project: str = DEFAULT_PROJECT
    label: str = ""
    expires_at: str | None = None
    """Expiry in ISO 8601; UTC where it has no zone."""
    models: list[str] | None = None
    priority_class: Literal["critical", "interactive", "default", "batch"] | None = None
    """The highest class of its requests."""
    limits: list[KeyLimit] = []
    tags: dict[str, str] = {}

    def expires_unix(self) -> float | None:
        """The expiry in seconds since 1970; None for never. Raises ValueError for a text that is no moment."""
        if self.expires_at is None:
            return None
        at = datetime.fromisoformat(self.expires_at)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


class LimitScope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scope of a limit."""

    level: str
    name: str = ""


class NewLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to set."""

    scope: LimitScope
    meter: str
    window: str
    amount: int | str
    """Text only for `cost_usd`: dollars, as `"12.50"`."""


RateKind = Literal["uncached_input", "cached_input", "output", "reasoning"]


class ImportedPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A price to set, in one of two units."""

    model: str
    usd_per_mtok: dict[RateKind, str] | None = None
    """Dollars per million tokens, as decimal text."""
    nanousd_per_mtok: dict[RateKind, int] | None = None
    revision: str = ANY_REVISION

    def __post_init__(self) -> None:
        if (self.usd_per_mtok is None) is (self.nanousd_per_mtok is None):
            raise ValueError("needs usd_per_mtok (dollars per million tokens, as text), or nanousd_per_mtok in its place")

    def rates(self) -> TokenRates:
        """The rates, with those of parts that are left out. Raises ValueError that names the field for a wrong rate."""
        if self.usd_per_mtok is None:
            return rates_of({str(kind): rate for kind, rate in (self.nanousd_per_mtok or {}).items()})
        rates: dict[str, int | None] = {}
        for kind, text in self.usd_per_mtok.items():
            try:
                rates[kind] = nanousd_of(text, MAX_RATE)
            except ValueError as error:
                raise ValueError(f"usd_per_mtok.{kind}: {error}") from None
        return rates_of(rates)


class ImportDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    format: str
    tenants: list[ImportedTenant] = []
    keys: list[ImportedKey] = []
    limits: list[NewLimit] = []
    prices: list[ImportedPrice] = []


def read_document(path: Path) -> ImportDocument:
    """The document in a file.

    Raises:
        BadDocument: the file cannot be read, or is no such document.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise BadDocument(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise BadDocument(f"{path} has over {MAX_DOCUMENT_BYTES} bytes; split its lists")
    try:
        document = msgspec.json.decode(raw, type=ImportDocument)
    except msgspec.DecodeError as error:
        raise BadDocument(f"{path}: {error}; it should be what `tidegate import` writes") from None
    if document.format != FORMAT:
        raise BadDocument(f"{path}: its format is {document.format[:64]!r}, and this version takes {FORMAT!r}")
    return document


SETTINGS_FILE: Final = "tidegate.yaml"
POLICIES_FOLDER: Final = "policies"
TOKEN_FILE: Final = "admin-token"
"""The file that `secrets.admin_token` names. The import makes none: it writes no secret."""
DOCUMENT_FILE: Final = "tidegate-import.json"


def files_of(plan: ImportPlan, source: str) -> dict[str, str]:
    """The files' texts by name, relative to the output folder; `source` names the imported file in their heads."""
    head = f"# Made from {source} by `tidegate import litellm`; check it with `tidegate check`.\n"
    secrets = {"admin_token": {"file": TOKEN_FILE}}
    settings: dict[str, Any] = {"policies": POLICIES_FOLDER, "secrets": secrets, "pools": plan.pools}
    settings |= {"engines": plan.engines} if plan.engines else {}
    settings |= {"guards": {"detectors": plan.detectors}} if plan.detectors else {}
    files = {
        SETTINGS_FILE: head + _yaml(settings),
        f"{POLICIES_FOLDER}/everyone.yaml": head + _yaml(_policy(plan, EVERYONE, list(plan.models))),
    }
    for tenant, models in plan.policies.items():
        files[f"{POLICIES_FOLDER}/{tenant}.yaml"] = head + _yaml(_policy(plan, tenant, models))
    later = {"format": FORMAT, "tenants": plan.tenants, "keys": plan.keys, "limits": plan.limits, "prices": plan.prices}
    return files | {DOCUMENT_FILE: json.dumps(later, indent=2) + "\n"}


def write(files: dict[str, str], folder: Path) -> None:
    """Write every file into `folder`, which is made if missing.

    Raises:
        FileExistsError: one of the files exists; nothing was written.
        OSError: a file cannot be written.
    """
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        raise FileExistsError(f"{', '.join(existing)} in {folder}")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
            file.write(text)


def _policy(plan: ImportPlan, tenant: str, models: list[str]) -> dict[str, Any]:
    policy: dict[str, Any] = {"tenant": tenant, "models": [_model(plan, name, models) for name in models]}
    if plan.routing and tenant == EVERYONE:
        policy["routing"] = plan.routing
    if plan.guards and tenant == EVERYONE:
        policy["guards"] = {"rules": plan.guards}
    treatments = {name: plan.treatments[name] for name in models if name in plan.treatments}
    return policy | ({"for_model": treatments} if treatments and tenant == EVERYONE else {})


def _model(plan: ImportPlan, name: str, models: list[str]) -> dict[str, Any]:
    """A model of a policy that has these models: an alias needs its model beside it, and a fallback its target."""
    if plan.aliases.get(name) in models:
        return {"name": name, "alias_of": plan.aliases[name]}
    own = plan.aliases.get(name, name)
    leads: dict[str, Any] = {"pools": plan.shares[own]} if own in plan.shares else {"pool": plan.models[name]}
    fallback = [entry for entry in plan.fallbacks.get(own, []) if entry["to"] in models]
    return {"name": name, **leads} | ({"fallback": fallback} if fallback else {})


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
