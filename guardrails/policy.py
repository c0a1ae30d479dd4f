"""`guards` of a policy file: the rules that look at what callers send and at what models answer.

How rules of several levels add up is in `policies.guards`.

A rule says what it looks for (`kind`, and the options of that kind), where (`on`) and what then happens (`mode`). Only the modes `block`,
`redact` and `replace` change what anyone gets; `flag` and `shadow` are noted and never refuse, not even when the rule itself fails.
"""

from collections import Counter
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from domain.strict import Strict

MEANING: Final = "tidegate guards 2"
"""Part of each version; a change of what a rule means changes it, so that no answer is given again that other rules let pass."""

MAX_RULES: Final = 100
MAX_WORDS: Final = 10_000
"""Words and phrases of all rules of one policy together."""

MAX_PATTERN_CHARS: Final = 1000

HELD_BYTES: Final = 1024 * 1024
"""The bound on held text where no level of a policy says one."""

MAX_LAYERS: Final = 3
"""Layers of encoding that a rule takes off; what is encoded more often was not meant to be read by a model."""

MAX_REPEATED_CHARS: Final = 20_000
"""Characters that a rule for repetition looks back over: a stream scans as many with each piece."""

Direction = Literal["input", "output", "tool_arguments", "tool_results", "documents"]
"""`input`: what callers write; `tool_results`: what tools returned to the caller; `documents`: what was retrieved for a request;
`output`: what models answer, reasoning too; `tool_arguments`: what models pass to tools, in answers and in earlier turns of a request."""

SENT: Final = frozenset({"input", "tool_results", "documents"})
"""The directions whose texts go to an engine, so that a value in them can be hidden and restored."""

Mode = Literal["block", "redact", "replace", "flag", "shadow"]

CHANGING: Final = frozenset({"block", "redact", "replace"})
"""The modes that change or refuse a text. A stream is held back for rules of these modes alone."""

RuleId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$")]
_Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Domain = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(/[^\s?#\\]{0,200})?$")]
_Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")]
_Token = Annotated[str, StringConstraints(min_length=8, max_length=100)]
_Tool = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Country = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]


class _GuardRule(Strict):
    """What every rule has."""

    id: RuleId = Field(description="Name of the rule in refusals, logs and counters; it stands once in a policy.")
    on: list[Direction] = Field(
        default=["input", "output"],
        min_length=1,
        max_length=5,
        description="The texts that the rule looks at: `input` (what callers write), `output` (what models answer), `tool_arguments` (what "
        "models pass to tools), `tool_results` (what tools returned), `documents` (what was retrieved for a request).",
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
    default_on: bool = Field(
        default=True,
        description="Whether the rule applies to every request of its level. With false it applies where it is asked for: by the tag "
        "`guard.ID: on` of a key, or by a request.",
    )
    restore: bool = Field(
        default=False,
        description="With `mode: redact`, whether the engine gets a placeholder for each value, and the same request's answer to the "
        "caller has the value again. It acts on `input`, `tool_results` and `documents`.",
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
        if self.restore and not SENT.intersection(self.on):
            raise ValueError("has restore: true and looks at no text that is sent to an engine; add input to on, or remove restore")
        if len(set(self.on)) < len(self.on):
            raise ValueError("names a direction twice in on; keep one of them")
        return self


class _DecodingRule(_GuardRule):
    """What rules have that can look inside encoded parts of a text."""

    decode: int = Field(
        default=0,
        ge=0,
        le=MAX_LAYERS,
        description="How many layers of base64, hexadecimal and URL encoding are taken off parts of a text, to look inside them too. A "
        "finding there covers the whole part. Above 0, a rule that changes answers holds a stream until its end.",
    )


class SecretsRule(_DecodingRule):
    """API keys, tokens, private keys and passwords in connection strings."""

    kind: Literal["secrets"] = Field(description="`secrets`: keys, tokens and passwords by their published formats.")
    types: list[RuleId] = Field(
        default=[], max_length=100, description="The types to look for, such as `aws_key` or `private_key`; empty for all."
    )


class PiiRule(_DecodingRule):
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


class WordsRule(_DecodingRule):
    """Words and phrases of a list."""

    kind: Literal["words"] = Field(description="`words`: words and phrases, whatever their case and whatever look-alike letters are used.")
    words: list[_Word] = Field(min_length=1, max_length=MAX_WORDS, description="The words and phrases.")
    whole_words: bool = Field(default=True, description="Whether a word is not found inside another word.")
    topic: RuleId | None = Field(
        default=None, description="A name for what the words are about; findings are then of this kind, and a mark shows it. Null: `word`."
    )


class PatternRule(_DecodingRule):
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
        description="Domains that links may lead to; `*.example.com` for all below one, `example.com/docs/` for what stands below a path. "
        "Empty: only markup that carries data out is found.",
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


class LanguageRule(_GuardRule):
    """Texts in other languages than those allowed."""

    kind: Literal["language"] = Field(description="`language`: texts in other languages than those of a list.")
    allow: list[_Language] = Field(min_length=1, max_length=50, description="The languages that may be used, by their codes of ISO 639-1.")
    min_chars: int = Field(
        default=20, ge=8, le=1000, description="A text with fewer letters has no finding; a letter of Chinese or Japanese counts as three."
    )
    min_confidence: float = Field(
        default=0.7, ge=0.3, le=1.0, description="How sure the language has to be, from 0 to 1; a text below that has no finding."
    )


class JsonSchemaRule(_GuardRule):
    """Answers that are no JSON, or other JSON than agreed."""

    kind: Literal["json_schema"] = Field(description="`json_schema`: texts that are no JSON or do not fit a schema.")
    on: list[Direction] = Field(default=["output"], min_length=1, max_length=5, description="The texts that the rule looks at.")
    json_schema: dict[str, JsonValue] = Field(
        alias="schema", description="A JSON Schema (draft 2020-12 or 7), written here; `$ref` leads nowhere but into itself."
    )
    fenced: bool = Field(default=False, description="Whether a text may stand in a fence of Markdown (```json), which is taken off first.")


class PromptLeakRule(_GuardRule):
    """Answers that repeat the system prompt."""

    kind: Literal["prompt_leak"] = Field(description="`prompt_leak`: texts that repeat words of the request's system prompt.")
    on: list[Direction] = Field(default=["output"], min_length=1, max_length=5, description="The texts that the rule looks at.")
    min_words: int = Field(default=12, ge=4, le=50, description="So many words in a row, as they stand in the system prompt, are a leak.")


class CanaryRule(_GuardRule):
    """Tokens that were placed in prompts or documents to see where they turn up."""

    kind: Literal["canary"] = Field(description="`canary`: tokens of a list, also when they are split or encoded.")
    tokens: list[_Token] = Field(
        min_length=1, max_length=100, description="The tokens, each of at least 8 letters and digits that stand nowhere else."
    )


class RepetitionRule(_GuardRule):
    """Texts that say the same again and again."""

    kind: Literal["repetition"] = Field(description="`repetition`: the same piece of text many times in a row.")
    max_times: int = Field(default=20, ge=5, le=1000, description="How often the same may stand in a row.")
    max_unit_chars: int = Field(default=200, ge=1, le=1000, description="The longest piece that is compared, in characters.")
    min_chars: int = Field(
        default=200, ge=8, le=10_000, description="A row of fewer characters, such as a line of dashes, is none, however often it repeats."
    )

    @model_validator(mode="after")
    def _can_be_cut(self) -> Self:
        if self.mode in ("redact", "replace"):
            raise ValueError(f"has mode: {self.mode}, and kind: repetition tells where a text has to end; write block, flag or shadow")
        if self.max_times * self.max_unit_chars > MAX_REPEATED_CHARS:
            raise ValueError(
                f"looks at {self.max_times} times {self.max_unit_chars} characters; "
                f"max_times times max_unit_chars is at most {MAX_REPEATED_CHARS}"
            )
        return self


class ToolsRule(_GuardRule):
    """Calls of tools that are not allowed, or with other arguments than agreed."""

    kind: Literal["tools"] = Field(description="`tools`: calls of tools by name, and their arguments by schema.")
    on: list[Direction] = Field(
        default=["tool_arguments"], min_length=1, max_length=5, description="`tool_arguments` and nothing else: the rule judges calls."
    )
    allow: list[_Tool] | None = Field(
        default=None,
        max_length=1000,
        description="Names of tools that may be called; `*` stands for any characters. Null: all; `[]`: none.",
    )
    arguments: dict[_Tool, dict[str, JsonValue]] = Field(
        default={}, max_length=200, description="JSON Schemas of arguments by the name of their tool, as for `json_schema`."
    )

    @model_validator(mode="after")
    def _judges_calls(self) -> Self:
        if self.mode in ("redact", "replace"):
            raise ValueError(f"has mode: {self.mode}, and a call has no part that could be cut out; write block, flag or shadow")
        if self.on != ["tool_arguments"]:
            raise ValueError("looks at other texts than calls of tools; write on: [tool_arguments], or leave on out")
        if self.allow is None and not self.arguments:
            raise ValueError("has neither allow nor arguments, so it would find nothing; write one of them")
        return self


TextRule = (
    SecretsRule
    | PiiRule
    | WordsRule
    | PatternRule
    | LinksRule
    | InjectionRule
    | ClassifierRule
    | LanguageRule
    | JsonSchemaRule
    | PromptLeakRule
    | CanaryRule
    | RepetitionRule
)
"""A rule that looks at texts."""


DetectorName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?$")]
_Category = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,64}$")]


class DetectorRule(_GuardRule):
    """A classifier that runs elsewhere: a guard model of the fleet, a moderations endpoint, a webhook, Presidio."""

    kind: Literal["detector"] = Field(description="`detector`: a detector of `tidegate.yaml`, asked over the network.")
    detector: DetectorName = Field(description="The detector's name in `guards.detectors` of `tidegate.yaml`.")
    categories: list[_Category] = Field(
        default=[], max_length=100, description="The categories of the detector that are findings; empty for all."
    )
    threshold: float | None = Field(
        default=None, ge=0, le=1, description="The score from which a category is a finding; null for the detector's own decision."
    )
    hold: bool = Field(
        default=True,
        description="Whether an answer waits for the detector. With false, text goes on at once and the answer is cut when the verdict "
        "comes, which then is marked as late.",
    )
    window_chars: int = Field(
        default=1000, ge=100, le=100_000, description="Characters of an answer that the detector sees at a time, of a streamed one."
    )
    overlap_chars: int = Field(
        default=200, ge=0, le=10_000, description="Characters in front of a window that the detector sees again, for context."
    )

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if self.on_error is None and self.mode in CHANGING:
            raise ValueError("has no on_error; write on_error: closed (refuse when the detector is away) or on_error: open (let pass)")
        if not self.hold and self.mode in ("redact", "replace"):
            raise ValueError(f"has hold: false and mode: {self.mode}, which cannot change text that is gone; remove hold")
        if self.overlap_chars >= self.window_chars:
            raise ValueError(f"has overlap_chars: {self.overlap_chars}; it must be less than window_chars: {self.window_chars}")
        return self


LocalRule = TextRule | ToolsRule
"""A rule that this process evaluates by itself."""

GuardRule = Annotated[LocalRule | DetectorRule, Field(discriminator="kind")]
"""One rule; `kind` says of which class it is. A new kind is one more class here and one more line in `guardrails.build`."""


class GuardPolicy(Strict):
    """The guards of one policy."""

    rules: list[GuardRule] = Field(min_length=1, max_length=MAX_RULES, description="The rules. All of them look at every text of theirs.")
    held_bytes: int = Field(
        default=HELD_BYTES,
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
