"""Runs inside an engine's own environment: its parser, and vLLM's configuration, over command lines that come in as JSON.

Input (stdin): {"engine": "vllm", "lines": {name: [arguments after the program]}, "environments": {name: {…}}}.
Output (last line of stdout): {"version": …, "verdicts": {name: null or what is wrong}}.
"""

import json
import os
import sys
import traceback
from typing import Any

STUBS: list[Any] = []
"""Kept: a library's operators go with it."""


def vllm_verdicts(lines: dict[str, list[str]]) -> tuple[str, dict[str, str | None]]:
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
    except ImportError:  # 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args

    def check(line: list[str]) -> None:
        parser = make_arg_parser(FlexibleArgumentParser(allow_abbrev=False))
        args = parser.parse_args(line)
        validate_parsed_serve_args(args)
        args.model = args.model_tag
        AsyncEngineArgs.from_cli_args(args).create_engine_config()

    return vllm.__version__.split("+")[0], _each(lines, check)


def sglang_verdicts(lines: dict[str, list[str]]) -> tuple[str, dict[str, str | None]]:
    stubs()
    from importlib.metadata import version

    from sglang.srt.server_args import prepare_server_args

    return version("sglang"), _each(lines, prepare_server_args)


def stubs() -> None:
    """Operators of torchvision that are not there beside a CPU build of torch, and that SGLang's imports ask for."""
    import torch

    if not STUBS:
        STUBS.append(torch.library.Library("torchvision", "DEF"))
        for name in ("nms", "qnms"):
            STUBS[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _each(lines: dict[str, list[str]], check: object) -> dict[str, str | None]:
    verdicts: dict[str, str | None] = {}
    for name, line in lines.items():
        try:
            check(line)  # type: ignore[operator]  # one of the two above
            verdicts[name] = None
        except SystemExit as end:
            verdicts[name] = f"the parser exits with {end.code}"
        except Exception as error:
            verdicts[name] = f"{type(error).__name__}: {error} {traceback.format_exc()[-800:]}"
    return verdicts


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ.update({"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "VLLM_NO_USAGE_STATS": "1"})
    version, verdicts = {"vllm": vllm_verdicts, "sglang": sglang_verdicts}[asked["engine"]](asked["lines"])
    print("\n" + json.dumps({"version": version, "verdicts": verdicts}))


if __name__ == "__main__":
    main()
