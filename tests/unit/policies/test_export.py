import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from pydantic import Field

from domain.strict import Strict
from policies import export
from policies.export import POLICY_SCHEMA, PROMPT_SCHEMA, REGENERATE, field_table, policy_schemas, with_sections
from policies.yaml.located import read_yaml

ROOT = Path(export.__file__).parents[1]


class Part(Strict):
    size_bytes: int = Field(ge=1, le=2048, description="How large.")


class Thing(Strict):
    wait_s: float = Field(default=1.5, gt=0, description="How long | or not.")
    part: Part | None = Field(default=None, description="One.")
    parts: list[Part] = Field(default=[], description="Many.")


def test_the_written_schema_is_the_models():
    for name, text in policy_schemas().items():
        assert (ROOT / "docs" / "schema" / name).read_text() == text, f"run: {REGENERATE}"


def test_a_prompt_meets_its_schema_as_editors_check_it():
    schema = export.json.loads(policy_schemas()[PROMPT_SCHEMA])
    jsonschema.Draft202012Validator.check_schema(schema)
    data = read_yaml(ROOT / "policies" / "examples" / "prompts" / "customer_support@2.yaml", None).data
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"variables": {"a": {"type": "text"}}}, schema)


@pytest.mark.parametrize("name", ["acme", "everyone"])
def test_examples_meet_the_schema_as_editors_check_it(name):
    schema = export.json.loads(policy_schemas()[POLICY_SCHEMA])
    jsonschema.Draft202012Validator.check_schema(schema)
    data = read_yaml(ROOT / "policies" / "examples" / f"{name}.yaml", None).data
    jsonschema.validate(data, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | {"unknown": 1}, schema)


def test_a_table_has_a_row_per_value():
    assert field_table(Thing).splitlines()[2:] == [
        "| `wait_s` | number, above 0 | `1.5` | seconds | How long \\| or not. |",
        "| `part` | mapping | `null` |  | One. |",
        "| `part.size_bytes` | whole number, 1 to 2,048 | required | bytes | How large. |",
        "| `parts[].size_bytes` | whole number, 1 to 2,048 | required | bytes | How large. |",
    ]


def test_sections_are_replaced_and_the_rest_kept():
    page = "a\n<!-- begin x -->\nold\n<!-- end x -->\nb\n"
    once = with_sections(page, {"x": "new\n"})
    assert once == "a\n<!-- begin x -->\nnew\n<!-- end x -->\nb\n"
    assert with_sections(once, {"x": "new\n"}) == once
    with pytest.raises(ValueError, match="begin y"):
        with_sections(page, {"y": ""})


def test_the_module_writes_its_schema(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "policies.export"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    assert done.stdout == b"".join(b"wrote docs/schema/%b.schema.json\n" % name for name in (b"policy", b"prompt", b"rollout"))
    assert (tmp_path / "docs" / "schema" / POLICY_SCHEMA).read_text() == policy_schemas()[POLICY_SCHEMA]
