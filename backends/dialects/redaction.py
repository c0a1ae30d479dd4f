"""Replaces everything in an engine's text that is not known to be harmless: a list of what may stay, not one of what may not.

The text is cut into tokens once, from left to right, and each token is given to the first reader of `_READERS` whose pattern begins there:
objects, addresses and paths, settings with a value, credentials, and last any run of characters without space, quote or bracket. Such a
run stays where `_is_harmless` knows its shape (a word, a number, a field of a request, a media type); any other is replaced by a word in
brackets. So a token that nobody has thought of is not passed on. Pure; linear in the text, which has at most `READ_CHARS` characters.
"""

import re
from collections.abc import Iterable
from typing import Final

READ_CHARS: Final = 2000
"""Characters read of an engine's message; the longest recorded one has 600."""

ADDRESS, PATH, NAME, VALUE, OBJECT, TEMPLATE, FILE, TEXT = (
    f"[{word}]" for word in ("address", "path", "name", "value", "object", "template", "file", "text")
)

_TYPOGRAPHY: Final = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"),
        **dict.fromkeys("\u00a0\u2009\u202f", " "),
        "\u2026": "...",
        "\u00d7": "x",
        "\u2264": "<=",
        "\u2265": ">=",
    }
)


def whole_tokens(text: str) -> str:
    """The first `READ_CHARS` characters of the text, without the token that the cut goes through: half a secret is not known as one."""
    if len(text) <= READ_CHARS:
        return text
    head = text[:READ_CHARS]
    return head[: max(head.rfind(space) for space in " \n\t") + 1]


def redacted(text: str, names: Iterable[str] = ()) -> str:
    """The text with words in brackets for addresses, paths, objects, credentials, names and every token of an unknown shape.

    Args:
        text: one line, of at most `READ_CHARS` characters.
        names: names of the deployment that look like words; replaced wherever they stand alone, in any case.
    """
    text = text.translate(_TYPOGRAPHY)
    out: list[str] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # its last alternative takes any character
        token, at = match[0], match.end()
        kind = match.lastgroup or ""
        if kind == "object":
            at = _object_end(text, match.start())
            out.append(OBJECT)
        elif kind == "keyed":
            out.append(_keyed(match))
        elif kind == "run":
            out.append(_run(token))
        elif kind == "kept":
            out.append(token)
        else:
            out.append(_FIXED[kind])
    joined = _PORT_BEHIND.sub(ADDRESS, "".join(out))
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 1 and name.lower() not in FIELD_WORDS and name.lower() in joined.lower():
            joined = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", NAME, joined, flags=re.IGNORECASE)
    return joined


def _object_end(text: str, at: int) -> int:
    """Where the object that begins at `at` ends: behind its last brace, or with the text."""
    depth = 0
    for match in _BRACES.finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _keyed(match: re.Match[str]) -> str:
    """A setting with its value, as `host='x'`; the value stays only where key and value are harmless."""
    key, between, value = match["key"], match["between"], match["value"]
    quote = value[0] if value[:1] in _QUOTES else ""
    inner = value.strip(_QUOTES) if quote else value
    if _NUMBER.fullmatch(inner.rstrip(_TAIL)) and not _ADDRESS_KEY.search(key):
        return match[0] if _is_word(key) or key in FIELD_WORDS else f"{VALUE}{between}{value}"
    if _SECRET_KEY.search(key) or _ADDRESS_KEY.search(key):
        tail = "" if quote else inner[len(inner.rstrip(_TAIL)) :]
        return f"{key}{between}{quote}{VALUE}{quote}{tail}"
    return f"{_run(key)}{between}{quote}{redacted(inner) if quote else _run(inner)}{quote}"


def _run(token: str) -> str:
    flag = _FLAG_WITH_VALUE.match(token)
    if flag is not None:
        return f"{flag[0]}{VALUE}"
    core = token.rstrip(_TAIL)
    head = core[: len(core) - len(core.lstrip(_HEAD))]
    core = core[len(head) :]
    tail = token[len(head) + len(core) :]
    return token if not core or _is_harmless(core) else f"{head}{_stand_in(core)}{tail}"


def _stand_in(core: str) -> str:
    if not core.isascii():
        return TEXT
    if _FILE_NAME.fullmatch(core):
        return FILE
    if "\\" in core:
        return PATH
    if _HOST_AND_PORT.fullmatch(core) or "@" in core or core.count(":") > 1:
        return ADDRESS
    if "/" in core or "." in core.strip("."):
        return NAME
    return NAME if len(core) < _LONG and re.search("[A-Za-z]", core) else VALUE


def _is_harmless(core: str) -> bool:
    if not core.isascii():
        return False
    if core.lower() in HARMLESS or _NUMBER.fullmatch(core) or _MARKS.fullmatch(core) or _ESCAPE.fullmatch(core):
        return True
    if _FLAG_NAME.fullmatch(core) or _MEDIA_TYPE.fullmatch(core) or core in _OWN_PATHS:
        return True
    if _CREDENTIAL.match(core):
        return False
    if "/" in core:
        return all(part in _PLAIN or _NUMBER.fullmatch(part) for part in core.lower().rstrip("/").split("/"))
    if "." in core:
        first, _, rest = core.partition(".")
        if _SENTENCE_START.fullmatch(rest) and _is_word(first):
            return True
        return first in FIELD_WORDS and all(part in FIELD_WORDS or part.isdigit() for part in rest.split("."))
    for between in (":", "="):
        key, found, value = core.partition(between)
        if found:
            return key in FIELD_WORDS and bool(_NUMBER.fullmatch(value) or value in _PLAIN)
    return _is_word(core)


def _is_word(core: str) -> bool:
    """Whether the run is a word, a field's or a class's name: its parts are letters in the order of a word, with few digits behind."""
    if len(core) > _MAX_NAME or _CREDENTIAL.match(core):
        return False
    parts = re.split(r"[-_']", core.strip("_-"))
    if "-" in core and any(char.isdigit() for char in core):
        return _COUNTED.fullmatch(core) is not None
    return all(_PART.fullmatch(part) and not (len(part) >= _LONG_PART and _CONSONANTS.search(part)) for part in parts)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FIELD_WORDS: Final = _words(
    """
    add_generation_prompt arguments array_schema audio audio_url bad_words best_of bos_token cache_salt chat_template
    chat_template_kwargs choice choices content continue_final_message custom_params data description detail dimensions
    dry_multiplier ebnf echo effort embedding enable_thinking encoding_format enum eos_token error file file_id format
    frequency_penalty func function function_call functions grammar guided_choice guided_grammar guided_json guided_regex id
    ignore_eos image image_url include include_usage index input input_audio input_ids inputs items json json_object json_schema
    kwargs length logit_bias logprobs max_completion_tokens max_length max_new_tokens max_output_tokens max_tokens message messages
    metadata min_length min_new_tokens min_p min_tokens mirostat mm_processor_kwargs modality model module n name n_predict n_probs
    parallel_tool_calls param parameters pattern prefix presence_penalty priority prompt prompt_logprobs prompt_tokens properties
    query reasoning reasoning_content reasoning_effort regex repeat_penalty repetition_penalty required response_format role
    sampling_params sampling_seed samples schema seed stop stop_token_ids stream stream_options strict structural_tag
    structured_outputs suffix system temperature text thinking token tokens tool tool_call_id tool_calls tool_choice tools top_k
    top_logprobs top_n top_p truncate truncate_prompt_tokens type typical_p url user value values video video_url whitespace_pattern
    documents line column char position at got limit row
    """
)
"""Names of fields of requests, and of places in a text; a dotted path may consist of these, and a number may stand behind a colon."""

HARMLESS: Final = _words(
    """
    e.g i.e etc vs. qwen3-vl qwen3-reranker qwen3-vl-reranker k2-v3 obj.rid param.task n/a i/o tokens/s utf-8 utf-16
    utf-32 iso-8859-1 latin-1 sha-1 sha-256 md5 int8 int16 int32 int64 uint8 float16
    float32 float64 bfloat16 bf16 fp8 fp16 fp32 h264 h265 base64 base-64 mp3 mp4 pcm16 g711 x86 2d 3d 4d 1d torch.tensor np.ndarray
    module.func n:n 1:n n:1 image_url.url vs c++ lora qlora vllm sglang mib gib kib json_object function.arguments
    multimodalprocessor.apply matched.structured
    """
)
"""Tokens with digits, dots or slashes that are words of the field."""

_PLAIN: Final = _words(
    """
    user assistant system developer tool function and or image audio video text true false png jpeg jpg webp gif wav mp3 mp4 flac
    ogg input output prompt completion yes no none null object string number integer boolean array file on off auto required low
    medium high minimal value error key hour minute second s token tokens ...
    """
)
_OWN_PATHS: Final = frozenset(
    f"{prefix}/{name}"
    for prefix in ("", "/v1")
    for name in _words("chat/completions completions embeddings rerank score responses models tokenize detokenize classify systemone")
)

_TAIL: Final = ".:!?*="
_HEAD: Final = "*#$@&~.:!?+="
_QUOTES: Final = "'\"`"
_LONG: Final = 20
"""Characters of a replaced run that is called a value, not a name."""
_LONG_PART: Final = 12
_MAX_NAME: Final = 64

_PART: Final = re.compile(
    r"(?:[a-z]{1,20}|[A-Z]{1,20}|(?:[a-z]{2,15})?(?:[A-Z]{1,4}[a-z]{2,15}){1,5}|[A-Z][a-z]{1,19}|[A-Z]{2,8}s)?\d{0,3}"
)
_CONSONANTS: Final = re.compile(r"[b-df-hj-np-tv-xz]{6}", re.IGNORECASE)
_COUNTED: Final = re.compile(
    r"(?:\d{1,9}-)?\d{1,9}-(?:token|bit|byte|dimensional|channel|second|item|element|way)s?|\d{1,4}(?:-\d{1,4}){1,2}"
)
_NUMBER: Final = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,20})(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?(?:%|[kKMG]?i?[BbHh]z?|ms|s|px|ch|[dD]|x\d{1,6}|th|st|nd|rd|x)?"
    r"|-?\.\d{1,9}|-?(?:inf|nan)|\d{1,9}/\d{1,9}|\d{1,4}(?::\d{1,4}){1,2}|0x[0-9a-fA-F]{1,2}|\d{1,9}=\d{1,9}|-?\d{1,3}\*\*\d{1,3}"
)
_MARKS: Final = re.compile(r"[-+*/=<>~^%&#@:.!?$_\\]{1,5}")
_ESCAPE: Final = re.compile(r"(?:\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[A-Za-z0-9\\.*+?/^$]))+")
_FLAG_NAME: Final = re.compile(r"--[a-z][a-z0-9-]{0,60}")
_FLAG_WITH_VALUE: Final = re.compile(r"--[a-z][a-z0-9-]{0,60}=(?=.)")
_MEDIA_TYPE: Final = re.compile(
    r"(?:application/(?:json|octet-stream|pdf|xml|yaml|msgpack|x-www-form-urlencoded|x-ndjson|jsonl|zip|gzip)"
    r"|multipart/(?:form-data|mixed)"
    r"|text/(?:plain|html|csv|markdown|event-stream|xml)"
    r"|image/(?:png|jpe?g|webp|gif|bmp|tiff|svg\+xml|avif|hei[cf]|x-icon)"
    r"|audio/(?:mpeg|mp3|x-wav|wav|wave|ogg|flac|aac|mp4|webm|opus|pcm|l16)"
    r"|video/(?:mp4|webm|mpeg|quicktime|ogg|x-msvideo|x-matroska))|(?:image|audio|video|text|application)/\*",
    re.IGNORECASE,
)
_CREDENTIAL: Final = re.compile(
    r"(?:sk|pk|rk|gw|hf|gsk|r8|key|tok|ghp|gho|ghu|ghs|ghr|glpat|npm|pypi|nvapi|xox[abeoprs]|dop|shpat|whsec|dckr|pat|api|AKIA|ASIA|AIza|eyJ)"
    r"(?:[-_](?=[\w-]*[A-Z0-9])[\w-]{6,}|(?<=AKIA|ASIA|AIza)\w{8,}|(?<=eyJ)[\w.-]{8,})|github_pat_\w+|hf_[A-Za-z]{8,}|sk-[a-z-]{3,}"
)
"""Beginnings of well-known credentials, for those that are as short as words."""
_HOST_AND_PORT: Final = re.compile(r"[\w.-]{1,253}:\d{1,5}|\d{1,3}(?:\.\d{1,3}){3}(?:[:/]\d{1,5})?|localhost")
_FILE_NAME: Final = re.compile(
    r"[\w.-]+\.(?:py|json|safetensors|gguf|bin|so|ya?ml|toml|jinja2?|pt|onnx|log|cfg|ini|sh|cpp?|h|cu)(?::\d{1,6})?"
)
_SENTENCE_START: Final = re.compile(r"(?:This|The|Please|Use|You|Set|It|If|Only|Remove|Got|Try|See)")
_SECRET_KEY: Final = re.compile(
    r"(?:^|[_-])(?:authori[sz]ation|bearer|password|passwd|pwd|secrets?|credentials?|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|(?:access|auth|api|hf|session|refresh|id|bearer)_?token|user(?:name)?|account|tenant|customer|cookie|signature)$"
    r"|(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD)$",
    re.IGNORECASE,
)
_ADDRESS_KEY: Final = re.compile(
    r"(?:^|[_-])(?:hosts?|hostname|port|ur[il]|addr(?:ess)?|ip|endpoint|domain|path|dir|directory|folder|file(?:name)?|socket|peer|server|node"
    r"|container|pod|namespace|bucket|region|cluster|pid)$",
    re.IGNORECASE,
)
_PORT_BEHIND: Final = re.compile(r"\[address\](?=['\"`]?, ?\d{2,5}\b)['\"`]?, ?\d{2,5}\b")
_BRACES: Final = re.compile(r"[{}]")

_KEY_WORDS: Final = (
    r"authori[sz]ation|password|passwd|pwd|secret|credentials?|api[_ -]?key|access[_ -]?key|private[_ -]?key|(?:x-)?api-key"
    r"|(?:access|auth|api|session|refresh|bearer)[_ -]token|host(?:name)?|port|url|uri|addr(?:ess)?|ip|endpoint|domain|path|file(?:name)?"
    r"|directory|folder|socket|peer|server|node|container|pod|namespace|bucket|cluster|pid|tenant|customer|account|username"
)
_VALUE_OF: Final = r"(?:(?:bearer|basic|token) +)?(?:'[^']*'?|\"[^\"]*\"?|`[^`]*`?|[^\s,;'\"`()<>]+)"

_READERS: Final[tuple[tuple[str, str], ...]] = (
    ("template", r"\{\{[^{}]*(?:\}\}|$)|\{%[^{}]*(?:%\}|$)"),
    ("object", r"\{(?=\s*(?:['\"{\[]|$))"),
    ("address", r"(?i:[a-z][a-z0-9+.-]{1,30}://)[^\s'\"`<>]*|(?i:mailto|urn|unix|tcp|udp|ipc|inproc):(?=[^\s\d])[^\s'\"`<>]+"),
    ("secret", r"(?i:data:)[^\s'\"`<>]+|(?i:(?<![a-z-])bearer\s+)(?!authentication|tokens?\b|auth\b)[^\s'\"`]+"),
    ("bracketed", r"\[(?=[^\]\s]*:[^\]\s]*:)[0-9A-Fa-f:.]+(?:%\w+)?\](?::\d+)?"),
    (
        "address6",
        r"(?<![\w:.])(?=[0-9A-Fa-f:.]*:[0-9A-Fa-f.]*:)(?=[^\s]*(?:::|[A-Fa-f]|(?::[0-9A-Fa-f]*){3}))[0-9A-Fa-f:.]{2,60}(?:%\w+)?(?!\w)",
    ),
    ("drive", r"(?<!\w)(?i:[a-z]):[\\/][^\s'\"`<>]*|\\\\\w[\w.\\$-]*"),
    (
        "path",
        r"(?<![\w)\]}])(?:~\w*|\.{1,2})?/(?!(?:v1/)?(?:chat/completions|completions|embeddings|rerank|score|responses|models|tokenize|"
        r"detokenize|classify|systemone)(?![\w/-]))(?=[\w.~@$%+-])[^\s'\"`<>,;]*[^\s'\"`<>,;.:!?)\]}]",
    ),
    (
        "keyed",
        rf"(?P<key>(?<![\w-])(?:[A-Za-z_][\w.-]{{0,60}}(?=\s?=)|(?i:{_KEY_WORDS})(?=['\"`]?\s?[:=])))"
        rf"(?P<between>['\"`]?\s?(?:=(?!=)|:)\s?)(?P<value>{_VALUE_OF})",
    ),
    ("run", r"[^\s'\"`()\[\]{}<>,;|]+"),
    ("kept", r"(?s:.)"),
)
_TOKEN: Final = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _READERS))
_FIXED: Final = {
    "template": TEMPLATE,
    "address": ADDRESS,
    "address6": ADDRESS,
    "bracketed": ADDRESS,
    "secret": VALUE,
    "drive": PATH,
    "path": PATH,
}
