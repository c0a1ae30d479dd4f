"""Makes the trimmed schema of a CustomResourceDefinition: `python -m tests.charts.trim_crd VERSION < crd.yaml > crds/KIND.json`.

Descriptions are left out, and so are the rules in CEL, which no JSON Schema validator runs. Every object with listed properties refuses
others, because an API server drops unknown fields without a word and a manifest must not rely on one.
"""

import json
import sys
from typing import Any

import yaml

LEFT_OUT = {
    "description",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "default",
}


def trimmed(schema: Any) -> Any:
    """The schema as JSON Schema, strict."""
    if isinstance(schema, list):
        return [trimmed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: trimmed(part) for name, part in value.items()}
        elif key not in LEFT_OUT:
            kept[key] = trimmed(value)
    if kept.pop("x-kubernetes-int-or-string", False):
        kept.pop("anyOf", None)
        kept["type"] = ["integer", "string"]
    if "properties" in kept and not kept.pop("x-kubernetes-preserve-unknown-fields", False):
        kept.setdefault("additionalProperties", False)
    return kept


def schema_of(crd: dict[str, Any], version: str) -> dict[str, Any]:
    """The trimmed schema of one version, with the kind, and with the status left out."""
    spec = crd["spec"]
    found = next(v for v in spec["versions"] if v["name"] == version)
    schema = trimmed(found["schema"]["openAPIV3Schema"])
    schema["properties"] |= {
        "apiVersion": {"const": f"{spec['group']}/{version}"},
        "kind": {"const": spec["names"]["kind"]},
        "metadata": {"type": "object"},
    }
    schema["properties"].pop("status", None)
    schema["required"] = sorted({*schema.get("required", []), "apiVersion", "kind", "metadata"})
    return schema


if __name__ == "__main__":
    json.dump(schema_of(yaml.safe_load(sys.stdin), sys.argv[1]), sys.stdout, separators=(",", ":"), sort_keys=True)
    print()
