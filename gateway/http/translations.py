"""The APIs of callers that become chats: which routes are theirs, and the translation of a request at one of them.

A further API is a package beside `gateway/http/anthropic/` and `gateway/http/responses/`, and its lines here.
"""

from collections.abc import Callable
from typing import Final

from domain.ask import Endpoint
from domain.faults import Fault, Kind
from gateway.http.anthropic import COUNT_TOKENS, MESSAGES, AnthropicReplies, MessagesTranslation
from gateway.http.anthropic.models import VERSION_HEADER
from gateway.http.anthropic.signatures import ThinkingSigner
from gateway.http.edge.head import RequestHead
from gateway.http.edge.translation import Translation
from gateway.http.openai.prompts import PROMPT_HEADER
from gateway.http.responses import INPUT_TOKENS, InputTokensTranslation, ResponsesTranslation
from gateway.http.responses import PATH as RESPONSES

TRANSLATED: Final = frozenset({MESSAGES, RESPONSES})
"""The routes whose requests become chats."""
COUNTS: Final = frozenset({COUNT_TOKENS, INPUT_TOKENS})
"""The routes that count the tokens of such a request."""
OPENAIS: Final = frozenset({*(endpoint.path for endpoint in Endpoint), RESPONSES, INPUT_TOKENS})
"""The routes that answer in their own shape, whatever headers a request has."""


class Translations:
    """Makes the translation of each request of another API.

    Args:
        secret: the secret of which the key for signatures of thinking is derived.
        wall: the time in seconds since the epoch.
        new_id: makes the gateway's ids.
    """

    __slots__ = ("_new_id", "_signer", "_wall")

    def __init__(self, secret: bytes, wall: Callable[[], float], new_id: Callable[[], str]) -> None:
        self._signer = ThinkingSigner(secret)
        self._wall = wall
        self._new_id = new_id

    def of(self, head: RequestHead) -> Translation | None:
        """The translation of a request; None where its route is OpenAI's chat, or another one in the gateway's own shape."""
        path = head.path
        if path in (RESPONSES, INPUT_TOKENS):
            return self._responses(path, behind_prompt=PROMPT_HEADER in head.headers)
        if path == MESSAGES:
            return MessagesTranslation(self._signer, self._wall)
        return AnthropicReplies(path, self._signer, self._wall) if speaks_messages(head) else None

    def chat_of(self, path: str, body: bytes) -> tuple[Endpoint, bytes]:
        """The endpoint that serves a request at a route, and the body that it gets.

        Raises:
            Fault: as `Translation.request`.
            ValueError: there is no such route.
        """
        if path == MESSAGES:
            return Endpoint.CHAT, MessagesTranslation(self._signer, self._wall).request(body)
        if path == RESPONSES:
            translation = self._responses(path)
            chat = translation.request(body)
            if not chat:
                param = translation.names_earlier
                message = f"A request that continues what is stored cannot be supposed: send the whole conversation in place of '{param}'."
                raise Fault(Kind.UNSUPPORTED_PARAMETER, message, param=param)
            return Endpoint.CHAT, chat
        return Endpoint(path), body

    def _responses(self, path: str, *, behind_prompt: bool = False) -> ResponsesTranslation:
        made = ResponsesTranslation if path == RESPONSES else InputTokensTranslation
        new_id = self._new_id
        return made(lambda: int(self._wall()), lambda: new_id().removeprefix("req-").replace("-", ""), behind_prompt=behind_prompt)


def speaks_messages(head: RequestHead) -> bool:
    """Whether a request expects the answers of Anthropic's API."""
    path = head.path
    if path == MESSAGES or path.startswith(f"{MESSAGES}/"):
        return True
    return VERSION_HEADER in head.headers and path not in OPENAIS
