"""What the simulated engine reads of an inference request, and how it refuses one: with the messages of the dialect's engine.

`read_request` decodes and checks a request, `prompts_of` gives the tokens of its prompts, `chat_text` the rendered chat.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from backends.simengine.faults import FaultRule, rule_of
from backends.simengine.loras import Loras
from backends.simengine.settings import SimSettings
from backends.simengine.shapes import answer_tokens, encode, tokens_of

NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "chat": ("messages",),
    "text": ("prompt",),
    "embd": ("input",),
    "classify": ("input",),
    "pool": ("input",),
    "rerank": ("query", "documents"),
    "score": ("text_1", "text_2"),
    "tokenize": ("prompt",),
    "detok": ("tokens",),
}
"""The members that a request needs, by its kind."""
CHATS_TOO: Final = frozenset({"embd", "classify", "pool", "tokenize"})
"""Kinds that take messages in place of the input or the prompt, at vLLM."""


class ErrorAnswer(Exception):
    """An error reply to a request."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


def read_request(settings: SimSettings, loras: Loras, kind: str, body: bytes) -> dict[str, Any]:
    """Decode the request and check it as engines do. Raises ErrorAnswer with the dialect's message."""
    try:
        request: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise ErrorAnswer(
            400, "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error'}", "Bad Request"
        ) from None
    members = request if isinstance(request, dict) else {}
    fields = NEEDED[kind]
    if kind in CHATS_TOO and settings.dialect == "vllm" and "messages" in members:
        fields = NEEDED["chat"]
    elif kind == "tokenize" and "content" in members:
        fields = ("content",)
    elif kind == "score" and "queries" in members:
        fields = ("queries", "documents")
    needed = next((field for field in fields if field not in members), None)
    if needed is not None:
        raise ErrorAnswer(400, f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.{needed}'}}", "Bad Request", f"body.{needed}")
    model = members.get("model", settings.models[0])
    adapter = str(model).partition(":")[2]
    if settings.dialect == "sglang" and settings.max_loras and adapter and adapter not in loras.loaded:
        raise ErrorAnswer(400, f"The following requested LoRA adapters are not loaded: {adapter}\nLoaded adapters: {[*loras.loaded]}.")
    if model not in settings.models and model not in loras.loaded and settings.dialect == "vllm":
        aliases = ", ".join(settings.models)
        raise ErrorAnswer(404, f"The model `{model}` does not exist. Valid aliases: {aliases}.", "NotFoundError", "model")
    temperature = members.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise ErrorAnswer(400, f"temperature must be non-negative, got {temperature}. (parameter=temperature)", param="temperature")
    if members.get("cache_salt") == "":
        raise ErrorAnswer(400, "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)", param="cache_salt")
    return members


def prompts_of(kind: str, request: dict[str, Any]) -> list[list[int]]:
    """The token ids of every prompt of the request."""
    if kind == "chat":
        messages, said = turns_of(request)
        return [tokens_of(chat_text(messages, request.get("tools"))) + answer_tokens(said)]
    prompts = request["prompt" if kind == "text" else "input"]
    if isinstance(prompts, str):
        return [tokens_of(prompts)]
    if prompts and all(isinstance(item, int) for item in prompts):
        return [prompts]
    return [tokens_of(item) if isinstance(item, str) else item for item in prompts]


def turns_of(request: dict[str, Any]) -> tuple[Any, str]:
    """The messages of a chat before the answer, and what the answer has said already (`continue_final_message`)."""
    messages = request["messages"]
    if not request.get("continue_final_message"):
        return messages, ""
    last = messages[-1] if isinstance(messages, list) and messages else {}
    if request.get("add_generation_prompt"):
        raise ErrorAnswer(400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    if last.get("role") != "assistant" or len(messages) < 2 or not isinstance(last.get("content"), str):
        raise ErrorAnswer(400, "continue_final_message is set but the final message does not appear in the chat after rendering it.")
    return messages[:-1], last["content"]


def chat_text(messages: Any, tools: Any = None) -> str:
    """The rendered chat: the tools and one marked block per message, so that the beginning of a conversation is a prefix of its
    continuation."""
    if not isinstance(messages, list) or not messages:
        raise ErrorAnswer(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
    blocks = [f"<|tools|> {encode(tools).decode()} <|end|>\n"] if tools else []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)
        calls = f" {encode(message['tool_calls']).decode()}" if message.get("tool_calls") else ""
        blocks.append(f"<|{message.get('role')}|> {text}{calls} <|end|>\n")
    return "".join(blocks) + "<|assistant|> "


def too_long(dialect: str, longest: int, tokens: int) -> str:
    """The dialect's message for a prompt over the context length."""
    if dialect == "sglang":
        return f"The input ({tokens} tokens) is longer than the model's context length ({longest} tokens)."
    return (
        f"This model's maximum context length is {longest} tokens. However, your prompt contains at least {longest + 1} input tokens, "
        f"which exceeds this limit even without any output tokens. (parameter=input_tokens, value={longest + 1})"
    )


def own_fault(body: bytes) -> FaultRule | None:
    """The fault that the request names, or None. Raises ErrorAnswer for an unknown one."""
    if b'"sim_fault"' not in body:
        return None
    try:
        fault = msgspec.json.decode(body).get("sim_fault")
        return None if fault is None else rule_of(fault if isinstance(fault, dict) else {"name": fault})
    except (ValueError, AttributeError) as error:
        raise ErrorAnswer(400, f"sim_fault: {error}", param="sim_fault") from None
