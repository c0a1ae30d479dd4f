"""Replies of the simulated engine for which nothing is generated: embeddings, orders of documents, scores of pairs, classes, poolings,
token ids and texts of ids.

Each value follows from the text alone. The score of a pair is the share of the query's words that stand in the document; a class is drawn
from a text's vector; ids are hashes of words, so the text of an id is its number in
brackets. The shapes are those of vLLM, and of SGLang where it has the endpoint.
"""

import base64
import re
import struct
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final

from backends.simengine import shapes
from backends.simengine.reading import ErrorAnswer, chat_text, too_long
from backends.simengine.shapes import embedding, pieces_of, tokens_of

_TOKENIZER: Final = {"/tokenize": "tokenize", "/v1/tokenize": "tokenize", "/detokenize": "detok", "/v1/detokenize": "detok"}
PATHS: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "/v1/embeddings": "embd",
        "/v1/rerank": "rerank",
        "/rerank": "rerank",
        "/v2/rerank": "rerank",
        "/v1/score": "score",
        "/score": "score",
        "/classify": "classify",
        "/pooling": "pool",
        **_TOKENIZER,
    },
    "sglang": {"/v1/embeddings": "embd", "/v1/rerank": "rerank", "/v1/classify": "classify", **_TOKENIZER},
}
"""The paths of these endpoints, and the kind of their requests, by dialect."""

EMBEDDING_DIMENSIONS: Final = 256
POOLED_DIMENSIONS: Final = 16
LABELS: Final = ("LABEL_0", "LABEL_1", "LABEL_2")
_WORD: Final = re.compile(r"\w+")


class _Reply:
    """A reply that is being written: the items, and the tokens of all that was read for them."""

    def __init__(self, dialect: str, request: Mapping[str, Any], head: shapes.Ids, longest: float) -> None:
        self.dialect = dialect
        self.longest = longest
        self.request = request
        self.head = head
        self.tokens = 0

    def read(self, *texts: str) -> int:
        """Count texts that are read together; returns their tokens. Raises ErrorAnswer where they are too long together."""
        read = sum(len(tokens_of(text)) for text in texts)
        if read > self.longest:
            raise ErrorAnswer(400, too_long(self.dialect, int(self.longest), read), param="input_tokens")
        self.tokens += read
        return read

    def inputs(self) -> list[str]:
        """The texts of the input, or that of the messages in its place, each counted; token ids as the text of their list."""
        if "input" not in self.request:
            text = chat_text(self.request["messages"])
            self.read(text)
            return [text]
        inputs = self.request["input"]
        single = isinstance(inputs, str) or (inputs and isinstance(inputs[0], int))
        texts = []
        for one in [inputs] if single else inputs:
            if isinstance(one, str):
                self.read(one)
            else:
                self.tokens += len(one)
            texts.append(one if isinstance(one, str) else repr(one))
        return texts

    def vector(self, text: str, size: int) -> Any:
        """The text's vector, in the form that the request asks for."""
        vector = embedding(text, size)
        if self.request.get("encoding_format") == "base64":
            return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return vector

    def body(self, data: list[dict[str, Any]], **total: int) -> dict[str, Any]:
        """The whole reply around its items."""
        usage = {"prompt_tokens": self.tokens, "total_tokens": self.tokens, **total}
        head = self.head
        return {"id": head.id, "object": "list", "created": head.created, "model": head.model, "data": data, "usage": usage}


def overlap(query: str, document: str) -> float:
    """The share of the query's words that stand in the document."""
    words = {word.lower() for word in _WORD.findall(query)}
    return round(len(words & {word.lower() for word in _WORD.findall(document)}) / len(words), 6) if words else 0.0


def _embeddings(reply: _Reply) -> Any:
    size = int(reply.request.get("dimensions") or EMBEDDING_DIMENSIONS)
    data = [{"object": "embedding", "index": i, "embedding": reply.vector(text, size)} for i, text in enumerate(reply.inputs())]
    return reply.body(data, completion_tokens=0)


def _rerank(reply: _Reply) -> Any:
    query, documents = reply.request["query"], reply.request["documents"]
    if not documents or not all(isinstance(text, str) for text in documents):
        raise ErrorAnswer(400, "1 validation error:\n  {'type': 'string_type', 'loc': 'body.documents'}", "Bad Request", "body.documents")
    counts = [reply.read(query, document) for document in documents]
    scores = [overlap(query, document) for document in documents]
    order = sorted(range(len(documents)), key=lambda at: -scores[at])
    if reply.dialect == "sglang":
        return [
            {"score": scores[at], "document": documents[at], "index": at, "meta_info": {"id": f"{at:x}", "prompt_tokens": counts[at]}}
            for at in order
        ]
    top = order[: int(reply.request.get("top_n") or len(order))]
    results = [{"index": at, "document": {"text": documents[at], "multi_modal": None}, "relevance_score": scores[at]} for at in top]
    usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
    return {"id": reply.head.id, "model": reply.head.model, "usage": usage, "results": results}


def _score(reply: _Reply) -> Any:
    request = reply.request
    names = ("text_1", "text_2") if "text_1" in request else ("queries", "documents")
    first, second = ([request[name]] if isinstance(request[name], str) else request[name] for name in names)
    if len(first) not in (1, len(second)):
        raise ErrorAnswer(400, "Input lengths must be either 1:1, 1:N or N:N")
    pairs = list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))
    for pair in pairs:
        reply.read(*pair)
    return reply.body([{"index": i, "object": "score", "score": overlap(*pair)} for i, pair in enumerate(pairs)], completion_tokens=0)


def _classify(reply: _Reply) -> Any:
    data = []
    for index, text in enumerate(reply.inputs()):
        weights = [value * value for value in embedding(text, len(LABELS))]
        probs = [round(weight / sum(weights), 6) for weight in weights]
        label = LABELS[probs.index(max(probs))]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": len(LABELS)})
    return reply.body(data, completion_tokens=0)


def _pool(reply: _Reply) -> Any:
    size = int(reply.request.get("dimensions") or POOLED_DIMENSIONS)
    data = [{"index": i, "object": "pooling", "data": reply.vector(text, size)} for i, text in enumerate(reply.inputs())]
    return reply.body(data, completion_tokens=0)


def _tokenize(reply: _Reply) -> Any:
    request, longest = reply.request, reply.longest
    if "content" in request:  # llama.cpp's shape, whatever the dialect: there is none of llama.cpp
        tokens, pieces = tokens_of(request["content"]), pieces_of(request["content"])
        if not request.get("with_pieces"):
            return {"tokens": tokens}
        return {"tokens": [{"id": token, "piece": piece} for token, piece in zip(tokens, pieces, strict=True)]}
    prompt = chat_text(request["messages"], request.get("tools")) if "messages" in request else request["prompt"]
    if isinstance(prompt, list):
        if reply.dialect != "sglang":
            raise ErrorAnswer(400, "1 validation error:\n  {'type': 'string_type', 'loc': 'body.prompt'}", "Bad Request", "body.prompt")
        lists = [tokens_of(text) for text in prompt]
        return {"tokens": lists, "count": [len(tokens) for tokens in lists], "max_model_len": -1 if longest == inf else longest}
    tokens = tokens_of(prompt)
    written: dict[str, Any] = {"count": len(tokens), "max_model_len": -1 if longest == inf else longest, "tokens": tokens}
    if reply.dialect == "vllm":
        written["token_strs"] = pieces_of(prompt) if request.get("return_token_strs") else None
    return written


def _detokenize(reply: _Reply) -> Any:
    tokens = reply.request["tokens"]
    if reply.dialect == "vllm":
        if any(not isinstance(token, int) for token in tokens):
            raise ErrorAnswer(400, "1 validation error:\n  {'type': 'int_type', 'loc': 'body.tokens.0'}", "Bad Request", "body.tokens.0")
        return {"prompt": text_of(tokens)}
    several = bool(tokens) and isinstance(tokens[0], list)
    return {"text": [text_of(one) for one in tokens] if several else text_of(tokens)}


def text_of(tokens: list[int]) -> str:
    """The text that token ids stand for."""
    return "".join(f"[{token}]" for token in tokens)


_WRITERS: Final[Mapping[str, Callable[[_Reply], Any]]] = {
    "embd": _embeddings,
    "rerank": _rerank,
    "score": _score,
    "classify": _classify,
    "pool": _pool,
    "tokenize": _tokenize,
    "detok": _detokenize,
}
KINDS: Final = frozenset(_WRITERS)


def pooled(
    kind: str, dialect: str, request: Mapping[str, Any], head: shapes.Ids, *, fault: str = "", longest: float = inf
) -> tuple[bytes, int]:
    """The reply's body, and the number of tokens that were read for it.

    Args:
        fault: the fault of the request: `no_usage`, or one that another reply stands for; any other has no effect here.
        longest: the most tokens that are read together.

    Raises:
        ErrorAnswer: the request has values that engines refuse.
    """
    reply = _Reply(dialect, request, head, longest)
    written = _WRITERS[kind](reply)
    if fault == "no_usage":
        for item in written if isinstance(written, list) else (written,):
            item.pop("meta_info" if isinstance(written, list) else "usage", None)
    elif fault == "plain_not_json":
        return b"<html>it works</html>", reply.tokens
    elif fault == "plain_error_200":
        return shapes.error(dialect, 500, "EngineCore encountered an issue.", "InternalServerError"), reply.tokens
    return shapes.encode(written), reply.tokens
