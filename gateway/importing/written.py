"""A Plan as files: tidegate.yaml, policies, and what the admin API takes later."""

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
    """Text by file name, in the folder that they go to; `source` is what they came from, for people."""
    head = f"# Made from {source} by `tidegate import litellm`; check it with `tidegate check`.\n"
    settings: dict[str, Any] = {"policies": POLICIES, "pools": plan.pools} | ({"engines": plan.engines} if plan.engines else {})
    found = {SETTINGS: head + _yaml(settings), f"{POLICIES}/everyone.yaml": head + _yaml(_policy(plan, EVERYONE, list(plan.models)))}
    for tenant, models in plan.policies.items():
        found[f"{POLICIES}/{tenant}.yaml"] = head + _yaml(_policy(plan, tenant, models))
    later = {"format": FORMAT, "tenants": plan.tenants, "keys": plan.keys, "limits": plan.limits, "prices": plan.prices}
    return found | {LATER: json.dumps(later, indent=2) + "\n"}


def write(files: dict[str, str], folder: Path) -> None:
    """Write every file into `folder`, which is made. Raises OSError; FileExistsError before anything is written."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise FileExistsError(f"{', '.join(there)} in {folder}")
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
            file.write(text)


def _policy(plan: Plan, tenant: str, models: list[str]) -> dict[str, Any]:
    return {"tenant": tenant, "models": [{"name": name, "pool": plan.models[name]} for name in models]}


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
