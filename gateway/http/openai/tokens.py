"""`POST /tokenize` and `/detokenize`: a text or a chat as the ids of its tokens, and ids as the text that they stand for.

vLLM and SGLang take a text as `prompt`, vLLM a chat as `messages`, llama.cpp a text as `content`; which of these an engine reads is in its
dialect. Nothing is computed but by a tokenizer, so no prompt is too long for the model: callers ask in order to learn that.
"""

from collections.abc import Mapping
from typing import Final

from gateway.http.openai.chat import chat, chat_size, template_fields
from gateway.http.openai.checks import Check, each, either, flag, refuse, refuse_type, text
from gateway.http.openai.embeddings import beside_prompts
from gateway.http.openai.generation import check_token_ids, count_token_ids, list_inputs
from gateway.http.openai.rerank import MOST
from gateway.http.openai.sizes import PromptSize
from policies.caps import RequestCaps

_OF_CHATS: Final = ("messages", "tools")
"""Fields with the checks that they have in chats."""


def tokenize(caps: RequestCaps, *, links: bool = False) -> Mapping[str, Check]:
    """The checks of a request for the tokens of a text or a chat under a policy's caps, by field name; `links` as for `messages`."""
    of_chats, any_text = chat(caps, links=links), text(MOST)
    return {
        **beside_prompts(caps),
        **template_fields(caps),
        **{field: of_chats[field] for field in _OF_CHATS},
        "prompt": either(any_text, each(caps.inputs, any_text, least=1, cap="inputs"), str),
        "content": any_text,
        **dict.fromkeys(("add_special_tokens", "return_token_strs", "add_special", "parse_special", "with_pieces"), flag),
    }


def detokenize(caps: RequestCaps) -> Mapping[str, Check]:
    """The checks of a request for the text of token ids under a policy's caps, by field name."""
    return {
        **beside_prompts(caps),
        "tokens": _tokens(caps.inputs),
        "skip_special_tokens": flag,
    }


def _tokens(most: int) -> Check:
    """A check of token ids, or of 1 to `most` lists of them. No ids at all are those of the empty text."""
    check_lists = each(most, _ids, least=1, cap="inputs")

    def check(value: object, param: str) -> None:
        if type(value) is list and value and type(value[0]) is list:
            check_lists(value, param)
        else:
            _ids(value, param)

    return check


def _ids(value: object, param: str) -> None:
    if type(value) is not list:
        refuse_type("an array of token ids", value, param)
    check_token_ids(value, param)


def tokens_size(document: Mapping[str, object], body_bytes: int) -> PromptSize:
    """The size of the text, the chat or the token ids.

    Raises:
        Fault: INVALID_VALUE for fields of a chat beside another prompt, which no engine would read there.
    """
    if document.get("messages") is not None:
        return chat_size(document, body_bytes)
    ids = document.get("tokens")
    if ids is None and document.get("tools"):
        refuse("Invalid value for 'tools': they belong to a chat. Send 'messages'.", "tools")
    return PromptSize(body_bytes, count_token_ids(ids) if ids else None)


def one_value(_document: Mapping[str, object]) -> int:
    """One: the answer is one list of ids, or one text."""
    return 1


def tokens_prompts(document: Mapping[str, object]) -> list[object] | None:
    """The texts, or the lists of ids; None for a chat, whose end the request decides."""
    value = next((value for field in ("prompt", "content", "tokens") if (value := document.get(field)) is not None), None)
    return None if value is None else list_inputs(value) if value else [value]
