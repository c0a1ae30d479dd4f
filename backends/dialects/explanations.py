"""The sentence in which an engine explains a refusal, without what only its operator may know.

Callers need the engine's own words: no list of rules knows every template's and every field's mistake. So the sentence stays, and the
parts that name the deployment are replaced, in two steps. `backends.dialects.redaction` looks at each token and lets only harmless shapes
pass (words, numbers, fields of requests, media types). Here the phrases follow that tell something although their words are harmless:
names of models and adapters, flags and environment variables, and the engine's own name. Further sentences that tell the operator how to
start the engine are left out. Text that is no sentence (a traceback, an object, control characters) is not passed on at all. The
sentence is cut last, so that nothing is half cut when it is looked at.

`tests/wire/engine_refusals/` has every refusal text of the pinned vLLM and SGLang packages, and what becomes of each.
"""

import re
from collections.abc import Collection
from typing import Final

from backends.dialects.redaction import READ_CHARS, redacted, whole_tokens

MAX_PASSED_CHARS: Final = 300
"""Longest explanation of an engine that may reach a caller."""


def explained(text: str, served: Collection[str] = (), others: Collection[str] = ()) -> str | None:
    """The explanation as callers may see it; None where nothing of it may be shown.

    Args:
        text: the engine's message, of which `READ_CHARS` characters are looked at.
        served: names under which engines know the request's model, its adapter included.
        others: further names of the deployment: of other models and adapters, and of hosts.
    """
    sentence = _first_complaint(whole_tokens(text) if len(text) > READ_CHARS else text)
    if not sentence or not sentence.isprintable() or _NO_SENTENCE.search(sentence):
        return None
    sentence = _DUMP.sub("", sentence)
    for name in sorted(served, key=len, reverse=True):
        if name and name.lower() in sentence.lower():
            sentence = re.sub(
                rf"(?:\b[Tt]he )?(?:\b[Mm]odel )?[`'\"]?(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)[`'\"]?",
                "this model",
                sentence,
                flags=re.I,
            )
    sentence = redacted(sentence, others)
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
_NO_SENTENCE: Final = re.compile(r"Traceback|\bFile \"|validation error|\bself\.|^[\[{]+['\"{\[]|\b[A-Za-z_]+\(\*")
_SENTENCE_ENDS: Final = re.compile(r"(?<=[a-z)`'\"\]0-9][.!?]) +(?=[A-Z])")
_WORD: Final = re.compile(r"\b[A-Za-z]{2,}")

_FLAG: Final = r"[`'\"]?(?<![\w-])--[a-z][\w-]{0,60}(?:=[^\s`'\"]{1,80})?[`'\"]?"
_VARIABLE: Final = (
    r"[`'\"]?\b(?:(?:VLLM|SGLANG|SGL|LLAMA|TRTLLM|HF|CUDA|TORCH|PYTORCH|NCCL|AWS|AZURE|GOOGLE|OPENAI|ANTHROPIC)_[A-Z0-9_]{1,60}(?:=[\w.[\]]{1,40})?"
    r"|[A-Z][A-Z0-9]{1,20}(?:_[A-Z0-9]{1,20}){1,8}(?:=[\w.[\]]{1,40}|(?<=KEY|DIR|URL)|(?<=TOKEN|_HOST|_PORT|_HOME)|(?<=_PATH|_ROOT)|(?<=SECRET)))[`'\"]?"
)
_DUMP: Final = re.compile(r"; tools = .*|\[json\.exception\.[\w.]{1,40}\] ?")
"""Dumps of what the caller sent, and a library's mark before its sentence."""

_FOR_OPERATORS: Final = re.compile(
    rf"{_FLAG}|{_VARIABLE}|\b(?:re)?launch(?:ing)? (?:the server|without|with)|[Vv]alid aliases|[Aa]vailable templates|environment variable"
)

_VERB: Final = r" (?:is|was|has|does|did|not|cannot|could|can|already|failed|needs|must|will|exists)\b"
_NO_ADAPTER: Final = (
    r"(?:adapters?|models?|lora|name|path|id|type|class|config|weights?|output|inputs?|outputs?|request|requests|support|is|was|has|does|did|not|cannot"
    r"|could|can|already|failed|needs|must|will|exists|that|which|to|it|only|selection|parameters?|list|version|server|context|length|template"
    r"|first|and|or|for|found|loaded|served|loading|itself|instead|specified|provided|field|format|names|paths|size|engine|deployment)\b"
)
"""Words that stand behind "model" or "adapter" and are no name."""

_NAMES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(
            rf"\b(models?|adapters?|lora|alias) (?:named |called )?(?!{_NO_ADAPTER})['`\"]?[A-Za-z][\w-]{{0,80}}['`\"]?(?={_VERB}|[.!]?$)",
            re.I,
        ),
        r"\1",
    ),
    (re.compile(_FLAG), "an engine option"),
    (re.compile(_VARIABLE), "an engine option"),
    (re.compile(r"<class '(?:\w{1,40}\.){0,8}(str|int|float|bool|list|dict|tuple|set|bytes|NoneType)'>"), r"\1"),
    (
        re.compile(
            r"<(?:class|function|module|bound method|[\w.]{1,80} object)\b[^>]{0,200}>?|<path>| at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{3,}"
        ),
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
