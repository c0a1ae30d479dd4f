"""The texts of a request that guards look at, with their places, and the request with other texts in these places. Pure.

A request is read where it stands: each text is known by its path and by the bytes that its JSON string takes. So a rewriting changes these
bytes, and every other byte stays as it was (R30). `texts` reads the members that hold prompts (`messages`, `prompt`, `input`) with every
string in them but ids, types and media, and each member beside them that is not known to hold no text for the model (`NO_TEXT`): templates
and engines write tools with their schemas, variables of templates and unknown members into the prompt. Names, types, formats and patterns
of schemas (`_NO_DESCRIPTION`), and keys of objects, are not read. What it cannot read in a prompt, it names.

Arguments of tool calls are one text: JSON text inside a JSON string, with characters in place of their escapes (`json_text`). The calls of
earlier turns are named as calls too, with the name of their tool, for the rules that judge calls.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from domain.ask import Ask
from guardrails.json_text import unescaped
from guardrails.policy import Direction

PROMPTS: Final = frozenset(
    {"messages", "prompt", "input", "query", "queries", "documents", "text_1", "text_2", "content", "tokens", "file"},
)
"""Members that hold prompts and are read whole. Those of requests for scores hold nothing but texts (`gateway/http/openai/rerank.py`), and
are read like other members, string by string; so is `tokens`, the ids that `detokenize` makes a text of for the caller that has them,
which no model reads."""

_DOCUMENTS: Final = frozenset({"documents", "text_2"})
"""Members with what was retrieved: of chats, and what a query is compared with, in both spellings of requests for scores."""

_NO_TURN_TEXT: Final = frozenset({"role", "content", "tool_calls", "function_call", "tool_call_id", "id", "type", "cache_control"})
"""Members of a message that are read in their own way, or hold no text."""
_NO_CALL_TEXT: Final = frozenset({"id", "type", "index", "function", "custom"})
"""Members of a call of a tool that are read in their own way, or hold no text."""
_RESULT_ROLES: Final = frozenset({"tool", "function"})
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
NO_TEXT: Final = frozenset(
    {
        # who asks, and for what books: no engine shows them to a model
        *("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "store"),
        # words of the protocol, names, and conditions of decoding
        *(
            "model",
            "stream",
            "stream_options",
            "encoding_format",
            "modalities",
            "audio",
            "reasoning_effort",
            "tool_choice",
            "function_call",
        ),
        *("stop", "bad_words", "logit_bias", "guided_regex", "guided_grammar", "guided_decoding_backend", "regex", "ebnf", "grammar"),
    }
)
"""Members beside the prompt without a text for the model."""

_NO_DESCRIPTION: Final = frozenset(
    {
        *("type", "name", "id", "role", "format", "pattern", "required", "syntax", "regex", "grammar"),
        *("response_format", "timestamp_granularities[]", "stream_format"),  # of requests about sound: words of a fixed list
        *("$ref", "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor"),
    }
)
"""Keys, in what stands beside the prompt, whose strings are no text: an engine or a reader of the schema needs them as they are."""

_VALUES: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Keys of schemas with values of any form, in which every string is read."""

_PLAIN: Final = frozenset({"type", "role", "text", "refusal", "thinking", "cache_control", "annotations", "signature"})
"""Members of a part that hold no medium."""
_MEDIA: Final = frozenset({"image_url", "input_image", "audio_url", "video_url", "file_url", "url", "input_audio", "data", "file_data"})
"""Members of a part, or of a file in it, that hold a medium."""

_KEY: Final = re.compile(rb'[ \t\r\n,{]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\r\n]*:[ \t\r\n]*', re.DOTALL)
_GAP: Final = re.compile(rb"\[[ \t\r\n]*")
_COMMA: Final = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")

_RECORDING: Final = re.compile(rb'\{"name":"audio\.[a-z0-9]+","bytes":[0-9]+\}')
"""What the gateway writes for the recording of a form: none of it is the caller's text."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_text = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


class Readable(msgspec.Struct, frozen=True, gc=False):
    """A text of a request."""

    path: str
    """As messages to callers name it: `messages[2].content[0].text`."""
    direction: Direction
    text: str
    begin: int
    """Where its JSON string begins in the request, in bytes."""
    end: int
    beside: bool = False
    """Whether it is a text of a call of a tool, such as the tool's name, that is not the whole of its arguments: no JSON is asked of it."""


class Unreadable(msgspec.Struct, frozen=True, gc=False):
    """A part of a prompt that no rule can read."""

    path: str
    what: str
    """`token ids`, the type of a part, such as `image_url`, or `unknown`."""


class EarlierCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a tool in an earlier turn."""

    path: str
    name: str
    arguments: str
    """As the request has them: the text of the arguments, or the JSON text of an object that stands in its place; of a custom tool, its
    input."""


class RequestTexts(msgspec.Struct, frozen=True):
    """What guards see of one request."""

    readable: tuple[Readable, ...]
    """In the order in which they stand in the request; each path stands once."""
    unreadable: tuple[Unreadable, ...]
    calls: tuple[EarlierCall, ...] = ()
    """Calls that have a name, in order."""
    system: tuple[str, ...] = ()
    """Which of the texts are contents of system and developer messages."""


class _Value(msgspec.Struct, frozen=True, gc=False):
    """A JSON value where it stands."""

    path: str
    begin: int
    end: int


def texts(body: bytes) -> RequestTexts:
    """The texts of a request.

    Args:
        body: a request's JSON object, checked: no key stands twice in one object (`Ask.fields`).

    Raises:
        ValueError: the body is no JSON object, or is one with a key that stands twice in an object.
    """
    reading = _Reading(body)
    for name, value in reading.members(_Value("", 0, len(body))):
        if name == "messages":
            reading.messages(value)
        elif name in ("prompt", "input", "content"):
            reading.prompts(value)
        elif name in _DOCUMENTS:
            reading.strings(value, "documents")
        elif name == "file" and _RECORDING.fullmatch(body, value.begin, value.end):
            reading.unreadable.append(Unreadable("file", "audio"))
        elif name == "chat_template_kwargs":
            reading.strings(value, "input")
        elif name not in NO_TEXT:
            reading.described(value, name)
    return RequestTexts(tuple(sorted(reading.readable, key=_place)), tuple(reading.unreadable), tuple(reading.calls), tuple(reading.system))


def rewritten(body: bytes, found: RequestTexts, changes: Mapping[str, str]) -> bytes:
    """The request with other texts.

    Args:
        found: what `texts` found in this `body`.
        changes: new texts by path; texts whose path is left out stay as they are, byte for byte.

    Raises:
        KeyError: a path that `found` does not have.
    """
    if not changes:
        return body
    unknown = changes.keys() - {text.path for text in found.readable}
    if unknown:
        raise KeyError(f"no text stands at {min(unknown)}")
    parts = []
    done = 0
    for text in found.readable:
        if text.path in changes:
            parts.append(body[done : text.begin])
            parts.append(_encode(changes[text.path]))
            done = text.end
    parts.append(body[done:])
    return b"".join(parts)


def with_texts(ask: Ask, found: RequestTexts, changes: Mapping[str, str]) -> Ask:
    """The Ask with other texts, its sizes counted anew.

    Args:
        found: what `texts` found in `ask.fields`.
        changes: new texts by path.

    Raises:
        KeyError: as for `rewritten`.
    """
    if not changes:
        return ask
    fields = rewritten(ask.fields, found, changes)
    begin, end = ask.prompt_at
    in_prompt = {text.path: changes[text.path] for text in found.readable if text.path in changes and begin <= text.begin < end}
    grown = len(rewritten(ask.fields, found, in_prompt)) - len(ask.fields)
    return msgspec.structs.replace(
        ask,
        fields=fields,
        prompt_at=(begin, end + grown),
        # texts beside the prompt are part of what an engine makes tokens of, so the bound changes with them too
        prompt_bytes=max(0, ask.prompt_bytes + len(fields) - len(ask.fields)),
    )


class _Reading:
    """One pass over a request."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.readable: list[Readable] = []
        self.unreadable: list[Unreadable] = []
        self.calls: list[EarlierCall] = []
        self.system: list[str] = []

    def members(self, value: _Value) -> Iterator[tuple[str, _Value]]:
        """The members of an object, where they stand."""
        body, at = self._body, value.begin
        for name, raw in _members(memoryview(body)[value.begin : value.end]).items():
            key = _KEY.match(body, at)
            if key is None or _text(key[1]) != name:
                raise ValueError(f"a key stands twice in {value.path or 'the request'}")
            begin = key.end()
            at = begin + len(memoryview(raw))
            yield name, _Value(_below(value.path, name), begin, at)
        self._expect_end(value, at)

    def items(self, value: _Value) -> Iterator[_Value]:
        """The values of an array, where they stand."""
        body, at = self._body, value.begin
        for index, raw in enumerate(_items(memoryview(body)[value.begin : value.end])):
            gap = _GAP.match(body, at) if index == 0 else _COMMA.match(body, at)
            begin = gap.end() if gap else at
            at = begin + len(memoryview(raw))
            yield _Value(f"{value.path}[{index}]", begin, at)

    def messages(self, value: _Value) -> None:
        for message in self.items(value):
            fields = dict(self.members(message))
            role = self._string(fields["role"]) if self._is(fields.get("role"), b'"') else ""
            direction: Direction = "tool_results" if role in _RESULT_ROLES else "input"
            if "content" in fields:
                before = len(self.readable)
                self._content(fields["content"], direction)
                if role in _SYSTEM_ROLES:
                    self.system += [text.text for text in self.readable[before:]]
            for key, member in fields.items():
                if key not in _NO_TURN_TEXT:
                    self.strings(member, direction)
            if self._is(fields.get("tool_calls"), b"["):
                for call in self.items(fields["tool_calls"]):
                    self._call(call)
            if self._is(fields.get("function_call"), b"{"):
                self._function(fields["function_call"])

    def prompts(self, value: _Value) -> None:
        """A prompt in one of four shapes: a text, texts, token ids, or arrays of token ids."""
        if self._is(value, b'"'):
            self._add(value, "input")
        elif self._is(value, b"["):
            first = next(iter(self.items(value)), None)
            if first is not None and not self._is(first, b'"[{'):
                self.unreadable.append(Unreadable(value.path, "token ids"))
                return
            for item in self.items(value):
                if self._is(item, b'"'):
                    self._add(item, "input")
                else:
                    self.unreadable.append(Unreadable(item.path, "token ids" if self._is(item, b"[") else "unknown"))
        elif not self._is(value, b"n"):
            self.unreadable.append(Unreadable(value.path, "unknown"))

    def described(self, value: _Value, name: str) -> None:
        """The strings in a member beside the prompt, however deep they stand."""
        if self._body.find(b'"', value.begin, value.end) < 0:
            return  # numbers, of which there may be many
        if self._is(value, b'"'):
            if name not in _NO_DESCRIPTION:
                self._add(value, "input")
        elif self._is(value, b"["):
            for item in self.items(value):
                self.described(item, name)
        elif self._is(value, b"{"):
            for key, member in self.members(value):
                if key in _VALUES:
                    self.strings(member, "input")
                else:
                    self.described(member, key)

    def strings(self, value: _Value, direction: Direction) -> None:
        """Every string, however deep it stands."""
        if self._is(value, b'"'):
            self._add(value, direction, beside=direction == "tool_arguments")
        elif self._is(value, b"["):
            for item in self.items(value):
                self.strings(item, direction)
        elif self._is(value, b"{"):
            for _, member in self.members(value):
                self.strings(member, direction)

    def _content(self, value: _Value, direction: Direction) -> None:
        if self._is(value, b'"'):
            self._add(value, direction)
        elif self._is(value, b"["):
            for part in self.items(value):
                if self._is(part, b'"'):
                    self._add(part, direction)
                elif self._is(part, b"{"):
                    self._part(part, direction)
                else:
                    self.unreadable.append(Unreadable(part.path, "unknown"))
        elif not self._is(value, b"n"):
            self.unreadable.append(Unreadable(value.path, "unknown"))

    def _part(self, value: _Value, direction: Direction) -> None:
        """A part of a message. Engines look at the keys and not only at the type, so every text in it is read, and a medium is named."""
        fields = dict(self.members(value))
        for key, member in fields.items():
            if key == "file" and self._is(member, b"{"):
                for name, inner in self.members(member):
                    if name not in _MEDIA:
                        self.strings(inner, direction)
            elif key not in _MEDIA and key not in ("type", "signature", "cache_control"):
                self.strings(member, direction)
        media = [key for key in fields if key not in _PLAIN and not self._is(fields[key], b"n")]
        if media:
            self.unreadable.append(Unreadable(value.path, self._string(fields["type"]) if self._is(fields.get("type"), b'"') else media[0]))

    def _call(self, value: _Value) -> None:
        if not self._is(value, b"{"):
            self.unreadable.append(Unreadable(value.path, "unknown"))
            return
        for name, member in self.members(value):
            if name in ("function", "custom") and self._is(member, b"{"):
                self._function(member)
            elif name not in _NO_CALL_TEXT:
                self.strings(member, "tool_arguments")

    def _function(self, value: _Value) -> None:
        fields = dict(self.members(value))
        for name, member in fields.items():
            if name in ("arguments", "input") and self._is(member, b'"'):
                self._add(member, "tool_arguments", in_json=name == "arguments")
            else:
                self.strings(member, "tool_arguments")
        if self._is(fields.get("name"), b'"'):
            given = fields.get("arguments") or fields.get("input")
            self.calls.append(EarlierCall(value.path, self._string(fields["name"]), "" if given is None else self._written(given)))

    def _written(self, value: _Value) -> str:
        """A text, or another value as JSON text."""
        return self._string(value) if self._is(value, b'"') else self._body[value.begin : value.end].decode()

    def _is(self, value: _Value | None, first: bytes) -> bool:
        """Whether a value is there and begins with one of these bytes, which says of what type it is."""
        return value is not None and self._body[value.begin] in first

    def _string(self, value: _Value) -> str:
        return _text(memoryview(self._body)[value.begin : value.end])

    def _add(self, value: _Value, direction: Direction, *, beside: bool = False, in_json: bool = False) -> None:
        text = unescaped(self._string(value)) if in_json else self._string(value)
        self.readable.append(Readable(value.path, direction, text, value.begin, value.end, beside))

    def _expect_end(self, value: _Value, at: int) -> None:
        if self._body[at : value.end].strip(b" \t\r\n{") != b"}":
            raise ValueError(f"a key stands twice in {value.path or 'the request'}")


def _below(path: str, name: str) -> str:
    """The path of a member. A name that could be taken for a path stands in brackets, so that no two members have one path."""
    if _NAME.fullmatch(name):
        return f"{path}.{name}" if path else name
    return f"{path}[{_encode(name).decode()}]"


def _place(text: Readable) -> int:
    return text.begin
