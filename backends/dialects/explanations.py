"""The sentence in which an engine explains a refusal, without what only its operator may know.

Callers need the engine's own words: no list of rules knows every template's and every field's mistake. So the sentence stays, and the
parts that name the deployment are replaced: model names and weights, paths, addresses, flags and environment variables, object dumps, and
the engine's own name. Further sentences that tell the operator how to start the engine are left out. Text that is no sentence (a traceback,
control characters) is not passed on at all.

`tests/wire/engine_refusals/` has every refusal text of the pinned vLLM and SGLang packages, and what becomes of each.
"""

import re
from typing import Final

MAX_PASSED_CHARS: Final = 300
"""Longest explanation of an engine that may reach a caller."""
MAX_READ_CHARS: Final = 600
"""Characters of an explanation that are looked at. The patterns below have bounded repeats as well: callers' text stands in explanations,
and a pattern that runs for long would hold up the whole worker."""


def explained(text: str, served: tuple[str, ...] = ()) -> str | None:
    """The explanation as callers may see it; None where nothing of it may be shown.

    Args:
        text: the engine's message, whole.
        served: names under which engines know models, adapters included.
    """
    sentence = _first_complaint(text)
    sentence = sentence and sentence[:MAX_READ_CHARS]
    if not sentence or not sentence.isascii() or not sentence.isprintable() or _NO_SENTENCE.search(sentence):
        return None
    for pattern, replacement in _PLACES:
        sentence = pattern.sub(replacement, sentence)
    for name in sorted(served, key=len, reverse=True):
        if name:
            sentence = re.sub(rf"(?:\b[Tt]he )?(?:\b[Mm]odel )?[`'\"]?(?<![\w-]){re.escape(name)}(?![\w-])[`'\"]?", "this model", sentence)
    first, *more = _SENTENCE_ENDS.split(sentence)
    sentence = " ".join([first, *[part for part in more if not _FOR_OPERATORS.search(part)]])
    for pattern, replacement in _NAMES:
        sentence = pattern.sub(replacement, sentence)
    sentence = _within(" ".join(sentence.split()))
    if len(_WORD.findall(sentence)) < 2:
        return None
    return sentence[:1].upper() + sentence[1:] if sentence.startswith(("this model", "the engine", "an engine")) else sentence


def _first_complaint(text: str) -> str | None:
    """The sentence to begin with: the text's first line, or the complaint of a validation error, which is a list of Python dictionaries."""
    validation = _VALIDATION.match(text)
    if validation is None:
        return text.strip().partition("\n")[0].partition(" (parameter=")[0].strip()
    complaints = [(single or double).replace("\\'", "'").replace('\\"', '"') for single, double in _COMPLAINT.findall(text)]
    own = [complaint.removeprefix(_OWN) for complaint in complaints if complaint.startswith(_OWN)]
    # a field that may have several types has one complaint for each of them, and none is the caller's
    return own[0] if own else complaints[0] if validation[1] == "1" and complaints else None


def _within(sentence: str) -> str:
    """As many whole sentences as `MAX_PASSED_CHARS` has room for; the first one is cut at a word where it is longer than that."""
    if len(sentence) <= MAX_PASSED_CHARS:
        return sentence
    head = sentence[: MAX_PASSED_CHARS - 4]
    end = max(head.rfind(". "), head.rfind("! "))
    return head[: end + 1] if end > 0 else f"{head.rpartition(' ')[0] or head} ..."


_OWN: Final = "Value error, "
"""Pydantic's prefix of the messages that the engine's own validators raise."""
_VALIDATION: Final = re.compile(r"(\d{1,6}) validation errors?[:\n]")
_COMPLAINT: Final = re.compile(r"'msg': (?:'((?:[^'\\]|\\.){1,1000})'|\"((?:[^\"\\]|\\.){1,1000})\")")
_NO_SENTENCE: Final = re.compile(r"Traceback|\bFile \"|validation error|\bself\.|\b[A-Za-z_]+\(\*")
_SENTENCE_ENDS: Final = re.compile(r"(?<=[a-z)`'\"\]0-9][.!?]) +(?=[A-Z])")
_WORD: Final = re.compile(r"\b[A-Za-z]{2,}")

_FLAG: Final = r"[`'\"]?(?<![\w-])--[a-z][\w-]{0,60}(?:=[^\s`'\"]{1,80})?[`'\"]?"
_VARIABLE: Final = r"[`'\"]?\b(?:VLLM|SGLANG|SGL|LLAMA|TRTLLM|HF|CUDA|TORCH|PYTORCH|NCCL)_[A-Z0-9_]{1,60}(?:=\w{1,40})?[`'\"]?"
_PLAIN: Final = "(?:user|assistant|system|tool|and|or|image|audio|video|text|true|false|png|jpeg|jpg|webp|gif|wav|mp3)"
_NO_NAME: Final = rf"(?!{_PLAIN}(?:/(?:{_PLAIN}|\.\.\.)){{1,8}}(?![\w/-])|\d{{1,9}}/\d{{1,9}}\b)"
"""Roles and kinds of content with slashes between them, and fractions, which are no names."""

_PLACES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"; tools = .*"), ""),
    # a long run of letters and digits is no word: a key, a hash, or what a caller pasted in the wrong field
    (re.compile(r"(?<![A-Za-z0-9_-])(?=[A-Za-z-]{0,200}\d)[A-Za-z0-9-]{24,}"), "[value]"),
    (re.compile(r"\[json\.exception\.[\w.]{1,40}\] ?"), ""),
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s'\"`]{1,600}"), "[address]"),
    (re.compile(r"\{\{[^{}]{0,200}\}\}|\{%[^{}]{0,200}%\}"), "[template]"),
    (re.compile(r"\{ ?['\"][^{}]{0,400}(?:\}|$)"), "[object]"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b|(?<![\w.-])[A-Za-z][\w.-]{0,60}:\d{2,5}\b|\blocalhost\b"), "[address]"),
    (re.compile(r"\b[A-Za-z]:\\[^\s'\"`]{0,200}|\\\\[\w.\\-]{1,200}"), "[path]"),
    (re.compile(r"(?:(?<=[\s'\"`(=:,])|^)(?!/v1/)(?:~|\.{1,2})?/(?:[\w.+@-]{1,80}/?){1,16}"), "[path]"),
    (re.compile(rf"(?<![\w./\]-]){_NO_NAME}[A-Za-z0-9][\w.-]{{0,80}}(?:/[\w.-]{{1,80}}){{1,8}}/?"), "[name]"),
    (re.compile(r"(?<![\w./-])(?!structured_outputs\.)[\w-]{1,80}\.(?:py|json|safetensors|gguf|bin|so|yaml)\b(?::\d{1,6})?"), "[file]"),
)
"""Addresses, files and dumps, and what stands for each."""

_FOR_OPERATORS: Final = re.compile(
    rf"{_FLAG}|{_VARIABLE}|\b(?:re)?launch(?:ing)? (?:the server|without|with)|[Vv]alid aliases|[Aa]vailable templates|environment variable"
)

_NAMES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(_FLAG), "an engine option"),
    (re.compile(_VARIABLE), "an engine option"),
    (re.compile(r"<class '(?:\w{1,40}\.){0,8}(str|int|float|bool|list|dict|tuple|set|bytes|NoneType)'>"), r"\1"),
    (
        re.compile(r"<(?:class|function|module|bound method|[\w.]{1,80} object)\b[^>]{0,200}>?|<path>| at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]+"),
        "[object]",
    ),
    (
        re.compile(
            r"\b((?:allowed|available|loaded|valid) (?:\w{1,20} )?(?:domains|hosts|aliases|templates|adapters|models)): ?[^;.]{1,400}",
            re.I,
        ),
        r"\1: [names]",
    ),
    (
        re.compile(r"(?<![\w.])(?:vllm|sglang|transformers|pydantic|jinja2|xgrammar|outlines|tokenizers|fastapi)(?:\.\w{1,60}){1,12}"),
        "[object]",
    ),
    (
        re.compile(r"\b(models?|adapters?|lora|alias(?:es)?|checkpoint)( class| type| name| path)?:? [`'\"][^`'\"]{1,200}[`'\"]", re.I),
        r"\1\2",
    ),
    (re.compile(r"\b(models?|adapters?|lora|alias)(?:_name|_path|_id)?\s?[=:]\s?[`'\"]?[\w./-]{1,120}[`'\"]?", re.I), r"\1"),
    (
        re.compile(
            r"\b(models?|adapters?|lora|alias) (?!(?:[a-z]{1,20}-)?(?:only|trained|based|specific)\b)\w{0,40}[-./0-9][\w./-]{0,80}\w\b",
            re.I,
        ),
        r"\1",
    ),
    (re.compile(r"[`'\"]?(?<![\w.-])[A-Za-z][\w.-]{0,40}\d{1,4}(?:\.\d{1,2})?[bB](?:-[\w.-]{1,40})?\b[`'\"]?"), "[name]"),
    (re.compile(r"\b(?:[Tt]he )?[A-Z]\w{1,60}For[A-Z]\w{1,60}(?: model)?\b"), "this model"),
    (re.compile(r"\b(?:the )?(?:vllm|sglang|llama\.cpp|llama-server|trtllm|tensorrt[-_ ]?llm|tgi|dynamo)\b", re.I), "the engine"),
)
"""Names and words of the deployment, and what stands for each."""
