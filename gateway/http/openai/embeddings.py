"""`POST /v1/embeddings`, `/classify` and `/pooling`: the input in four shapes, or a chat in its place, and the few fields beside it.

A chat in place of the input is vLLM's way to send images to a model that embeds or judges them. An engine makes one item of it.
"""

from collections.abc import Mapping

from gateway.http.openai.chat import chat_size, template_fields
from gateway.http.openai.checks import Check, integer, one_of, text, unsupported
from gateway.http.openai.generation import REFUSED, count_token_ids, inputs, list_inputs
from gateway.http.openai.messages import messages
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps


def beside_prompts(caps: RequestCaps) -> dict[str, Check]:
    """The checks of fields of every endpoint that generates nothing."""
    return {
        **REFUSED,
        "user": text(caps.user_chars, "user_chars"),
        "stream": unsupported("nothing is streamed here"),
        "stream_options": unsupported("nothing is streamed here"),
    }


def classify(caps: RequestCaps, *, links: bool = False) -> Mapping[str, Check]:
    """The checks of a request for classes under a policy's caps, by field name; `links` as for `messages`."""
    return {
        **beside_prompts(caps),
        **template_fields(caps),
        "input": inputs(caps.inputs, "inputs"),
        "messages": messages(caps, links=links),
    }


def embeddings(caps: RequestCaps, *, links: bool = False) -> Mapping[str, Check]:
    """The checks of a request for embeddings under a policy's caps, by field name; `links` as for `messages`."""
    return {
        **classify(caps, links=links),
        "encoding_format": one_of("float", "base64"),
        "dimensions": integer(1, caps.dimensions, "dimensions"),
    }


def pooling(caps: RequestCaps, *, links: bool = False) -> Mapping[str, Check]:
    """The checks of a request for what a model's pooler gives, by field name; `links` as for `messages`."""
    return {
        **embeddings(caps, links=links),
        # read by a plugin of the engine's, in place of the input that is checked here
        "data": unsupported("send the text as 'input'"),
    }


def pooled_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the inputs, or of the messages in their place."""
    value = document.get("input")
    return chat_size(document, body_bytes) if value is None else PromptSize(body_bytes, count_token_ids(value))


def pooled_items(document: Mapping[str, object]) -> int:
    """The items of a whole answer: one for each input, and one for a chat."""
    value = document.get("input")
    return 1 if value is None else len(list_inputs(value))


def pooled_prompts(document: Mapping[str, object]) -> list[object] | None:
    """The inputs as an engine tokenises them; None for a chat, whose end engines write in another way than that of a chat to answer."""
    value = document.get("input")
    return None if value is None else list_inputs(value)
