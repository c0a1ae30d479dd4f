"""`guards` of a policy file: the rules that look at what callers send and at what models answer.

A rule says what it looks for (`kind`, and the options of that kind), where (`on`) and what then happens (`mode`). Only the modes `block`,
`redact` and `replace` change what anyone gets; `flag` and `shadow` are noted and never refuse, not even when the rule itself fails.
"""

import hashlib
import json
from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from domain.strict import Strict
from guardrails.classifier.model import packaged_version

MEANING: Final = "tidegate guards 1"
"""Part of each version; a change of what a rule means changes it, so that no answer is given again that other rules let pass."""

MAX_RULES: Final = 100
MAX_WORDS: Final = 10_000
"""Words and phrases of all rules of one policy together."""

MAX_PATTERN_CHARS: Final = 1000

Direction = Literal["input", "output", "tool_arguments", "tool_results"]
"""`input`: what callers write; `tool_results`: what tools returned to the caller; `output`: what models answer, reasoning too;
`tool_arguments`: what models pass to tools, in answers and in earlier turns of a request."""

Mode = Literal["block", "redact", "replace", "flag", "shadow"]

CHANGING: Final = frozenset({"block", "redact", "replace"})
"""The modes that change or refuse a text. A stream is held back for rules of these modes alone."""

RuleId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$")]
_Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Domain = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
_Country = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]


class _GuardRule(Strict):
    """What every rule has."""

    id: RuleId = Field(description="Name of the rule in refusals, logs and counters; it stands once in a policy.")
    on: list[Direction] = Field(
        default=["input", "output"],
        min_length=1,
        max_length=4,
        description="The texts that the rule looks at: `input` (what callers write), `output` (what models answer), `tool_arguments` (what "
        "models pass to tools), `tool_results` (what tools returned).",
    )
    mode: Mode = Field(
        description="What happens: `block` refuses a request and cuts an answer, `redact` puts a mark such as `[EMAIL]` in place of what "
        "was found, `replace` puts `replacement` there, `flag` notes it in the log and in counters, `shadow` notes it as a rule on trial."
    )
    replacement: str | None = Field(
        default=None, max_length=1000, description="With `mode: replace`, the text that stands in place of what was found; it may be empty."
    )
    on_error: Literal["closed", "open"] | None = Field(
        default=None,
        description="When the rule itself fails: `closed` refuses the request (503 guard_unavailable) or cuts the answer, `open` lets it "
        "pass and notes the failure. Null: `closed` for `block`, `redact` and `replace`, else `open`.",
    )
    restore: bool = Field(
        default=False,
        description="With `mode: redact`, whether the engine gets a placeholder for each value, and the same request's answer to the "
        "caller has the value again. It acts on `input` and `tool_results`.",
    )

    @property
    def closed(self) -> bool:
        """Whether a failure of the rule refuses."""
        return self.mode in CHANGING and self.on_error != "open"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mode == "replace" and self.replacement is None:
            raise ValueError("has mode: replace without replacement; write replacement: TEXT")
        if self.replacement is not None and self.mode != "replace":
            raise ValueError(f"has a replacement and mode: {self.mode}; write mode: replace, or remove the replacement")
        if self.on_error == "closed" and self.mode not in CHANGING:
            raise ValueError(f"has on_error: closed and mode: {self.mode}, which never refuses; remove on_error")
        if self.restore and self.mode != "redact":
            raise ValueError(f"has restore: true and mode: {self.mode}; write mode: redact, or remove restore")
        if self.restore and not {"input", "tool_results"}.intersection(self.on):
            raise ValueError("has restore: true and looks at no text that is sent to an engine; add input to on, or remove restore")
        if len(set(self.on)) < len(self.on):
            raise ValueError("names a direction twice in on; keep one of them")
        return self


class SecretsRule(_GuardRule):
    """API keys, tokens, private keys and passwords in connection strings."""

    kind: Literal["secrets"] = Field(description="`secrets`: keys, tokens and passwords by their published formats.")
    types: list[RuleId] = Field(
        default=[], max_length=100, description="The types to look for, such as `aws_key` or `private_key`; empty for all."
    )


class PiiRule(_GuardRule):
    """Personal data with a structure that can be checked."""

    kind: Literal["pii"] = Field(description="`pii`: cards, IBANs, phone numbers, national ids, e-mail and IP addresses.")
    types: list[Literal["card", "iban", "phone", "national_id", "email", "ip"]] = Field(
        default=[], max_length=6, description="The types to look for; empty for all."
    )
    regions: list[_Country] = Field(
        default=[],
        max_length=20,
        description="Countries, as two capital letters, whose phone numbers are found without an international prefix and whose national "
        "ids are looked for.",
    )


class WordsRule(_GuardRule):
    """Words and phrases of a list."""

    kind: Literal["words"] = Field(description="`words`: words and phrases, whatever their case and whatever look-alike letters are used.")
    words: list[_Word] = Field(min_length=1, max_length=MAX_WORDS, description="The words and phrases.")
    whole_words: bool = Field(default=True, description="Whether a word is not found inside another word.")


class PatternRule(_GuardRule):
    """A regular expression of the tenant."""

    kind: Literal["pattern"] = Field(description="`pattern`: a regular expression in RE2's syntax.")
    pattern: str = Field(
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="The expression, in RE2's syntax. With a mode that changes answers its matches must be bounded: `{1,20}`, not `+`.",
    )
    ignore_case: bool = Field(default=False, description="Whether upper and lower case are the same.")


class LinksRule(_GuardRule):
    """Links to foreign hosts, and markup that carries data out."""

    kind: Literal["links"] = Field(description="`links`: links and images outside the allowed domains.")
    allow: list[_Domain] = Field(
        default=[],
        max_length=1000,
        description="Domains that links may lead to; `*.example.com` for all below one. Empty: only markup that carries data out is found.",
    )


class InjectionRule(_GuardRule):
    """Attempts to override the instructions of a model."""

    kind: Literal["injection"] = Field(description="`injection`: phrases and structures of prompt injection and jailbreaks.")


class ClassifierRule(_GuardRule):
    """Attempts to override the instructions of a model, as a trained classifier sees them."""

    kind: Literal["classifier"] = Field(
        description="`classifier`: texts that a trained classifier takes for prompt injection or a jailbreak; best beside `injection`."
    )
    sensitivity: Literal["low", "normal", "high"] = Field(
        default="normal",
        description="How much honest text may be found: `low` two in a thousand, `normal` one in a hundred of agent sessions, intents and "
        "requests to tools and models, `high` two in a hundred of agent sessions and intents.",
    )

    @model_validator(mode="after")
    def _has_no_spans(self) -> Self:
        if self.mode in ("redact", "replace"):
            raise ValueError(f"has mode: {self.mode}, but a classifier judges passages and has no value; write mode: block, flag or shadow")
        return self


GuardRule = Annotated[
    SecretsRule | PiiRule | WordsRule | PatternRule | LinksRule | InjectionRule | ClassifierRule,
    Field(discriminator="kind"),
]
"""One rule; `kind` says of which class it is. A new kind is one more class here and one more line in `guardrails.build`."""


class GuardPolicy(Strict):
    """The guards of one policy."""

    rules: list[GuardRule] = Field(min_length=1, max_length=MAX_RULES, description="The rules. All of them look at every text of theirs.")
    held_bytes: int = Field(
        default=1024 * 1024,
        ge=4096,
        le=16 * 1024**2,
        description="The most bytes of an answer that are held until rules which block or change answers have seen it. A longer plain "
        "answer, and a stream of which more would have to be held, is ended with an error that names this bound.",
    )

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        doubled = [name for name, count in Counter(rule.id for rule in self.rules).items() if count > 1]
        if doubled:
            raise ValueError(f"has more than one rule with the id {doubled[0]}; give each rule its own")
        words = sum(len(rule.words) for rule in self.rules if isinstance(rule, WordsRule))
        if words > MAX_WORDS:
            raise ValueError(f"has {words} words in all its rules together; at most {MAX_WORDS} can stand here")
        return self

    def on(self, direction: Direction) -> tuple[GuardRule, ...]:
        """The rules that look at texts of a direction, in their order."""
        return tuple(rule for rule in self.rules if direction in rule.on)

    def version(self) -> str:
        """A digest of everything that decides what these rules let pass: part of the key of cached answers. 64 hexadecimal digits."""
        parts = [MEANING, self.model_dump(mode="json")]
        if any(isinstance(rule, ClassifierRule) for rule in self.rules):
            parts.append(packaged_version())  # other weights let other texts pass
        written = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(written.encode()).hexdigest()
