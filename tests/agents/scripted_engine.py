"""An engine for coding agents: it calls the agent's tool that runs a command, once, and answers in words when it has the result.

It speaks as much of vLLM's server as a gateway asks: chats, plain and streamed, the model list, and health.
"""

import json
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL: Final = "scripted"
COMMAND: Final = "echo harbour > note.txt"
DONE: Final = "The note is written."
RUNNERS: Final[dict[str, dict[str, Any]]] = {
    "Bash": {"command": COMMAND, "description": "Write the note"},
    "exec_command": {"cmd": COMMAND},
    "shell_command": {"command": COMMAND},
    "shell": {"command": ["bash", "-c", COMMAND]},
}
"""Tools of agents that run a command, with the arguments that run ours."""
USAGE: Final = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


class ScriptedEngine:
    """The application, with the bodies of the chats that it got."""

    def __init__(self) -> None:
        self.chats: list[dict[str, Any]] = []
        routes = [
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", lambda _: Response()),
        ]
        self.app = Starlette(routes=routes)

    async def _models(self, _: Request) -> Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 200_000}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        body: dict[str, Any] = json.loads(await request.body())
        self.chats.append(body)
        message, reason = answer(body)
        head = {"id": "chatcmpl-scripted", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        pieces = [{"role": "assistant", "content": ""}, *deltas(message)]
        choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": piece, "finish_reason": None}] for piece in pieces]
        choices.append([{"index": 0, "delta": {}, "finish_reason": reason}])
        events = [{**head, "object": "chat.completion.chunk", "choices": choice} for choice in choices]
        events.append({**head, "object": "chat.completion.chunk", "choices": [], "usage": USAGE})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events] + ["data: [DONE]\n\n"]
        return StreamingResponse(iter(lines), media_type="text/event-stream")


def answer(body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message that answers a chat, and its finish reason."""
    names = [tool["function"]["name"] for tool in body.get("tools") or []]
    runner = next((name for name in RUNNERS if name in names), None)
    if runner is None or any(message["role"] == "tool" for message in body["messages"]):
        return {"content": DONE}, "stop"
    function = {"name": runner, "arguments": json.dumps(RUNNERS[runner])}
    return {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}, "tool_calls"


def deltas(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The message in pieces."""
    if message["content"]:
        return [{"content": piece} for piece in (message["content"][:7], message["content"][7:])]
    (call,) = message["tool_calls"]
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    begin = {"index": 0, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
    middle = len(arguments) // 2
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in (arguments[:middle], arguments[middle:])]
    return [{"tool_calls": [piece]} for piece in (begin, *pieces)]
