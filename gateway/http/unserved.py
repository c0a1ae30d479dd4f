"""Routes that the field knows and this gateway does not serve, each with a sentence that says so and what to do instead.

They are 404s like any unknown path, and the access log has their method and path, so that operators see what is asked for. Docs:
`docs/reference/api.md`, "Not here".

Size: a table apart, because `data_port.py` is the list of what is served.
"""

from typing import Final

INSTEAD: Final = {
    "/v1/assistants": "Assistants are not served: keep instructions and tools in the application, and send them to /v1/responses.",
    "/v1/threads": "Threads are not served: send the conversation to /v1/responses.",
    "/v1/vector_stores": "Vector stores are not served: search in your own store, and use /v1/embeddings and /v1/rerank for it.",
    "/v1/fine_tuning": "Fine-tuning is not served: train adapters elsewhere, and have them served by name.",
    "/v1/images": "Images are not made here: no engine of the fleet draws.",
    "/v1/videos": "Videos are not made here: no engine of the fleet draws.",
    "/v1/evals": "Evaluations are not served: ask models here from a tool of your own.",
    "/v1/graders": "Graders are not served: ask models here from a tool of your own.",
    "/v1/containers": "Containers are not served: the gateway runs no code.",
    "/v1/skills": "Skills are not served: the gateway runs no code.",
    "/v1/chatkit": "ChatKit is not served: send the conversation to /v1/responses.",
    "/v1/mcp": "The gateway is no MCP server: have the client call those, and send their tools with each request.",
    "/v1/organization": "Organisations are managed on the admin port, with `tidegate tenant` and `tidegate key`.",
    "/v1/organizations": "Organisations are managed on the admin port, with `tidegate tenant` and `tidegate key`.",
    "/v1/complete": "The old text completions of this API are not served: use /v1/messages.",
    "/v1/messages/batches": "Batches of messages are not served: send each message by itself.",
    "/v1/responses/compact": "Conversations are not compacted here: shorten the conversation in the client.",
    "/v1/realtime": "Of realtime sessions, the WebSocket /v1/realtime?model=… is served, with the key of the gateway itself.",
    "/v1/audio": "Of audio, /v1/audio/transcriptions, /v1/audio/translations and /v1/audio/speech are served.",
}
"""The beginning of the path, whole segments of it, and the sentence. Longer beginnings stand in front of shorter ones."""


def instead_of(path: str) -> str:
    """The sentence for a path that is not served; empty where nothing is known of it."""
    return next((sentence for begin, sentence in INSTEAD.items() if path == begin or path.startswith(f"{begin}/")), "")
