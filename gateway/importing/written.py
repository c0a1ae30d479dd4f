"""Writes a Plan as files: tidegate.yaml, policies, and the objects for the admin API."""

import json
import os
from pathlib import Path
from typing import Any, Final

import yaml

from gateway.importing.plan import FORMAT, Plan
from policies.schema import EVERYONE

SETTINGS: Final = "tidegate.yaml"
POLICIES: Final = "policies"
LATER: Final = "tidegate-import.json"


def files_of(plan: Plan, source: str) -> dict[str, str]:
    """The files' texts by name, relative to the output folder; `source` names the imported file in their heads."""
    head = f"# Made from {source} by `tidegate import litellm`; check it with `tidegate check`.\n"
    settings: dict[str, Any] = {"policies": POLICIES, "pools": plan.pools} | ({"engines": plan.engines} if plan.engines else {})
    files = {SETTINGS: head + _yaml(settings), f"{POLICIES}/everyone.yaml": head + _yaml(_policy(plan, EVERYONE, list(plan.models)))}
    for tenant, models in plan.policies.items():
        files[f"{POLICIES}/{tenant}.yaml"] = head + _yaml(_policy(plan, tenant, models))
    later = {"format": FORMAT, "tenants": plan.tenants, "keys": plan.keys, "limits": plan.limits, "prices": plan.prices}
    return files | {LATER: json.dumps(later, indent=2) + "\n"}


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


def _policy(plan: Plan, tenant: str, models: list[str]) -> dict[str, Any]:
    return {"tenant": tenant, "models": [{"name": name, "pool": plan.models[name]} for name in models]}


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
