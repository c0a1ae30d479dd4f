"""The base class of all configuration in YAML: unknown keys are refused, values are frozen."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen configuration value that refuses unknown keys and silent type coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)
