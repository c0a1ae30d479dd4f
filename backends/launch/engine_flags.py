"""Writes a manifest of the flags that an engine's own argument parser takes. Run by the engine's Python, where Tidegate is not installed.

    PYTHONPATH=. /path/to/vllm-venv/bin/python -m backends.launch.engine_flags vllm > backends/launch/manifests/vllm-0.33.0.json

This module reaches the parsers of vLLM and SGLang; launch configurations are not its matter, and `manifest.py` reads its output. Standard
library only. A flag's type is found by trying: the results of its converter for a few texts are more reliable than the converter's name,
which is often a wrapper's.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any, Final

MOST_CHOICES: Final = 64
"""Choices kept for a flag; SGLang's parsers of tools and the like list more, and no configuration here sets them."""


def describe(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Every long flag of a parser: its type, its choices, and whether it takes several values."""
    flags: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        for name in action.option_strings:
            if not name.startswith("--"):
                continue
            entry: dict[str, Any] = {"type": _type(action)}
            choices = [str(choice) for choice in action.choices or ()]
            if 0 < len(choices) <= MOST_CHOICES:
                entry["choices"] = choices
            if action.nargs in ("*", "+") or (isinstance(action.nargs, int) and action.nargs > 1):
                entry["many"] = True
            flags[name.replace("_", "-")] = entry
    return dict(sorted(flags.items()))


def _type(action: argparse.Action) -> str:
    """`switch`, `json`, `int`, `float` or `text`.

    An integer converter is recognised by its refusal of "0.5", and a JSON converter by a result for "{}" that is no text.
    """
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "switch"
    if action.type is None or not callable(action.type):
        return "text"
    if not isinstance(_converted(action.type, "{}"), str | None):
        return "json"
    if isinstance(_converted(action.type, "0.5"), float):
        return "float"
    return "int" if type(_converted(action.type, "7")) is int else "text"


def _converted(convert: Callable[[str], Any], text: str) -> Any:
    try:
        return convert(text)
    except Exception:  # noqa: BLE001 - converters of engines refuse a probe with whatever error they like
        return None


def vllm() -> dict[str, Any]:
    """The manifest of vLLM's `vllm serve`. The parser moved between releases; the newest place is tried first."""
    import vllm as engine  # type: ignore[import-not-found,unused-ignore]  # lives in the engine's environment
    from vllm.config import (  # type: ignore[import-not-found,unused-ignore]  # the same
        CompilationConfig,
        KVEventsConfig,
        KVTransferConfig,
        SpeculativeConfig,
    )
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found,unused-ignore]  # the same

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # type: ignore[import-not-found,unused-ignore]  # the same
    except ImportError:
        from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found,unused-ignore]  # the same
    flags = describe(make_arg_parser(FlexibleArgumentParser()))
    for name, config in {
        "--compilation-config": CompilationConfig,
        "--kv-events-config": KVEventsConfig,
        "--kv-transfer-config": KVTransferConfig,
        "--speculative-config": SpeculativeConfig,
    }.items():
        flags[name]["type"] = "json"
        flags[name]["keys"] = sorted(field.name for field in dataclasses.fields(config) if field.init)
    return {"engine": "vllm", "version": engine.__version__.split("+")[0], "flags": flags}


def sglang() -> dict[str, Any]:
    """The manifest of SGLang's `sglang.launch_server`."""
    from importlib.metadata import version

    from sglang.srt.disaggregation.kv_events import KVEventsConfig  # type: ignore[import-not-found,unused-ignore]  # as above
    from sglang.srt.server_args import ServerArgs  # type: ignore[import-not-found,unused-ignore]  # as above

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    flags = describe(parser)
    flags["--kv-events-config"]["type"] = "json"
    flags["--kv-events-config"]["keys"] = sorted(KVEventsConfig.model_fields)
    return {"engine": "sglang", "version": version("sglang"), "flags": flags}


ENGINES: Final[dict[str, Callable[[], dict[str, Any]]]] = {"vllm": vllm, "sglang": sglang}


def main(arguments: list[str]) -> int:
    """Print the manifest of the named engine; returns 2 when the name is missing or unknown."""
    if len(arguments) != 1 or arguments[0] not in ENGINES:
        print(f"usage: python -m backends.launch.engine_flags {'|'.join(ENGINES)}", file=sys.stderr)
        return 2
    print(json.dumps(ENGINES[arguments[0]](), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
