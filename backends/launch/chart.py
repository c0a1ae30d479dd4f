"""A launch configuration in the form that the Helm chart `engines` renders it from: placeholders are left in. Pure.

Helm can neither run Python nor read files outside the chart, so `tidegate export-charts` writes this form into the chart, and the chart's
templates fill it. `tests/charts` compares what they render with `resolve`, for every configuration.
"""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from backends.launch.config import LaunchConfig, Scalar
from backends.launch.manifest import Manifest
from backends.launch.resolve import LaunchError

HOST = "0.0.0.0"
"""Pods listen on every interface of theirs; the chart's NetworkPolicy says who gets there."""


def chart_form(config: LaunchConfig) -> dict[str, Any]:
    """The configuration as JSON for the chart.

    Every value is text, because Helm reads numbers as floating-point and prints large ones with an exponent. Flags are a list, because
    Helm sorts the members of mappings. Raises LaunchError for a flag that Kubernetes would change.
    """
    parameters = {**config.parameters, "host": HOST}
    return {
        "name": config.name,
        "engine": config.engine,
        "version": config.version,
        "summary": config.summary,
        "image": config.image,
        "command": config.image_command or config.command,
        "parameters": {name: str(value) for name, value in parameters.items()},
        "flags": [{"name": name, **_form(value, parameters)} for name, value in config.flags.items()],
        "environment": config.environment,
        "hardware": config.hardware.model_dump(),
        "ready_s": config.ready_s,
        "events": isinstance(config.flags.get("kv-events-config"), dict),
    }


def known_flags(manifest: Manifest) -> list[str]:
    """Every flag that a release takes, without dashes: the chart refuses others."""
    return sorted(flag.removeprefix("--") for flag in manifest.flags)


def _form(value: JsonValue, parameters: Mapping[str, Scalar]) -> dict[str, JsonValue]:
    """One flag's value: `text` of one argument, `values` of several, or neither for a switch."""
    if value is True:
        return {}
    if isinstance(value, list):
        return {"values": [_text(item, parameters) for item in value]}
    return {"text": _text(value, parameters)}


def _text(value: JsonValue, parameters: Mapping[str, Scalar]) -> str:
    if not isinstance(value, dict | list):
        return str(value)
    text = json.dumps(value, separators=(",", ":"))
    for name, parameter in parameters.items():
        if not isinstance(parameter, str):
            # inside JSON a text that is one placeholder keeps the type of its parameter
            text = text.replace(f'"{{{name}}}"', f"{{{name}}}")
    if "$(" in text:
        raise LaunchError("a flag's JSON has $( in it, which Kubernetes would expand")
    return text
