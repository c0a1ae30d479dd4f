"""The content that a request of each endpoint may have, one row per endpoint. A new endpoint is a row here, a row of `domain.ask.Endpoint`
and a file of its checks; the fields that an engine takes are in the engine's dialect.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from domain.ask import Endpoint
from gateway.http.openai.audio import audio_size, speech, speech_size, spoken_prompts, transcriptions
from gateway.http.openai.chat import chat, chat_size
from gateway.http.openai.checks import Accepted, Check, accepted_values
from gateway.http.openai.completions import completions, completions_prompts, completions_size
from gateway.http.openai.embeddings import classify, embeddings, pooled_items, pooled_prompts, pooled_size, pooling
from gateway.http.openai.realtime import realtime, session_size, unread_prompts
from gateway.http.openai.rerank import pair_prompts, rerank, rerank_items, rerank_size, score, score_items, score_size
from gateway.http.openai.sizes import PromptSize
from gateway.http.openai.tokens import detokenize, one_value, tokenize, tokens_prompts, tokens_size
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
    prompts: Callable[[Document], Sequence[object] | None] | None = None
    """The prompts as an engine tokenises them, each a text or token ids, or None for a document of which only engines know; None where a
    chat template makes the prompt of messages."""
    items: Callable[[Document], int] | None = None
    """`Ask.items` of the document; None where tokens are generated."""


@lru_cache(maxsize=1024)
def forms_for(caps: RequestCaps, *, links: bool = False) -> Mapping[Endpoint, EndpointForm]:
    """The rows of all endpoints under a policy's caps; `links` says whether an image of a chat may stand as a URL."""

    def form(
        checks: Mapping[str, Check],
        size: Callable[[Document, int], PromptSize],
        prompts: Callable[[Document], Sequence[object] | None] | None = None,
        items: Callable[[Document], int] | None = None,
    ) -> EndpointForm:
        return EndpointForm(checks=checks, accepted=accepted_values(checks), size=size, prompts=prompts, items=items)

    return {
        Endpoint.CHAT: form(chat(caps, links=links), chat_size),
        Endpoint.COMPLETIONS: form(completions(caps), completions_size, completions_prompts),
        Endpoint.EMBEDDINGS: form(embeddings(caps, links=links), pooled_size, pooled_prompts, pooled_items),
        Endpoint.RERANK: form(rerank(caps), rerank_size, pair_prompts, rerank_items),
        Endpoint.SCORE: form(score(caps), score_size, pair_prompts, score_items),
        Endpoint.CLASSIFY: form(classify(caps, links=links), pooled_size, pooled_prompts, pooled_items),
        Endpoint.POOLING: form(pooling(caps, links=links), pooled_size, pooled_prompts, pooled_items),
        Endpoint.TOKENIZE: form(tokenize(caps, links=links), tokens_size, tokens_prompts, one_value),
        Endpoint.DETOKENIZE: form(detokenize(caps), tokens_size, tokens_prompts, one_value),
        Endpoint.TRANSCRIPTIONS: form(transcriptions(caps), audio_size, spoken_prompts, one_value),
        Endpoint.TRANSLATIONS: form(transcriptions(caps), audio_size, spoken_prompts, one_value),
        Endpoint.SPEECH: form(speech(caps), speech_size, spoken_prompts, one_value),
        Endpoint.REALTIME: form(realtime(), session_size, unread_prompts, one_value),
    }


FORMS: Final = forms_for(USUAL_CAPS)
"""The rows under the caps of a policy that sets none; found without hashing its caps."""
