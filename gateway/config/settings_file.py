"""Reads the settings file as it is written, without the models that say what settings there are.

Clients of a gateway need its address and a token, and importing the models takes ten times as long as reading the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.config.addresses import DOCS_VARIABLE
from policies.yaml.located import Located, read_yaml

MISSING: Final = "run the command in the folder of that file, or name the file with -c"


def read_settings_file(path: Path, environ: Mapping[str, str]) -> tuple[Located, tuple[str, ...]]:
    """The file's values, with those of the environment in the place of the overridden ones, and warnings about unknown variables.

    Raises:
        ConfigError: the file cannot be read, or is no YAML mapping.
    """
    located = read_yaml(path, environ, MISSING)
    if not any(name.upper().startswith("TIDEGATE__") for name in environ) and not environ.get(DOCS_VARIABLE):
        return located, ()
    # imported only where a variable is set: the import takes longer than reading the file
    from gateway.config.environment import overridden

    return overridden(located, environ)
