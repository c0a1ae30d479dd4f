"""What the simulated model says: words, reasoning, constrained text and tool calls, token by token, and how a chat's reply shows them.

`OutputRequest` is what a request asks of the output, checked as vLLM checks it. `planned` makes the tokens of one choice from it; they
are deterministic, as the words of `shapes` are. `ChoiceOutput` turns produced tokens into the deltas of a stream and into the message of a
plain reply, as vLLM's tool and reasoning parsers and SGLang's do.
"""

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from backends.simengine.json_values import Draw, UnsupportedSchema, text_for, value_for
from backends.simengine.reading import ErrorAnswer, turns_of
from backends.simengine.settings import SimSettings
from backends.simengine.shapes import WORDS, answer_tokens, encode, natural_length, pieces_of, random_seed, words

MAX_TOP_LOGPROBS: Final = 20
"""Alternatives per token; vLLM's `--max-logprobs` and OpenAI's bound."""

END_OF_REASONING: Final = "</think>"

ToolChoice = Literal["none", "auto", "required", "named"]
Constraint = Literal["", "json", "regex", "choice"]
Part = Literal["content", "reasoning", "name", "arguments", "markup"]


class OutputRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of its output."""

    tools: tuple[tuple[str, Any], ...] = ()
    """The tools that the answer calls, in order: their names and the schemas of their arguments."""
    tool_choice: ToolChoice = "none"
    constraint: Constraint = ""
    allowed: Any = None
    """The schema, the pattern or the list of texts of the constraint."""
    reasons: bool = False
    """Whether the model reasons before it answers."""
    shows_reasoning: bool = True
    """Whether the reply shows the reasoning."""
    top_logprobs: int | None = None
    """Alternatives per token; None for no logprobs at all."""
    says: str = ""
    """The whole answer, of an engine that acts as a guard model."""
    said: int = 0
    """Tokens that the answer has already, at the end of the prompt."""


class Token(msgspec.Struct, frozen=True):
    """One generated token."""

    raw: str
    """Its text, as the model generates it."""
    part: Part
    """The part of the reply that its text belongs to; `markup` is text that parsers take away."""
    call: int = 0
    """The tool call that it belongs to."""


class OutputPlan(msgspec.Struct, frozen=True):
    """What one choice says."""

    tokens: Iterator[Token]
    length: int
    """The number of tokens after which it ends by itself."""
    finish: str
    """The finish reason of an answer that ends by itself."""
    constrained: bool
    """Whether it has no more tokens than `length`, even for a request that ignores the end."""
    calls: tuple[tuple[str, str], ...] = ()
    """The ids and names of its tool calls."""


def output_request(settings: SimSettings, kind: str, request: dict[str, Any]) -> OutputRequest:
    """Read what the request asks of its output. Raises ErrorAnswer, with vLLM's messages, for what no engine takes."""
    constraint, allowed = _constraint(settings, request)
    top = _top_logprobs(kind, request)
    if kind != "chat":
        return OutputRequest(constraint=constraint, allowed=allowed, top_logprobs=top)
    if settings.guard:
        return OutputRequest(top_logprobs=top, says=guard_answer(settings.guard, request["messages"]))
    if settings.judge and (verdict := judge_answer(settings.judge, request["messages"])):
        return OutputRequest(top_logprobs=top, says=verdict)
    try:
        choice = _tool_choice(request)
        tools = _called(request, choice)
    except (KeyError, TypeError, AttributeError) as error:
        raise ErrorAnswer(400, f"1 validation error:\n  {{'type': 'missing', 'loc': 'body.tools.{error}'}}", "Bad Request") from None
    template = request.get("chat_template_kwargs") or {}
    asked_not = False in (template.get("enable_thinking"), template.get("thinking")) or request.get("reasoning_effort") == "none"
    return OutputRequest(
        tools=tools,
        tool_choice=choice,
        constraint=constraint,
        allowed=allowed,
        reasons=settings.reasoning and not asked_not,
        shows_reasoning=request.get("include_reasoning", True) is not False,
        top_logprobs=top,
        said=len(answer_tokens(turns_of(request)[1])),
    )


def guard_answer(words: Mapping[str, str], messages: Any) -> str:
    """What a guard model of the form of Llama Guard answers: `unsafe` and the categories of the words that the last message has, or `safe`.

    Args:
        words: the category of each word.
    """
    judged = _last_text(messages).lower()
    codes = [code for word, code in words.items() if word.lower() in judged]
    return f"\n\nunsafe\n{','.join(dict.fromkeys(codes))}" if codes else "\n\nsafe"


def judge_answer(scores: Mapping[str, int], messages: Any) -> str:
    """What a judge answers to a question of Tidegate's: the least score of the words that an answer has, in any case, else 5; of two
    answers the one with the greater score. Empty for a message that is no such question.

    Args:
        scores: the score of each word.
    """
    lines = _last_text(messages).splitlines()
    texts = {head.rpartition(" ")[2]: text.lower() for head, text in itertools.pairwise(lines) if text.startswith('"')}

    def score(name: str) -> int:
        return min((scores[word] for word in scores if word.lower() in texts[name]), default=5)

    if "ANSWER" in texts:
        return f'{{"reason": "simulated", "score": {score("ANSWER")}}}'
    if not {"A", "B"} <= texts.keys():
        return ""
    better = "tie" if score("A") == score("B") else max("AB", key=score)
    return f'{{"reason": "simulated", "better": "{better}"}}'


def _last_text(messages: Any) -> str:
    """The text of the last message."""
    last = messages[-1] if isinstance(messages, list) and messages and isinstance(messages[-1], dict) else {}
    content = last.get("content") or ""
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)


def _refusal(message: str, param: str, value: object = None) -> ErrorAnswer:
    told = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return ErrorAnswer(400, f"{message} {told}", param=param)


def _top_logprobs(kind: str, request: dict[str, Any]) -> int | None:
    name = "top_logprobs" if kind == "chat" else "logprobs"
    asked = request.get(name)
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or asked < 0):
        raise _refusal(f"`{name}` must be a positive value or -1.", name, asked)
    if kind == "chat" and not request.get("logprobs"):
        if asked:
            raise _refusal("when using `top_logprobs`, `logprobs` must be set to true.", name)
        return None
    if asked is not None and asked > MAX_TOP_LOGPROBS:
        raise _refusal(f"Requested sample logprobs of {asked}, which is greater than max allowed: {MAX_TOP_LOGPROBS}", "logprobs", asked)
    return (asked or 0) if kind == "chat" else asked


def _constraint(settings: SimSettings, request: dict[str, Any]) -> tuple[Constraint, Any]:
    form = request.get("response_format") or {}
    kind = form.get("type", "text")
    if kind == "json_schema":
        return "json", (form.get("json_schema") or {}).get("schema", {"type": "object"})
    if kind == "json_object":
        return "json", {"type": "object", "properties": {"text": {"type": "string"}}}
    if kind != "text":
        raise ErrorAnswer(400, f"the simulated engine does not know the response format {kind!r}", param="response_format")
    if settings.dialect == "sglang":
        names = (("json_schema", "json"), ("regex", "regex"), ("ebnf", "grammar"))
        given = {ours: request.get(theirs) for theirs, ours in names}
    else:
        given = dict(request.get("structured_outputs") or {})
    given = {name: value for name, value in given.items() if value is not None and name != "disable_any_whitespace"}
    if len(given) > 1:
        raise ErrorAnswer(400, "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').")
    if "json_object" in given:
        return "json", {"type": "object", "properties": {"text": {"type": "string"}}}
    for name in ("json", "regex", "choice"):
        if name in given:
            value = given[name]
            try:
                schema = msgspec.json.decode(value) if name == "json" and isinstance(value, str) else value
            except msgspec.DecodeError as error:
                raise ErrorAnswer(400, f"Grammar error: {error}") from None
            return cast(Constraint, name), schema
    if given:
        raise ErrorAnswer(400, f"the simulated engine does not know the constraint {next(iter(given))!r}", param="structured_outputs")
    return "", None


def _tool_choice(request: dict[str, Any]) -> ToolChoice:
    tools = request.get("tools")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _refusal(message, "tools")
    choice = request.get("tool_choice", "auto" if tools else "none")
    if choice is None or choice == "none":
        return "none"
    if not tools:
        raise _refusal("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        if name not in (tool["function"]["name"] for tool in tools):
            raise _refusal("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
        return "named"
    if choice not in ("auto", "required"):
        message = f'Invalid value for `tool_choice`: {choice}! Only named tools, "none", "auto" or "required" are supported.'
        raise _refusal(message, "tool_choice")
    return "auto" if choice == "auto" else "required"


def _called(request: dict[str, Any], choice: ToolChoice) -> tuple[tuple[str, Any], ...]:
    """The tools that the answer calls: those that the last user message names, else the first one that this turn has not called yet.

    With `auto` the model calls tools once for each user message, and answers in words once it has their results. So loops of agents end,
    with `required` too, where a library adds a tool that stands for the answer.
    """
    if choice == "none":
        return ()
    tools = [(tool["function"]["name"], tool["function"].get("parameters") or {"type": "object"}) for tool in request["tools"]]
    if choice == "named":
        return tuple(tool for tool in tools if tool[0] == request["tool_choice"]["function"]["name"])[:1]
    messages = request["messages"]
    if choice == "auto" and messages[-1].get("role") != "user":
        return ()
    asked = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=0)
    text = str(messages[asked].get("content") or "")
    called = [call.get("function", {}).get("name") for message in messages[asked:] for call in message.get("tool_calls") or ()]
    left = [tool for tool in tools if tool[0] not in called]
    named = [tool for tool in left if re.search(rf"\b{re.escape(tool[0])}\b", text)]
    chosen = named or left[:1] or tools[-1:]
    return tuple(chosen if request.get("parallel_tool_calls") is not False else chosen[:1])


def planned(asked: OutputRequest, prompt: list[int], model: str, seed: int, dialect: str) -> OutputPlan:
    """What one choice says. Raises ErrorAnswer for a schema or pattern that has no value."""
    if asked.said:
        prompt = prompt[: -asked.said]  # the answer is that to the prompt alone, from behind what was said
    draw = Draw(random_seed(prompt, model, seed))
    thoughts: list[Token] = []
    if asked.reasons:
        count = 8 + draw.below(25)
        thoughts = [Token(word, "reasoning") for word in itertools.islice(words(prompt, model, seed ^ -1), count)]
        thoughts.append(Token(END_OF_REASONING, "markup"))
    try:
        if asked.tools:
            return _calling(asked, thoughts, draw, dialect)
        if asked.says:
            said = [Token(piece, "content") for piece in pieces_of(asked.says)]
            return OutputPlan(iter(said), len(said), "stop", True)
        if asked.constraint:
            said = [Token(piece, "content") for piece in pieces_of(_constrained(asked, draw))]
            return OutputPlan(iter(thoughts + said), len(thoughts) + len(said), "stop", True)
    except UnsupportedSchema as error:
        raise ErrorAnswer(400, str(error)) from None
    endless = (Token(word, "content") for word in words(prompt, model, seed))
    whole = itertools.islice(itertools.chain(thoughts, endless), asked.said, None)
    return OutputPlan(whole, max(1, len(thoughts) + natural_length(prompt, model, seed) - asked.said), "stop", False)


def _constrained(asked: OutputRequest, draw: Draw) -> str:
    if asked.constraint == "json":
        return encode(value_for(asked.allowed, draw)).decode()
    if asked.constraint == "regex":
        return text_for(str(asked.allowed), draw)
    if not isinstance(asked.allowed, list) or not asked.allowed:
        raise UnsupportedSchema("Grammar error: `choice` must be a list of texts")
    return str(asked.allowed[draw.below(len(asked.allowed))])


_MARKS: Final = {
    "auto": ('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"),
    "required": ('{"name": "', '", "parameters": ', "}"),
    "named": ("", "", ""),
}
"""The marks of Hermes models with `auto`, a list in JSON with `required`, and the arguments alone for a named tool, as vLLM has them."""


def _calling(asked: OutputRequest, thoughts: list[Token], draw: Draw, dialect: str) -> OutputPlan:
    """The tokens of tool calls."""
    tokens = list(thoughts)
    calls = []
    for number, (name, schema) in enumerate(asked.tools):
        begin, middle, end = _MARKS[asked.tool_choice]
        if asked.tool_choice == "required":
            begin = ("[" if number == 0 else ", ") + begin
            end += "]" if number == len(asked.tools) - 1 else ""
        if begin:
            tokens += [Token(begin, "markup", number), Token(name, "name", number), Token(middle, "markup", number)]
        tokens += [Token(piece, "arguments", number) for piece in pieces_of(encode(value_for(schema, draw)).decode())]
        if end:
            tokens.append(Token(end, "markup", number))
        code = "".join(f"{draw.below(16):x}" for _ in range(24))
        calls.append((f"chatcmpl-tool-{code}" if dialect == "vllm" else f"call_{code}", name))
    finish = "stop" if asked.tool_choice == "named" and dialect == "vllm" else "tool_calls"
    return OutputPlan(iter(tokens), len(tokens), finish, True, tuple(calls))


class ChoiceOutput:
    """The produced tokens of one choice, as deltas and as a message."""

    def __init__(self, asked: OutputRequest, plan: OutputPlan, dialect: str, seed: bytes) -> None:
        self._asked = asked
        self._plan = plan
        self._dialect = dialect
        self._seed = seed
        self._tokens: list[Token] = []
        self._begun: set[int] = set()

    def take(self) -> Token:
        """The next token that the model produces."""
        token = next(self._plan.tokens)
        self._tokens.append(token)
        return token

    def __len__(self) -> int:
        """The number of tokens so far."""
        return len(self._tokens)

    @property
    def last(self) -> Token:
        """The token that was produced last."""
        return self._tokens[-1]

    @property
    def text(self) -> str:
        """The text so far, without reasoning and markup."""
        return self._text("content")

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return sum(token.part == "reasoning" for token in self._tokens)

    def delta(self, token: Token) -> dict[str, Any] | None:
        """The delta of a stream that shows the token; None for a token that shows nothing."""
        if token.part == "content":
            return {"content": token.raw}
        if token.part == "reasoning" and self._asked.shows_reasoning:
            return {self._reasoning: token.raw}
        if token.part == "name" and self._asked.tool_choice == "auto":
            self._begun.add(token.call)
            return {"tool_calls": [self._call(token.call, {"name": token.raw, **({} if self._dialect == "vllm" else {"arguments": ""})})]}
        if token.part == "arguments":
            if token.call not in self._begun:  # the name comes with the first piece of the arguments, unless the model may choose
                self._begun.add(token.call)
                return {"tool_calls": [self._call(token.call, {"name": self._plan.calls[token.call][1], "arguments": token.raw})]}
            more: dict[str, Any] = {"index": token.call, "function": {"arguments": token.raw}}
            if self._dialect == "sglang":
                more = {"id": None, "index": token.call, "type": "function", "function": {"name": None, "arguments": token.raw}}
            return {"tool_calls": [more]}
        return None

    def message(self, *, complete: bool) -> dict[str, Any]:
        """The message of a plain reply. Of a tool call that a length cut off, parsers find nothing."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        thought = self._text("reasoning")
        cut = bool(thought) and self._tokens[-1].part == "reasoning"
        if self._asked.reasons:
            message["content"] = self.text or None
            message[self._reasoning] = thought if thought and self._asked.shows_reasoning else None
        if self._plan.calls and not cut:
            calls = self._complete_calls() if complete or self._asked.tool_choice == "named" else []
            if calls:
                message["tool_calls"] = calls
            if self._asked.tool_choice == "auto":
                message["content"] = None if calls else self._after_reasoning()
        return message

    def logprobs(self, first: int = 0, *, chat: bool) -> dict[str, Any] | None:
        """The logprobs of the tokens from `first` on; None when the request asks for none or hides its reasoning."""
        top = self._asked.top_logprobs
        if top is None or not self._asked.shows_reasoning:
            return None
        rows = [(self._tokens[i].raw, self._chances(i, top)) for i in range(first, len(self._tokens))]
        if chat:
            return {"content": [{**_scored(raw, own), "top_logprobs": [_scored(*one) for one in rest[:top]]} for raw, (own, rest) in rows]}
        offsets = list(itertools.accumulate((len(token.raw) for token in self._tokens), initial=0))
        return {
            "text_offset": offsets[first:-1],
            "token_logprobs": [own for _, (own, _) in rows],
            "tokens": [raw for raw, _ in rows],
            "top_logprobs": [dict(rest[: max(top, 1)]) for _, (_, rest) in rows],
        }

    def _chances(self, position: int, top: int) -> tuple[float, list[tuple[str, float]]]:
        """The logprob of a token, and it with its alternatives, the most probable first; they add up to at most 1."""
        raw = self._tokens[position].raw
        draw = Draw(hashlib.blake2b(self._seed + position.to_bytes(4, "big"), digest_size=16).digest())
        own = -(1 + draw.below(65)) / 100
        others = [word for word in dict.fromkeys(f" {word}" for word in WORDS) if word != raw]
        first = draw.below(len(others))
        left = math.log(1 - math.exp(own))
        rest = [(others[(first + i) % len(others)], round(left - (i + 1) * math.log(2), 4)) for i in range(top)]
        return own, [(raw, own), *rest]

    @property
    def _reasoning(self) -> str:
        return "reasoning" if self._dialect == "vllm" else "reasoning_content"

    def _call(self, call: int, function: dict[str, Any]) -> dict[str, Any]:
        return {"id": self._plan.calls[call][0], "type": "function", "index": call, "function": function}

    def _complete_calls(self) -> list[dict[str, Any]]:
        functions = [{"name": name, "arguments": self._arguments(i)} for i, (_, name) in enumerate(self._plan.calls)]
        return [{"id": self._plan.calls[i][0], "type": "function", "function": function} for i, function in enumerate(functions)]

    def _after_reasoning(self) -> str:
        return "".join(token.raw for token in self._tokens if token.part != "reasoning" and token.raw != END_OF_REASONING)

    def _text(self, part: Part) -> str:
        return "".join(token.raw for token in self._tokens if token.part == part)

    def _arguments(self, call: int) -> str:
        return "".join(token.raw for token in self._tokens if token.part == "arguments" and token.call == call)


def _scored(raw: str, logprob: float) -> dict[str, Any]:
    return {"token": raw, "logprob": logprob, "bytes": list(raw.encode())}
