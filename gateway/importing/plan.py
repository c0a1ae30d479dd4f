"""The result of an import: pools and policies, limits, prices, tenants and keys for the admin API, and the parts that were left.

A plan never contains a secret: keys of engines are names of environment variables, and keys of callers are made anew.
"""

import re
from typing import Any, Final

import msgspec

from policies.located_yaml import Located
from policies.problems import Path_
from tenancy.limits import Level, Limit, Meter, Scope, Window

FORMAT: Final = "tidegate-import/1"
MAX_NAME_CHARS: Final = 63
_ENVIRONMENT: Final = re.compile(r"os\.environ/([A-Za-z_][A-Za-z0-9_]*)")
_UNFIT: Final = re.compile(r"[^a-z0-9]+")


class Remark(msgspec.Struct, frozen=True, order=True):
    """A remark for the operator, with its position in the source. It repeats no value that could be secret."""

    file: str
    line: int
    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}: {self.text}"


class Plan(msgspec.Struct):
    """Everything that the import writes, and remarks on everything that it does not."""

    pools: list[dict[str, Any]] = []
    engines: dict[str, Any] = {}
    models: dict[str, str] = {}
    """Pool by public model name."""
    tenants: list[dict[str, Any]] = []
    policies: dict[str, list[str]] = {}
    """Public model names by tenant, for tenants that may use only some of them."""
    keys: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    prices: list[dict[str, Any]] = []
    left: list[Remark] = []
    notes: list[Remark] = []

    def leave(self, source: Located, path: Path_, why: str) -> None:
        """Record that a part is not carried over."""
        self.left.append(_remark(source, path, why))

    def note(self, source: Located, path: Path_, text: str) -> None:
        """Record a remark on a part that is carried over."""
        self.notes.append(_remark(source, path, text))

    def limit(self, source: Located, path: Path_, scope: Scope, meter: Meter, window: Window, amount: int) -> None:
        """Add a limit, or record that it is left because Tidegate cannot have such a limit."""
        limit = limit_of(scope, meter, window, amount)
        if isinstance(limit, str):
            self.leave(source, path, limit)
        else:
            self.limits.append(limit)


def limit_of(scope: Scope, meter: Meter, window: Window, amount: int) -> dict[str, Any] | str:
    """A limit as the admin API takes it, or the reason why there can be no such limit."""
    try:
        Limit(scope, meter, window, amount)
    except ValueError as error:
        return f"is no limit that can be kept: {error}"
    return {
        "scope": {"level": scope.level.value, "name": scope.name},
        "meter": meter.name.lower(),
        "window": window.value,
        "amount": amount,
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


def period(duration: Any) -> Window | None:
    """The calendar period nearest to a LiteLLM budget duration, or None; no duration means for ever."""
    if duration is None:
        return Window.EVER
    return {"24h": Window.DAY, "1d": Window.DAY, "30d": Window.MONTH, "31d": Window.MONTH, "1mo": Window.MONTH}.get(str(duration))


def nanousd(value: Any) -> int | None:
    """Dollars as whole nano-dollars; None when it is no amount."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        return None
    return round(value * 1e9)


def _remark(source: Located, path: Path_, text: str) -> Remark:
    problem = source.problem(path, text)
    return Remark(source.file, problem.line, problem.path or "file", text)
