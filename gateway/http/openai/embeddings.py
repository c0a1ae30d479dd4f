"""`POST /v1/embeddings`: the input in four shapes, and the few fields beside it."""

from collections.abc import Mapping

from gateway.http.openai.checks import Check, integer, one_of, text, unsupported
from gateway.http.openai.generation import REFUSED, count_token_ids, inputs, list_inputs
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps


def embeddings(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks under a policy's caps, by field name."""
    return {
        **REFUSED,
        "input": inputs(caps.inputs, "inputs"),
        "encoding_format": one_of("float", "base64"),
        "dimensions": integer(1, caps.dimensions, "dimensions"),
        "user": text(caps.user_chars, "user_chars"),
        "stream": unsupported("embeddings are not streamed"),
        "stream_options": unsupported("embeddings are not streamed"),
        # vLLM takes a chat in place of `input`; with both, the order of vLLM's own types decides which one it reads
        "messages": unsupported("send the text as 'input'"),
    }


def embeddings_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the inputs."""
    return PromptSize(body_bytes, count_token_ids(document["input"]))


def embeddings_prompts(document: Mapping[str, object]) -> list[object]:
    """The inputs as an engine tokenises them."""
    return list_inputs(document["input"])
