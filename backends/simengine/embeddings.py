"""The simulated engine's embeddings: vectors computed from the text alone, in the format of OpenAI's endpoint."""

import base64
import struct
from typing import Any, Final

from backends.simengine import shapes
from backends.simengine.text import embedding, tokens_of

DIMENSIONS: Final = 256


def embeddings(request: dict[str, Any], head: shapes.Ids) -> tuple[bytes, int]:
    """The reply's body, and the number of embedded tokens."""
    inputs = request["input"]
    texts = [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else list(inputs)
    counts = [len(tokens_of(t)) if isinstance(t, str) else len(t) for t in texts]
    size = int(request.get("dimensions") or DIMENSIONS)
    data = []
    for i, text in enumerate(texts):
        vector: Any = embedding(text if isinstance(text, str) else repr(text), size)
        if request.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        data.append({"object": "embedding", "index": i, "embedding": vector})
    total = {"prompt_tokens": sum(counts), "total_tokens": sum(counts), "completion_tokens": 0}
    body = {"id": head.id, "object": "list", "created": head.created, "model": head.model, "data": data, "usage": total}
    return shapes.encode(body), sum(counts)
