"""The parsed and checked request. Made by `gateway/http/openai/`, read by every step."""

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Literal, Self

import msgspec


class EndpointFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `Endpoint`: what every package may have to know of an endpoint."""

    path: str
    """The path of its requests, on our side and, where its dialect names no other, on the engine's."""
    word: str
    """The endpoint's name in rules of policies and in messages."""
    prompt_fields: tuple[str, ...]
    """The fields that hold the prompt. All are required; the first one is blamed for a prompt that is too long. Of several fields it is the
    one with the many values, so that the router sees that no engine has to hold all of them at once."""
    has_messages: bool
    """Whether the prompt is a list of messages, which a chat template makes one text of."""
    generates: bool
    """Whether the engine generates tokens. If not, a reply has no finish reasons, and a request no output and no prefix to reuse."""
    reply_field: str
    """The field of a plain reply that holds the answer: a list, never empty."""
    probe: bytes
    """The body of the smallest request, without the model; it makes an engine compute, where the endpoint does."""
    alternatives: tuple[tuple[str, ...], ...] = ()
    """Other sets of fields, each of which may stand in place of `prompt_fields`."""
    aliases: tuple[str, ...] = ()
    """Further paths of ours that callers know the endpoint by."""
    item_fields: tuple[str, ...] = ()
    """Where nothing is generated: the members of which each item of a reply has one, or it is no answer."""
    kept: bool = True
    """Whether the answer cache keeps its answers."""
    rewritten: bool = False
    """Whether the gateway writes the reply anew, because each engine answers in a shape of its own."""
    computes: bool = True
    """Whether the engine computes anything on its accelerator. If not, a request uses no tokens and no money, puts no load on an engine,
    and its outcome says nothing about the engine's health."""
    sound: Literal["", "in", "out"] = ""
    """Whether a request is a form with a recording (`in`), whose text the engine writes down, or a reply is sound (`out`)."""
    duplex: bool = False
    """Whether a request opens a session (WebSocket): it is a GET, and events go both ways until either side closes."""
    value_fields: tuple[str, ...] = ()
    """Where the answer is one value and no list of items: the members of which a reply has one. It counts as one item, whose member
    `value` it is."""


class Endpoint(Enum):
    """The inference routes of the data port, one row each; the value is the path.

    A new endpoint needs a row here, a row of `FORMS` in `gateway/http/openai/endpoints.py` (the fields of its requests), the prefix of its
    ids (`gateway/http/edge/reply_ids.py`), and its fields, or its own path, in the dialects whose engines serve it.
    """

    _value_: str

    CHAT = EndpointFacts(
        path="/v1/chat/completions",
        word="chat",
        prompt_fields=("messages",),
        has_messages=True,
        generates=True,
        reply_field="choices",
        probe=b'{"messages":[{"role":"user","content":"1"}],"max_tokens":1}',
    )
    COMPLETIONS = EndpointFacts(
        path="/v1/completions",
        word="completions",
        prompt_fields=("prompt",),
        has_messages=False,
        generates=True,
        reply_field="choices",
        probe=b'{"prompt":"1","max_tokens":1}',
    )
    EMBEDDINGS = EndpointFacts(
        path="/v1/embeddings",
        word="embeddings",
        prompt_fields=("input",),
        has_messages=False,
        generates=False,
        reply_field="data",
        probe=b'{"input":"1"}',
        alternatives=(("messages",),),
        item_fields=("embedding",),
    )
    RERANK = EndpointFacts(
        path="/v1/rerank",
        word="rerank",
        prompt_fields=("documents", "query"),
        has_messages=False,
        generates=False,
        reply_field="results",
        probe=b'{"query":"1","documents":["1"]}',
        aliases=("/rerank", "/v2/rerank"),
        item_fields=("relevance_score", "score"),
        kept=False,
        rewritten=True,
    )
    SCORE = EndpointFacts(
        path="/v1/score",
        word="score",
        prompt_fields=("text_2", "text_1"),
        has_messages=False,
        generates=False,
        reply_field="data",
        probe=b'{"text_1":"1","text_2":"1"}',
        alternatives=(("documents", "queries"),),
        aliases=("/score",),
        item_fields=("score",),
        kept=False,
    )
    CLASSIFY = EndpointFacts(
        path="/classify",
        word="classify",
        prompt_fields=("input",),
        has_messages=False,
        generates=False,
        reply_field="data",
        probe=b'{"input":"1"}',
        alternatives=(("messages",),),
        aliases=("/v1/classify",),
        item_fields=("probs",),
        kept=False,
    )
    POOLING = EndpointFacts(
        path="/pooling",
        word="pooling",
        prompt_fields=("input",),
        has_messages=False,
        generates=False,
        reply_field="data",
        probe=b'{"input":"1"}',
        alternatives=(("messages",),),
        item_fields=("data",),
        kept=False,
    )
    TOKENIZE = EndpointFacts(
        path="/tokenize",
        word="tokenize",
        prompt_fields=("prompt",),
        has_messages=False,
        generates=False,
        reply_field="tokens",
        probe=b'{"prompt":"1"}',
        alternatives=(("messages",), ("content",)),
        aliases=("/v1/tokenize",),
        kept=False,
        item_fields=("value",),
        computes=False,
        value_fields=("tokens",),
    )
    DETOKENIZE = EndpointFacts(
        path="/detokenize",
        word="detokenize",
        prompt_fields=("tokens",),
        has_messages=False,
        generates=False,
        reply_field="prompt",
        probe=b'{"tokens":[1]}',
        aliases=("/v1/detokenize",),
        kept=False,
        item_fields=("value",),
        computes=False,
        value_fields=("prompt", "text", "content"),
    )
    TRANSCRIPTIONS = EndpointFacts(
        path="/v1/audio/transcriptions",
        word="transcriptions",
        prompt_fields=("file",),
        has_messages=False,
        generates=False,
        reply_field="text",
        probe=b'{"file":{"name":"audio.wav","bytes":1}}',
        item_fields=("value",),
        kept=False,
        sound="in",
        value_fields=("text",),
    )
    TRANSLATIONS = EndpointFacts(
        path="/v1/audio/translations",
        word="translations",
        prompt_fields=("file",),
        has_messages=False,
        generates=False,
        reply_field="text",
        probe=b'{"file":{"name":"audio.wav","bytes":1}}',
        item_fields=("value",),
        kept=False,
        sound="in",
        value_fields=("text",),
    )
    SPEECH = EndpointFacts(
        path="/v1/audio/speech",
        word="speech",
        prompt_fields=("input",),
        has_messages=False,
        generates=False,
        reply_field="text",
        probe=b'{"input":"1","voice":"alloy"}',
        item_fields=("value",),
        kept=False,
        sound="out",
    )
    REALTIME = EndpointFacts(
        path="/v1/realtime",
        word="realtime",
        prompt_fields=("session",),
        has_messages=False,
        generates=False,
        reply_field="text",
        probe=b'{"session":{"type":"transcription"}}',
        item_fields=("value",),
        kept=False,
        duplex=True,
    )

    def __new__(cls, facts: Any) -> Self:  # Any: mypy reads this signature for `Endpoint(path)` as well
        """The member of a row; `Endpoint(path)` finds it again."""
        member = object.__new__(cls)
        member._value_ = facts.path
        return member

    def __init__(self, facts: Any) -> None:
        row: EndpointFacts = facts
        self.path = row.path
        self.word = row.word
        self.prompt_fields = row.prompt_fields
        self.has_messages = row.has_messages
        self.generates = row.generates
        self.reply_field = row.reply_field
        self.probe = row.probe
        self.alternatives = row.alternatives
        self.aliases = row.aliases
        self.item_fields = row.item_fields
        self.kept = row.kept
        self.rewritten = row.rewritten
        self.computes = row.computes
        self.sound = row.sound
        self.duplex = row.duplex
        self.value_fields = row.value_fields

    __hash__ = object.__hash__
    """Members are equal to themselves only; the hash of `Enum` is a Python function, and each request looks up its endpoint four times."""


PROMPT_FIELDS: Final = frozenset(endpoint.prompt_fields[0] for endpoint in Endpoint if len(endpoint.prompt_fields) == 1)
"""The fields that are a whole prompt by themselves, at any endpoint."""

MESSAGES_IN_FRONT: Final = b'{"messages":'
"""The beginning of an Ask's `fields` where its prompt is a list of messages, at whatever endpoint."""


class PromptReference(msgspec.Struct, frozen=True):
    """A request's reference to a prompt of the registry, not checked against the registry yet."""

    id: str
    version: int | None
    """None: the version that the tenant's policy selects."""
    variables: Mapping[str, object]


class ImageLink(msgspec.Struct, frozen=True, gc=False):
    """An image that a request names by URL."""

    param: str
    """The path of the URL in the request."""
    url: str


class Ask(msgspec.Struct, frozen=True, gc=False):
    """One checked request, ready to be routed.

    `fields` is the checked object re-serialised as JSON *without* `model` and without any engine-control
    field; a backend's dialect writes those in front (`backends.dialects.body_for`). It always ends in `}`
    and is `{}` when there is no other field. So the forwarded fields are the checked ones, byte for byte.
    """

    endpoint: Endpoint
    model: str
    """The public name the caller used."""
    fields: bytes
    stream: bool
    include_usage: bool
    """Whether the caller asked for the usage event; engines are always asked."""
    choices: int
    """How many finish reasons a whole answer has: `n` times the number of prompts; 0 where the engine generates nothing."""
    prompt_bytes: int
    """Upper bound on prompt tokens: a byte-level tokenizer never makes more tokens than bytes."""
    max_output_tokens: int | None
    """Output tokens per sequence that the engine is told not to exceed, or None."""
    sequences: int = 0
    """Sequences that the engine generates for the request: `choices`, and more with `best_of`."""
    user: str = ""
    """The caller's label for its own end user; empty for none."""
    logprobs: int = 0
    """Log probabilities of alternatives per token that the request asks for."""
    token_ids: int | None = None
    """Tokens of a prompt given as token ids; None for a prompt with text."""
    media: int = 0
    """Message parts that are, or contain, something other than text."""
    image_bytes: int = 0
    """The part of `prompt_bytes` that is images, or a recording."""
    names: frozenset[str] = frozenset()
    """Names of the members of `fields`, so that they need not be parsed again to know whether an engine accepts them."""
    prompt_at: tuple[int, int] = (0, 0)
    """Where in `fields` the value of the endpoint's first prompt field begins and ends; it stands in front of everything else."""
    session: str = ""
    """The caller's name for the conversation that the request belongs to; empty for none. Never sent to an engine."""
    flex: bool = False
    """Whether the request may take longer: OpenAI's `service_tier: "flex"`."""
    template: PromptReference | None = None
    """The registry prompt whose messages are still to be put in front; until then, the request may have no other message and no model."""
    image_links: tuple[ImageLink, ...] = ()
    """Images that are named by URL and still to be fetched; until then no engine may get the request."""
    cache: object = None
    """The body's member `cache`, as it was written: what the request says of the answer cache. Never sent to an engine."""
    guards: tuple[str, ...] = ()
    """The guard rules that the body asks for, by id. Never sent to an engine."""
    metadata: object = None
    """The body's member `metadata`, which conditions of rules read; engines get it as part of `fields`."""
    items: int = 0
    """Items of a whole answer, at least, where the engine generates nothing: one for each input, pair or result; 0 elsewhere."""
    upload: bytes = b""
    """The bytes of the file of a form, for which a name and a size stand in `fields`."""

    @property
    def prompt_field(self) -> str:
        """The field whose value `prompt` is: the endpoint's first one, or that of an alternative."""
        return self.fields[len(b'{"') : self.prompt_at[0] - len(b'":')].decode()

    @property
    def whole(self) -> bytes:
        """What tells the request from others: its fields, and a digest of its file."""
        return self.fields + hashlib.blake2b(self.upload, digest_size=16).digest() if self.upload else self.fields

    @property
    def prompt(self) -> bytes:
        """The value of the endpoint's first prompt field as JSON."""
        return self.fields[self.prompt_at[0] : self.prompt_at[1]]

    @property
    def behind_prompt(self) -> bytes:
        """The members of `fields` but for the first prompt field, as a JSON object."""
        behind = self.fields[self.prompt_at[1] :]
        return b"{" + behind[1:] if behind.startswith(b",") else behind if self.prompt_at[1] == 0 else b"{}"
