"""JSON schemas and reference tables from the models, so that editors and readers see what the loader checks.

Works for any strict model; callers hand in models other than this package's documents.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from policies.prompts.schema import PromptDocument
from policies.rollout.document import RolloutDocument
from policies.schema import PolicyDocument

REGENERATE: Final = "tidegate export-schema"
"""The command to run when the written files and the models differ."""

POLICY_SCHEMA: Final = "policy.schema.json"
PROMPT_SCHEMA: Final = "prompt.schema.json"
ROLLOUT_SCHEMA: Final = "rollout.schema.json"

UNITS: Final = {
    "_bytes_per_s": "bytes/s",
    "_tokens_per_s": "tokens/s",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_s": "seconds",
}
"""Unit by the suffix of a field's name; the first suffix that fits counts."""


def schema_text(model: type[BaseModel]) -> str:
    """The model's JSON schema (draft 2020-12) as the text of a file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | model.model_json_schema()
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def policy_schemas() -> dict[str, str]:
    """The schemas of this package, text by file name."""
    models: dict[str, type[BaseModel]] = {POLICY_SCHEMA: PolicyDocument, PROMPT_SCHEMA: PromptDocument, ROLLOUT_SCHEMA: RolloutDocument}
    return {name: schema_text(model) for name, model in models.items()}


def write_schemas(folder: Path, schemas: Mapping[str, str]) -> list[Path]:
    """Write each schema into `folder`, creating it; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in schemas]


def field_table(model: type[BaseModel]) -> str:
    """Every field that holds a value, as a Markdown table: name, type, default, unit, meaning."""
    schema = model.model_json_schema()
    rows = ["| field | type | default | unit | meaning |", "|---|---|---|---|---|"]
    for path, field, required in _fields(schema, schema.get("$defs", {}), "", {}):
        cells = (f"`{path}`", _type(field), _default(field, required), _unit(path), field.get("description", ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def with_sections(text: str, sections: Mapping[str, str]) -> str:
    """The page with the text between `<!-- begin NAME -->` and `<!-- end NAME -->` replaced, for each section.

    Raises:
        ValueError: a section has no such pair of lines.
    """
    for name, content in sections.items():
        begin = f"<!-- begin {name} -->\n"
        end = f"<!-- end {name} -->"
        before, opening, rest = text.partition(begin)
        _, closing, after = rest.partition(end)
        if not opening or not closing:
            raise ValueError(f"the page has no lines {begin.strip()} and {end}")
        text = f"{before}{begin}{content}{end}{after}"
    return text


def _fields(schema: Any, defs: Any, prefix: str, above: Any) -> Iterator[tuple[str, Any, bool]]:
    """(path, JSON schema, required) of each leaf, in the order of the model. A mapping that repeats fields of the outermost level is one
    row; the repeated fields are not listed again.

    Args:
        above: the properties of the outermost level.
    """
    for name, field in schema["properties"].items():
        if above.get(name) == field:
            continue
        path = f"{prefix}{name}"
        inner, suffix = _inner(field, defs)
        repeats = inner is not None and any(above.get(key) == value for key, value in inner["properties"].items())
        if inner is None or repeats or _nullable(field):
            yield path, field | ({} if inner is None else {"type": "mapping"}), name in schema.get("required", ())
        if inner is not None:
            yield from _fields(inner, defs, f"{path}{suffix}.", above or schema["properties"])


def _inner(field: Any, defs: Any) -> tuple[Any, str]:
    """The schema of the model that a field holds, directly or in a list, and the suffix of the field's path; None for a plain value."""
    for option in (field, *field.get("anyOf", ())):
        if "$ref" in option:
            return defs[option["$ref"].rpartition("/")[2]], ""
        if "$ref" in option.get("items", ()):
            return defs[option["items"]["$ref"].rpartition("/")[2]], "[]"
    return None, ""


def _nullable(field: Any) -> bool:
    return any(option.get("type") == "null" for option in field.get("anyOf", ()))


_TYPES: Final = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "mapping": "mapping",
    "object": "mapping",
}


def _type(field: Any) -> str:
    if "oneOf" in field:
        # options that a field in them discriminates: one row for all, and a table of its own for each
        return " or ".join(dict.fromkeys("mapping" if "$ref" in option else _type(option) for option in field["oneOf"]))
    if "enum" in field:
        return " | ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    if field.get("type") == "array":
        return f"list of {_type(field['items'])}"
    if "anyOf" in field and "type" not in field:
        return _type(next(option for option in field["anyOf"] if option.get("type") != "null"))
    return _TYPES[field["type"]] + _bounds(field)


def _bounds(field: Any) -> str:
    low = field.get("minimum")
    high = field.get("maximum")
    above = field.get("exclusiveMinimum")
    parts = []
    if above is not None:
        parts.append(f"above {_number(above)}")
    if low is not None and high is not None:
        return f", {_number(low)} to {_number(high)}"
    if low is not None:
        parts.append(f"at least {_number(low)}")
    if high is not None:
        parts.append(f"at most {_number(high)}")
    return f", {', '.join(parts)}" if parts else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _default(field: Any, required: bool) -> str:
    return "required" if required else f"`{json.dumps(field.get('default'))}`"


def _unit(path: str) -> str:
    return next((unit for ending, unit in UNITS.items() if path.endswith(ending)), "")


if __name__ == "__main__":
    for written in write_schemas(Path("docs/schema"), policy_schemas()):
        sys.stdout.write(f"wrote {written}\n")
