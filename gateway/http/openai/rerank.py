"""`POST /v1/rerank` and `/v1/score`: a query with documents in the shape of Jina and Cohere, and pairs of texts in vLLM's.

Only texts are taken. Engines read an object in place of a text as parts, with media that they would fetch, so a document in the form
`{"text": …}` is sent on as its text. An engine reads each document together with the query, which counts in the size.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.http.openai.checks import Check, flag, integer, refuse, refuse_type, set_by, text, unsupported
from gateway.http.openai.embeddings import beside_prompts
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps

MOST: Final = 2**31 - 1
"""The highest of a number without a meaning of its own for us: engines keep it in 32 bits."""

PAIR_BYTES: Final = 64
"""The bytes that stand for what engines write around one pair: the special tokens of a cross-encoder, or a short instruction."""

_encode: Final = msgspec.json.Encoder().encode


def rerank(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks of a request for an order of documents under a policy's caps, by field name."""
    return {
        **beside_prompts(caps),
        "query": text(MOST),
        "documents": _documents(caps.inputs),
        "top_n": integer(1, MOST),
        "return_documents": flag,
        "max_chunks_per_doc": integer(1, MOST),
        "max_tokens_per_doc": integer(1, MOST),
    }


def score(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks of a request for scores of pairs under a policy's caps, by field name."""
    texts = _texts(caps.inputs)
    # of several pairs of fields, the order of vLLM's own types decides which one it reads
    other = unsupported("send 'text_1' and 'text_2'")
    return {
        **beside_prompts(caps),
        **dict.fromkeys(("text_1", "text_2", "queries", "documents"), texts),
        **dict.fromkeys(("data_1", "data_2", "items"), other),
    }


def _most(value: list[object], most: int, param: str) -> None:
    if not value:
        refuse(f"Invalid value for '{param}': it is empty.", param)
    if len(value) > most:
        refuse(f"Invalid value for '{param}': {len(value)} items are too many, at most {most} are allowed.{set_by('inputs')}", param)


def _documents(most: int) -> Check:
    """A check of documents, each a text or an object with one, which becomes its text."""

    def check(value: object, param: str) -> bool:
        if type(value) is not list:
            refuse_type("an array", value, param)
        _most(value, most, param)
        changed = False
        for index, document in enumerate(value):
            if type(document) is str:
                continue
            if type(document) is not dict:
                refuse_type("a string or an object with a text", document, f"{param}[{index}]")
            inner = document.get("text")
            if type(inner) is not str:
                refuse_type("a string", inner, f"{param}[{index}].text")
            value[index], changed = inner, True
        return changed

    return check


def _texts(most: int) -> Check:
    """A check of a text or an array of texts."""

    def check(value: object, param: str) -> None:
        if type(value) is str:
            return
        if type(value) is not list:
            refuse_type("a string or an array of strings", value, param)
        _most(value, most, param)
        for index, item in enumerate(value):
            if type(item) is not str:
                refuse_type("a string", item, f"{param}[{index}]")

    return check


def rerank_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of all pairs of the query and a document."""
    pairs = len(document["documents"])  # type: ignore[arg-type]  # the form has checked that it is a list
    return PromptSize(body_bytes + (pairs - 1) * len(_encode(document["query"])) + pairs * PAIR_BYTES)


def rerank_items(document: Mapping[str, object]) -> int:
    """The results of a whole answer."""
    pairs, top_n = len(document["documents"]), document.get("top_n")  # type: ignore[arg-type]  # as above
    return min(pairs, top_n) if type(top_n) is int else pairs


def _sides(document: Mapping[str, object]) -> tuple[str, list[object], list[object]]:
    """The name of the first field of the pairs, and the texts of both."""
    names = ("text_1", "text_2") if document.get("text_1") is not None else ("queries", "documents")
    first, second = ([value] if type(value := document[name]) is str else value for name in names)
    return names[0], first, second  # type: ignore[return-value]  # the form has checked that they are texts or lists of texts


def score_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of all pairs.

    Raises:
        Fault: INVALID_VALUE where the first texts are neither one nor as many as the second ones.
    """
    name, first, second = _sides(document)
    if len(first) not in (1, len(second)):
        refuse(f"Invalid value for '{name}': {len(first)} texts, where 1 or {len(second)} belong to the other field.", name)
    again = (len(second) - 1) * len(_encode(first[0])) if len(first) == 1 else 0
    return PromptSize(body_bytes + again + len(second) * PAIR_BYTES)


def score_items(document: Mapping[str, object]) -> int:
    """The scores of a whole answer: one for each pair."""
    return len(_sides(document)[2])


def pair_prompts(_document: Mapping[str, object]) -> None:
    """Nothing: how an engine makes one prompt of a pair depends on its model."""
