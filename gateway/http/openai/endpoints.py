"""What a request of each endpoint may hold: one row per endpoint. A new endpoint is a row here, a row of `domain.ask.Endpoint` and a file
of its checks; what an engine takes of it stands in the engine's dialect.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from domain.ask import Endpoint
from gateway.http.openai.chat import CHAT, chat_choices, chat_size
from gateway.http.openai.checks import Check
from gateway.http.openai.completions import COMPLETIONS, completions_choices, completions_prompts, completions_size
from gateway.http.openai.embeddings import EMBEDDINGS, embeddings_prompts, embeddings_size
from gateway.http.openai.sizes import PromptSize

Document = Mapping[str, object]
"""The JSON object of a request, checked."""


def no_choices(_document: Document) -> int:
    """The finish reasons of a reply without generated tokens."""
    return 0


class EndpointForm(msgspec.Struct, frozen=True, kw_only=True):
    """How `interpret` reads the requests of one endpoint."""

    checks: Mapping[str, Check]
    """The check of each field; a field without one goes to the engine as it is."""
    choices: Callable[[Document], int] = no_choices
    """The number of finish reasons of a whole answer."""
    size: Callable[[Document, int], PromptSize]
    """The size of the prompt, from the document and the bytes of the body."""
    prompts: Callable[[Document], Sequence[object]] | None = None
    """The prompts as an engine tokenises them, each a text or token ids; None where a chat template makes the prompt of messages."""


FORMS: Final[Mapping[Endpoint, EndpointForm]] = {
    Endpoint.CHAT: EndpointForm(checks=CHAT, choices=chat_choices, size=chat_size),
    Endpoint.COMPLETIONS: EndpointForm(checks=COMPLETIONS, choices=completions_choices, size=completions_size, prompts=completions_prompts),
    Endpoint.EMBEDDINGS: EndpointForm(checks=EMBEDDINGS, size=embeddings_size, prompts=embeddings_prompts),
}
