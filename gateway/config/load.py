"""Reads `tidegate.yaml`: the only module that takes in the process's configuration and its environment.

Variables `TIDEGATE__SECTION__KEY` override keys of the file (`gateway/config/environment.py`).

Contradictory settings do not load (`gateway/config/checks.py`); `gateway/config/settings.py` defines the fields;
`gateway/config/read_secrets.py` reads the secrets that settings refer to.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from gateway.config.addresses import split_address
from gateway.config.checks import RawSettings, contradictions
from gateway.config.listeners import ConnectionLimits
from gateway.config.pools import PoolSettings
from gateway.config.secrets import SecretReference
from gateway.config.settings import Settings
from gateway.config.settings_file import read_settings_file
from policies.yaml.located import Located
from policies.yaml.problems import ConfigError, Problem
from policies.yaml.validate import checked, literal_secrets


class SettingsReading(msgspec.Struct, frozen=True):
    """The result of reading a settings file, as far as the file can be understood."""

    settings: Settings | None
    """The loaded settings; None as soon as there is a problem."""
    problems: tuple[Problem, ...]
    pools: tuple[str, ...] | None = None
    """Names of the pools, also of pools with problems; None when a pool has no readable name."""
    policies_dir: Path | None = None
    prompts_dir: Path | None = None
    loras: Mapping[str, tuple[str, ...] | None] = {}
    """Names of the adapters by pool; None where adapters may be registered at any time."""
    located: Located | None = None
    """The file's values with their positions; None when the file is no YAML."""
    warnings: tuple[str, ...] = ()
    """Sentences about variables of the environment that name no setting."""

    @property
    def docs_url(self) -> object:
        """`docs_url` as it is written, whatever it is, also where the settings do not load."""
        return self.located.value("docs_url") if self.located is not None else None


def load_settings(path: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check a settings file.

    Args:
        path: of the file; relative paths in it start at its folder.
        environ: what `${NAME}` stands for, and the variables `TIDEGATE__SECTION__KEY` that override keys of the file; the process's
            environment unless given.

    Raises:
        ConfigError: every mistake found, with file, line, key and what to write instead.
    """
    reading = read_settings(path, environ)
    if reading.settings is None:
        raise ConfigError(reading.problems)
    return reading.settings


def load_settings_again(path: Path, environ: Mapping[str, str], first: Settings) -> Settings:
    """The settings of a process that replaces another one.

    Args:
        first: the settings that the first process started with. It keeps running, and it alone copies a database's policies to this
            machine before others start.

    Raises:
        ConfigError: as `load_settings` does; or `policies_from` became `database` in the meantime.
    """
    settings = load_settings(path, environ)
    if settings.policies_from == "database" != first.policies_from:
        message = "became `database` after the first process started, which is the one that asks the database for them"
        raise ConfigError([Problem(str(path), 1, 1, "policies_from", message, "send SIGUSR2, which replaces that one too, or start anew")])
    return settings


def read_settings(path: Path, environ: Mapping[str, str] | None = None) -> SettingsReading:
    """`load_settings` for callers that go on after a mistake, to find further mistakes elsewhere."""
    environ = os.environ if environ is None else environ
    try:
        located, warnings = read_settings_file(path, environ)
    except ConfigError as error:
        return SettingsReading(None, error.problems)
    located = msgspec.structs.replace(located, problems=(*located.problems, *literal_secrets(located)))
    folder = path.resolve().parent
    written = RawSettings(located, _DEFAULTS)
    settings, problems = checked(Settings, located)
    problems += contradictions(written, folder)
    policies = written.value("policies")
    prompts = written.value("prompts")
    return SettingsReading(
        settings=settings.based_at(folder) if settings is not None and not problems else None,
        problems=tuple(problems),
        pools=written.pool_names(),
        policies_dir=folder / policies if isinstance(policies, str) else None,
        prompts_dir=folder / prompts if isinstance(prompts, str) else None,
        loras=written.lora_names(),
        located=located,
        warnings=warnings,
    )


_DEFAULTS: Final[dict[str, Any]] = {
    name: field.default.model_dump() if isinstance(field.default, BaseModel) else field.default
    for name, field in Settings.model_fields.items()
    if not field.is_required()
}


__all__ = [
    "ConfigError",
    "ConnectionLimits",
    "PoolSettings",
    "Problem",
    "SecretReference",
    "Settings",
    "SettingsReading",
    "load_settings",
    "load_settings_again",
    "read_settings",
    "split_address",
]
