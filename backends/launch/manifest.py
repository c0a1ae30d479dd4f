"""The flags that a release of an engine takes, and the check of a launch configuration's flags against them.

The manifests in `manifests/` are written by `engine_flags.py` inside each engine's own environment, from its own parser;
their file names carry the release. `check_flags` is pure.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec
from pydantic import JsonValue

from backends.launch.values import out_of_range


class Flag(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One flag of the engine's parser."""

    type: Literal["switch", "json", "int", "float", "text"]
    choices: tuple[str, ...] | None = None
    many: bool = False
    """Whether the flag takes several values."""
    keys: tuple[str, ...] | None = None
    """Members that its JSON may have, where the engine refuses or ignores others."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All flags of one release."""

    engine: str
    version: str
    flags: dict[str, Flag]
    """The flags by name, with dashes."""


def manifest_for(engine: str, version: str) -> Manifest:
    """The shipped manifest of a release. Raises LookupError, which names the releases with one, when there is none."""
    known = manifests()
    if (engine, version) not in known:
        there = ", ".join(sorted(of for name, of in known if name == engine)) or "none"
        raise LookupError(f"there is no list of the flags of {engine} {version}; releases with one: {there}")
    return known[engine, version]


@cache
def manifests() -> Mapping[tuple[str, str], Manifest]:
    """The shipped manifests, by engine and release."""
    folder = files(__package__) / "manifests"
    read = [msgspec.json.decode(file.read_bytes(), type=Manifest) for file in folder.iterdir() if file.name.endswith(".json")]
    return {(manifest.engine, manifest.version): manifest for manifest in read}


def check_flags(manifest: Manifest, flags: Mapping[str, JsonValue]) -> list[str]:
    """The mistakes in these flags (names without dashes, values resolved), one sentence each; empty when there are none."""
    problems = []
    for name, value in flags.items():
        known = manifest.flags.get(f"--{name}")
        if known is None:
            near = get_close_matches(f"--{name}", manifest.flags, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            problems.append(f"--{name}: {manifest.engine} {manifest.version} has no such flag{hint}")
        elif reason := _mismatch(known, value) or out_of_range(name, value):
            problems.append(f"--{name}: {reason}")
    return problems


def _mismatch(flag: Flag, value: JsonValue) -> str | None:
    if flag.type == "switch":
        return None if value is True else f"is a switch; write true, or leave it out (here: {json.dumps(value)})"
    if isinstance(value, list):
        if not flag.many:
            return "takes one value, and this is a list"
        return next((reason for item in value if (reason := _mismatch(flag, item))), None)
    if flag.type == "json":
        return _json_mismatch(flag, value)
    if isinstance(value, dict | bool) or value is None:
        return f"takes {_kind(flag)}, not {json.dumps(value)}"
    if flag.type == "int" and not _is(int, value):
        return f"takes a whole number, not {value!r}"
    if flag.type == "float" and not _is(float, value):
        return f"takes a number, not {value!r}"
    if flag.choices is not None and str(value) not in flag.choices:
        return f"does not take {value!r}; choices: {', '.join(flag.choices)}"
    return None


def _json_mismatch(flag: Flag, value: JsonValue) -> str | None:
    if not isinstance(value, dict):
        return f"takes a mapping, not {json.dumps(value)}"
    unknown = [] if flag.keys is None else [key for key in value if key not in flag.keys]
    if not unknown or flag.keys is None:
        return None
    near = get_close_matches(unknown[0], flag.keys, n=1)
    return f"has no member {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _kind(flag: Flag) -> str:
    return {"int": "a whole number", "float": "a number"}.get(flag.type, "text")


def _is(kind: type[int] | type[float], value: str | int | float) -> bool:
    try:
        kind(str(value))
    except ValueError:
        return False
    return True
