"""The texts with which an engine's Python package refuses requests, as `engine_refusals/` holds them; reads the package, does not run it.

    python -m tests.wire.refusal_texts .venv-vllm/lib/python3.11/site-packages/vllm vllm > tests/wire/engine_refusals/vllm-0.32.0.jsonl

A line is the file and the text; `{…}` in the text stands for a value that is put in, `{{` for a brace.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDERS: Final = {
    "vllm": (
        "entrypoints/openai/chat_completion",
        "entrypoints/openai/completion",
        "entrypoints/generate/base",
        "entrypoints/serve/engine",
        "entrypoints/serve/utils",
        "entrypoints/pooling/embed",
        "entrypoints/pooling/base",
        "entrypoints/pooling/scoring",
        "sampling_params.py",
        "pooling_params.py",
        "v1/engine/input_processor.py",
        "renderers/chat_utils.py",
        "renderers/online_renderer.py",
        "renderers/base.py",
        "renderers/inputs",
        "renderers/params.py",
        "renderers/hf.py",
        "renderers/embed_utils.py",
        "renderers/mistral.py",
        "multimodal/media",
        "multimodal/parse.py",
        "multimodal/processing",
        "multimodal/image.py",
        "v1/structured_output",
        "tool_parsers/utils.py",
        "tool_parsers/abstract_tool_parser.py",
        "tool_parsers/kimi_k3_tool_parser.py",
        "entrypoints/openai/models",
        "entrypoints/openai/parser",
        "entrypoints/serve/exception_handling",
        "inputs/engine.py",
        "parser/abstract_parser.py",
        "parser/response_template.py",
        "renderers/kimi_k3.py",
        "tasks.py",
        "tokenizers/mistral.py",
        "utils/sparse_utils.py",
        "v1/engine/async_llm.py",
        "v1/sample/logits_processor",
    ),
    "sglang": (
        "srt/entrypoints/openai/serving_base.py",
        "srt/entrypoints/openai/serving_chat.py",
        "srt/entrypoints/openai/serving_completions.py",
        "srt/entrypoints/openai/serving_embedding.py",
        "srt/entrypoints/openai/serving_rerank.py",
        "srt/entrypoints/openai/protocol.py",
        "srt/entrypoints/openai/utils.py",
        "srt/sampling/sampling_params.py",
        "srt/managers/tokenizer_manager.py",
        "srt/managers/io_struct.py",
        "srt/managers/schedule_batch.py",
        "srt/function_call",
        "srt/parser/conversation.py",
        "srt/constrained",
        "srt/utils/common.py",
        "srt/multimodal/mm_utils.py",
        "srt/multimodal/processors/base_processor.py",
        "srt/multimodal/processors/mimo_v2.py",
        "srt/entrypoints/http_server.py",
        "srt/entrypoints/request_headers.py",
    ),
}
"""The files of each package that a chat, a completion, embeddings or a rerank passes through; `unlisted` finds what is missing here."""
LEFT_OUT: Final = {
    "vllm": {
        "entrypoints/anthropic": "no route of the gateway",
        "entrypoints/cohere": "no route of the gateway",
        "entrypoints/generate/generative_scoring": "no route of the gateway",
        "entrypoints/generate/structured_decisions": "no route of the gateway",
        "entrypoints/openai/responses": "no route of the gateway",
        "entrypoints/pooling/pooling": "no route of the gateway",
        "entrypoints/scale_out": "no route of the gateway",
        "entrypoints/serve/sagemaker": "no route of the gateway",
        "entrypoints/serve/tokenize": "not read yet",
        "entrypoints/speech_to_text": "not read yet",
        "entrypoints/rl": "the operator's own calls",
        "entrypoints/serve/dev": "the operator's own calls",
        "entrypoints/serve/elastic_ep": "the operator's own calls",
        "entrypoints/serve/fault_tolerance": "the operator's own calls",
        "entrypoints/common/offline.py": "no server",
        "entrypoints/launchers": "no server",
        "distributed": "servers of engines among themselves",
        "utils/diffusion.py": "at the start",
        "v1/worker": "at the start",
    },
    "sglang": {
        "multimodal_gen": "another server",
        "srt/entrypoints/openai/serving_classify.py": "no route of the gateway",
        "srt/entrypoints/openai/serving_responses.py": "no route of the gateway",
        "srt/entrypoints/openai/serving_score.py": "no route of the gateway",
        "srt/entrypoints/openai/serving_tokenize.py": "not read yet",
        "srt/entrypoints/openai/serving_transcription.py": "not read yet",
        "srt/entrypoints/v1_loads.py": "no route of the gateway",
        "srt/entrypoints/engine_info_bootstrap_server.py": "servers of engines among themselves",
        "srt/mem_cache": "servers of engines among themselves",
    },
}
"""Files that answer with a refusal and that no request of the gateway reaches, with the reason."""
SURE: Final = frozenset({"HTTPException", "VLLMValidationError", "VLLMClientError", "VLLMUnprocessableEntityError", "VLLMNotFoundError"})
"""Exceptions that become an answer to the caller wherever they are raised; a ValueError only does on a request's path."""
REFUSALS: Final = frozenset(
    {"ValueError", "TypeError", "OverflowError", "HTTPException", "VLLMValidationError", "VLLMClientError", "VLLMUnprocessableEntityError"}
)
REPLIES: Final = frozenset({"create_error_response", "create_streaming_error_response"})
SHORTEST: Final = 15
"""Shorter texts are names and codes."""


def texts(file: Path) -> Iterator[str]:
    """Every text that the file raises or answers as an error of the request."""
    for scope in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assigned: dict[str, list[str]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (found := _text(node.value)):
                assigned.setdefault(node.targets[0].id, []).append(found)
        for node in ast.walk(scope):
            call = _refusal(node)
            if call is not None:
                for argument in [*call.args, *(word.value for word in call.keywords if word.arg in ("message", "detail"))][:3]:
                    found = _text(argument)
                    yield from [found] if found else assigned.get(argument.id, []) if isinstance(argument, ast.Name) else []
            elif (
                isinstance(node, ast.Return)
                and scope.name.startswith("_validate")
                and node.value is not None
                and (found := _text(node.value))
            ):
                yield found


def _refusal(node: ast.AST) -> ast.Call | None:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and _name(node.exc) in REFUSALS:
        return node.exc
    return node if isinstance(node, ast.Call) and _name(node) in REPLIES else None


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant):
        return node.value.replace("{", "{{") if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                expression = ast.unparse(value.value).replace("{", "").replace("}", "")
                parts.append("{" + expression + ("!r" if value.conversion == ord("r") else "") + "}")
            else:
                parts.append(_text(value) or "")
        return "".join(parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else (left or "{left}") + (right or "{right}")
    return None


def table(root: Path, engine: str) -> list[str]:
    """The lines of one package's table."""
    seen, lines = set(), []
    for name in FOLDERS[engine]:
        for file in _files(root / name):
            for text in texts(file):
                if len(text) >= SHORTEST and text not in seen:
                    seen.add(text)
                    lines.append(json.dumps([str(file.relative_to(root)), text]))
    return lines


def unlisted(root: Path, engine: str) -> list[str]:
    """The files of a package that surely answer callers with a refusal, and are neither in `FOLDERS` nor in `LEFT_OUT`."""
    listed = {file for name in (*FOLDERS[engine], *LEFT_OUT[engine]) for file in _files(root / name)}
    return [str(file.relative_to(root)) for file in sorted(root.rglob("*.py")) if file not in listed and _refuses(file)]


def _files(path: Path) -> list[Path]:
    return [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))


def _refuses(file: Path) -> bool:
    text = file.read_text("utf-8", errors="replace")
    if not any(name in text for name in (*SURE, *REPLIES)):
        return False
    calls = ((node, node.exc if isinstance(node, ast.Raise) else node) for node in ast.walk(ast.parse(text)))
    return any(isinstance(call, ast.Call) and _name(call) in (SURE if isinstance(node, ast.Raise) else REPLIES) for node, call in calls)


def main() -> None:
    """Print the table of one package."""
    sys.stdout.write("".join(f"{line}\n" for line in table(Path(sys.argv[1]), sys.argv[2])))


if __name__ == "__main__":
    main()
