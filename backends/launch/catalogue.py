"""The shipped launch configurations, and users' own files of the same form: read, merged over the shared part, checked."""

from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from backends.launch.config import LaunchConfig, laid_over
from backends.launch.manifest import manifest_for
from backends.launch.resolve import LaunchError, resolve
from domain.mistakes import words

ENGINES: Final = ("vllm", "sglang")
MAX_FILE_BYTES: Final = 256 * 1024
"""Largest file read; the longest shipped one is 4 KB."""


def _folder() -> Traversable:
    return files(__package__) / "configs"


@cache
def names() -> tuple[str, ...]:
    """The names of the shipped configurations, sorted, vLLM's first."""
    stems = [file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")]
    return tuple(sorted(stems, key=lambda name: (not name.startswith("vllm"), name)))


def text_of(name: str) -> str:
    """The text of a shipped configuration's file, comments included. Raises LaunchError when there is none of this name."""
    if name not in names():
        near = get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise LaunchError(f"there is no launch configuration {name!r}{hint} (tidegate engine list shows them; a file's name ends in .yaml)")
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def shared_text(engine: str) -> str:
    """The text of the file with the flags that the gateway needs on every engine of this kind."""
    return (_folder() / "shared" / f"{engine}.yaml").read_text(encoding="utf-8")


def load(name: str) -> LaunchConfig:
    """The shipped configuration of this name, or the file when `name` ends in `.yaml` or `.yml`.

    Raises:
        LaunchError: the file is missing, cannot be read, or is wrong; the text names file and place.
    """
    if not name.endswith((".yaml", ".yml")):
        return parse(text_of(name), f"{name}.yaml")
    try:
        with Path(name).open("rb") as file:
            body = file.read(MAX_FILE_BYTES + 1)
        if len(body) > MAX_FILE_BYTES:
            raise LaunchError(f"{name}: is larger than {MAX_FILE_BYTES} bytes; that is no launch configuration")
        return parse(body.decode(), name)
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{name}: cannot be read ({error})") from None


def parse(text: str, source: str) -> LaunchConfig:
    """The configuration in `text`, checked with its own parameters. Raises LaunchError, which names `source`."""
    own = _yaml(text, source)
    engine = own.get("engine")
    if engine not in ENGINES:
        raise LaunchError(f"{source}: engine: is {engine!r}; write {' or '.join(ENGINES)}")
    merged = laid_over(_yaml(shared_text(str(engine)), f"shared/{engine}.yaml"), own)
    try:
        config = LaunchConfig.model_validate(merged)
        resolve(config, manifest_for(config.engine, config.version))
    except ValidationError as error:
        lines = [f"{source}: {'.'.join(map(str, problem['loc']))}: {words(problem)}" for problem in error.errors()]
        raise LaunchError("\n".join(lines)) from None
    except LookupError as error:
        raise LaunchError(f"{source}: version: {error}") from None
    except LaunchError as error:
        raise LaunchError("\n".join(f"{source}: {line}" for line in str(error).splitlines())) from None
    return config


def _yaml(text: str, source: str) -> dict[str, Any]:
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise LaunchError(f"{source}: {error}") from None
    if not isinstance(document, dict):
        raise LaunchError(f"{source}: holds no mapping")
    return document


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, made to refuse duplicate keys, of which the second would silently win."""


def _unique_keys(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key, _ in node.value:
        if key.value in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_keys)
