"""Takes secrets, personal data and whatever guard rules look for out of the texts of a request, before they are kept. Pure.

Every rule of the request that finds a part of a text counts, whatever its mode and whichever texts it is for: what may pass to an engine
need not be kept. The rules for secrets and personal data are always among them. A text is withheld whole where a rule fails.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from backends.sse import EventSplitter, EventTooLarge
from gateway.request_log.reader import PromptedMessage, PromptedRequest, RequestContent
from guardrails.build import chain_of
from guardrails.chain import Chain
from guardrails.guard_set import GuardSet
from guardrails.messages import texts
from guardrails.policy import CHANGING, CanaryRule, DetectorRule, GuardRule, LinksRule, PatternRule, PiiRule, SecretsRule, WordsRule
from policies.prompts.prompt import RegisteredPrompt
from policies.prompts.template import TooLong
from policies.prompts.variables import VariableRefused

ALWAYS: Final[tuple[GuardRule, ...]] = (
    SecretsRule(id="kept-secrets", kind="secrets", mode="redact"),
    PiiRule(id="kept-personal", kind="pii", mode="redact"),
)
"""The rules for every text that is kept."""
FINDING_PARTS: Final = (SecretsRule, PiiRule, WordsRule, PatternRule, LinksRule, CanaryRule)
"""The kinds of rules that find a part of a text, in whose place a mark can stand."""
MARGIN_CHARS: Final = 4096
"""Characters behind a cut that rules read, too, and that are not kept: nothing is found that ends behind what is read. Private keys have
3,300."""
MOST_CHAINS: Final = 64
"""Sets of rules that are kept ready; at the bound all are forgotten."""
TELLING_CHARS: Final = 4
"""A value that is shorter tells nobody anything, and is in other texts by chance."""
ROLES: Final = frozenset({"system", "developer", "user", "assistant"})
"""Of messages that can be asked again; results of tools belong to calls that are not kept."""
WITHHELD: Final = "withheld"
"""In the place of kinds: a text could not be redacted, and is not kept."""


class _TextPart(msgspec.Struct):
    content: str | None = None


class _TextChoice(msgspec.Struct):
    index: int = 0
    delta: _TextPart | None = None
    message: _TextPart | None = None
    text: str | None = None


class _TextReply(msgspec.Struct):
    choices: list[_TextChoice] = []


_decode_reply: Final = msgspec.json.Decoder(_TextReply).decode
_decode_body: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_messages: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


class Redactor:
    """Redacts texts. Belongs to one thread."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}

    def content(self, body: bytes | None, reply: "tuple[bytes, bool] | None", guards: GuardSet | None, most: int) -> RequestContent:
        """The texts of a request as they are kept.

        Args:
            body: of the request; None where its prompt is not kept.
            reply: the bytes of the answer as its engine gave it, and whether it was longer; None where it is not kept.
            guards: the rules of the request.
            most: bytes of each text, as UTF-8.
        """
        chain = self._chain(guards)
        kinds: set[str] = set()
        prompt, prompt_cut = ("", False) if body is None else _redacted(prompt_text(body), False, chain, most, kinds)
        answer, answer_cut = "", False
        if reply is not None and _rewritten_elsewhere(guards):
            kinds.add(WITHHELD)
        elif reply is not None:
            text, is_cut = answer_text(reply[0]), reply[1]
            answer, answer_cut = _redacted(text, is_cut, chain, most, kinds)
        return RequestContent(prompt, answer, prompt_cut, answer_cut, tuple(sorted(kinds)))

    def prompted(
        self, body: bytes, prompt: RegisteredPrompt, variables: Mapping[str, object], guards: GuardSet | None, most: int
    ) -> PromptedRequest | None:
        """What a request with a prompt of the registry said itself; None where it cannot be kept whole and redacted.

        Args:
            body: of the request, with the prompt's messages.
            variables: the values that it gave.
            most: bytes of all values and messages, as UTF-8.
        """
        rules = () if guards is None else guards.rules
        if any(isinstance(rule, DetectorRule) and rule.mode in CHANGING and set(rule.on) != {"output"} for rule in rules):
            return None  # what it finds is changed in the messages, and not in the values
        chain = self._chain(guards)
        try:
            values = {name: _value_redacted(value, chain) for name, value in variables.items()}
            messages = tuple(_messages_behind(body, len(prompt.rendered(variables)), chain))
            rendered = "\n".join(message["content"] for message in prompt.rendered(values))
        except (VariableRefused, TooLong, _CannotBeKept):
            return None
        if sum(len(text.encode()) for text in (*_strings(values), *(message.content for message in messages))) > most:
            return None
        # in the prompt's words a value may be what it is not alone, such as a password
        passed = _passed(rendered, chain)
        if passed is None or any(passed.count(text) < rendered.count(text) for text in _strings(values) if len(text) >= TELLING_CHARS):
            return None
        return PromptedRequest(prompt.id, prompt.version, values, messages)

    def _chain(self, guards: GuardSet | None) -> Chain:
        version = "" if guards is None else guards.version
        chain = self._chains.get(version)
        if chain is None:
            if len(self._chains) >= MOST_CHAINS:
                self._chains.clear()
            own = () if guards is None else tuple(rule for rule in guards.rules if isinstance(rule, FINDING_PARTS))
            as_kept = {"mode": "redact", "on": ["input"], "restore": False, "replacement": None, "on_error": "closed"}
            chain = self._chains[version] = chain_of([rule.model_copy(update=as_kept) for rule in (*own, *ALWAYS)], "input")
        return chain


class _CannotBeKept(Exception):
    """A text that a rule refuses, or a message that cannot be asked again."""


def _passed(text: str, chain: Chain) -> str | None:
    verdict = chain.judge(text)
    return None if verdict.refused else verdict.text


def _value_redacted(value: object, chain: Chain) -> object:
    """A value of a variable, redacted. Raises _CannotBeKept."""
    if isinstance(value, list):
        return [_value_redacted(part, chain) for part in value]
    passed = _passed(str(value), chain)
    if passed is None or (not isinstance(value, str) and passed != str(value)):
        raise _CannotBeKept
    return passed if isinstance(value, str) else value


def _messages_behind(body: bytes, count: int, chain: Chain) -> Iterator[PromptedMessage]:
    """The messages behind the first ones, redacted. Raises _CannotBeKept."""
    said: dict[int, list[str]] = {}
    for text in texts(body).readable:
        at = text.path.removeprefix("messages[").partition("]")[0] if text.path.startswith("messages[") else ""
        if not at.isdigit() or text.beside:
            raise _CannotBeKept
        said.setdefault(int(at), []).append(text.text)
    for index, role in enumerate(_roles(body)):
        if index >= count:
            passed = _passed("\n".join(said.get(index, ())), chain)
            if role not in ROLES or not passed:
                raise _CannotBeKept
            yield PromptedMessage(role, passed)


def _strings(values: Mapping[str, object]) -> Iterator[str]:
    for value in values.values():
        yield from (str(part) for part in value) if isinstance(value, list) else (str(value),)


def _rewritten_elsewhere(guards: GuardSet | None) -> bool:
    """Whether a detector changes answers, whose findings are known nowhere else."""
    rules = () if guards is None else guards.rules
    return any(isinstance(rule, DetectorRule) and rule.mode in CHANGING and "output" in rule.on for rule in rules)


def _redacted(text: str, is_cut: bool, chain: Chain, most: int, kinds: set[str]) -> tuple[str, bool]:
    """The last bytes of a text, redacted, and whether there were more.

    Args:
        is_cut: whether the end of the text is missing already.
    """
    beginning = len(text) - most - MARGIN_CHARS
    verdict = chain.judge(text[max(beginning, 0) :])
    if verdict.refused or verdict.text is None:
        kinds.add(WITHHELD)
        return "", True
    kinds.update(found.kind for found in verdict.findings)
    passed = verdict.text
    if beginning > 0:
        passed = passed[MARGIN_CHARS:]  # a mark may be longer than what it stands for, so a little more than the margin may go
    if is_cut:
        passed = passed[: -MARGIN_CHARS or None]
    encoded = passed.encode("utf-8", "replace")
    return encoded[-most:].decode("utf-8", "ignore"), is_cut or beginning > 0 or len(encoded) > most


def prompt_text(body: bytes) -> str:
    """The texts of a request in their order, those of messages behind their roles."""
    roles = _roles(body)
    parts = []
    for text in texts(body).readable:
        at = text.path.removeprefix("messages[").partition("]")[0] if text.path.startswith("messages[") else ""
        role = roles[int(at)] if at.isdigit() and int(at) < len(roles) else text.path
        parts.append(f"{role}: {text.text}")
    return "\n".join(parts)


def _roles(body: bytes) -> list[str]:
    messages = _decode_body(body).get("messages")
    return [] if messages is None else [str(message.get("role", "")) for message in _decode_messages(messages)]


def answer_text(reply: bytes) -> str:
    """The text of an answer, of a stream or of a plain reply; several choices one after the other."""
    choices: dict[int, list[str]] = {}
    for document in _documents(reply):
        for choice in document.choices:
            said = choice.text or next((part.content for part in (choice.delta, choice.message) if part is not None and part.content), "")
            choices.setdefault(choice.index, []).append(said or "")
    return "\n".join("".join(said) for _, said in sorted(choices.items()))


def _documents(reply: bytes) -> list[_TextReply]:
    found = []
    try:
        payloads = [reply] if reply.lstrip()[:1] == b"{" else EventSplitter().feed(reply)
    except EventTooLarge:
        return []
    for payload in payloads:
        try:
            found.append(_decode_reply(payload))
        except msgspec.DecodeError:
            continue  # the end of a stream, or an event that was cut
    return found
