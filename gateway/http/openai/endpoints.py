"""The content that a request of each endpoint may have, one row per endpoint. A new endpoint is a row here, a row of `domain.ask.Endpoint`
and a file of its checks; the fields that an engine takes are in the engine's dialect.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from domain.ask import Endpoint
from gateway.http.openai.chat import chat, chat_size
from gateway.http.openai.checks import Accepted, Check, accepted_values
from gateway.http.openai.completions import completions, completions_prompts, completions_size
from gateway.http.openai.embeddings import embeddings, embeddings_prompts, embeddings_size
from gateway.http.openai.sizes import PromptSize
from policies.caps import USUAL_CAPS, RequestCaps

Document = Mapping[str, object]
"""The JSON object of a request, checked."""


class EndpointForm(msgspec.Struct, frozen=True, kw_only=True):
    """How `interpret` reads the requests of one endpoint."""

    checks: Mapping[str, Check]
    """The check of each field; a field without one goes to the engine as it is."""
    accepted: Mapping[str, Accepted]
    """The values that need no call of their field's check."""
    size: Callable[[Document, int], PromptSize]
    """The size of the prompt, from the document and the bytes of the body."""
    prompts: Callable[[Document], Sequence[object]] | None = None
    """The prompts as an engine tokenises them, each a text or token ids; None where a chat template makes the prompt of messages."""


@lru_cache(maxsize=1024)
def forms_for(caps: RequestCaps, *, links: bool = False) -> Mapping[Endpoint, EndpointForm]:
    """The rows of all endpoints under a policy's caps; `links` says whether an image of a chat may stand as a URL."""
    of_chats, of_completions, of_embeddings = chat(caps, links=links), completions(caps), embeddings(caps)
    return {
        Endpoint.CHAT: EndpointForm(checks=of_chats, accepted=accepted_values(of_chats), size=chat_size),
        Endpoint.COMPLETIONS: EndpointForm(
            checks=of_completions, accepted=accepted_values(of_completions), size=completions_size, prompts=completions_prompts
        ),
        Endpoint.EMBEDDINGS: EndpointForm(
            checks=of_embeddings, accepted=accepted_values(of_embeddings), size=embeddings_size, prompts=embeddings_prompts
        ),
    }


FORMS: Final = forms_for(USUAL_CAPS)
"""The rows under the caps of a policy that sets none; found without hashing its caps."""
