"""Validates located data against a strict model: pydantic's errors become Problems with file, line, key and a hint. Pure.

`validated` and `checked` do so. Messages show values only when they cannot be secret: not below keys that name secrets, and never as filled
from the environment.

`literal_secrets` finds secrets that were written into configuration instead of being referred to. A settings file ends up in repositories,
tickets and backups; so a value that looks like a key is refused, wherever it stands. Two tests: prefixes that issuers give their keys,
and runs of characters too random to be a name.
"""

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from domain.mistakes import words
from policies.yaml.located import Located
from policies.yaml.problems import ConfigError, Path_, Problem

HINT: Final = "keep it in a file or the environment and write {file: path} or {env: NAME}"

MIN_ISSUED_CHARS: Final = 15
"""Length of the shortest issued key below (Slack's). A shorter text, as most values are, is not tested."""

MIN_RUN_CHARS: Final = 24
"""Shortest run judged by its entropy. 128-bit secrets have 22 characters in base64 and 32 in hexadecimal, most keys 32 and
more; below 24 the generated parts of host and file names begin."""

MIN_ENTROPY_BITS: Final = 3.7
"""Shannon entropy per character of such a run. 24 random letters and digits have 4.2 on average and 3.6 at least (5,000 drawn);
words joined with numbers can reach 3.8, which is why keys that hold names are exempt."""

MIN_HEX_ENTROPY_BITS: Final = 3.0
"""Entropy per character of 32 or more hexadecimal digits: random ones have 3.6 on average and 2.9 at least, deadbeef repeated has 2.2."""

_SECRET_KEY: Final = re.compile(
    r"(?:.*_)?(?:api_?key|key|secrets?|pepper|password|passwd|credentials?)|(?:(?:api|auth|access|bearer)_)?token", re.IGNORECASE
)
"""Matched against the whole key, because `max_output_tokens` and `first_token_cap_s` are no secrets."""

_ISSUED: Final = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      gw_[a-z0-9]{1,16}_[0-9A-Za-z]{10}_[0-9A-Za-z]{20,}  # Tidegate
    | sk-[A-Za-z0-9_-]{16,}                        # OpenAI, Anthropic and others
    | (?:sk|rk)_(?:live|test)_[0-9A-Za-z]{16,}     # Stripe
    | hf_[A-Za-z0-9]{20,}                          # Hugging Face
    | gh[opsur]_[A-Za-z0-9]{20,}                   # GitHub
    | github_pat_[A-Za-z0-9_]{20,}
    | glpat-[A-Za-z0-9_-]{16,}                     # GitLab
    | xox[abeoprs]-[A-Za-z0-9-]{10,}               # Slack
    | A(?:KIA|SIA)[A-Z0-9]{16}                     # AWS
    | AIza[A-Za-z0-9_-]{30,}                       # Google
    | nvapi-[A-Za-z0-9_-]{20,}                     # NVIDIA
    | eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.  # a signed token
    )|-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----""",
    re.VERBOSE,
)
_RUN: Final = re.compile(rf"[A-Za-z0-9+/=_-]{{{MIN_RUN_CHARS},}}")
_HEX: Final = re.compile(r"[0-9a-f]{32,}|[0-9A-F]{32,}")
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")

NAMES: Final = frozenset(
    {"name", "id", "model", "pool", "lora", "tenant", "revision", "digest", "path", "file", "certificate", "private_key", "policies", "sql"}
    | {"issuer", "audiences"}
)
"""Keys whose values may look random, since they are names, commits, digests and paths; only the test for issued keys applies to them.
A password in `sql` is looked for by the reader of URLs."""


def names_a_secret(path: Path_) -> bool:
    """Whether a key of `path` names a secret, so that the value at `path` must not be shown."""
    return any(isinstance(step, str) and _SECRET_KEY.fullmatch(step) for step in path)


def literal_secrets(located: Located) -> list[Problem]:
    """A problem for each value that is a secret. The text as written is tested, without `${NAME}`: a variable may hold a secret."""
    return [
        located.problem(path, "holds a secret itself", HINT)
        for path, text in _long_texts(located.data, ())
        if looks_secret(_VARIABLE.sub(" ", located.written[path]) if path in located.written else text, may_be_random=_is_name(path))
    ]


def looks_secret(text: str, *, may_be_random: bool = False) -> bool:
    """Whether a text holds an issued key or, unless `may_be_random`, a run of characters too random to be a name."""
    if _ISSUED.search(text):
        return True
    return not may_be_random and any(_is_random(run) for run in _RUN.findall(text))


def _is_random(run: str) -> bool:
    if _HEX.fullmatch(run):
        return _entropy_bits(run) >= MIN_HEX_ENTROPY_BITS
    classes = sum(bool(re.search(pattern, run)) for pattern in ("[a-z]", "[A-Z]", "[0-9]"))
    # paths and joined words are full of separators; base64 has one separator in 32 characters on average
    separators = sum(map(run.count, "/_-"))
    return classes == 3 and separators <= len(run) // 8 and _entropy_bits(run) >= MIN_ENTROPY_BITS


def _entropy_bits(run: str) -> float:
    """Shannon entropy per character: -sum p log2 p over the characters' shares of the run."""
    return -sum(n / len(run) * math.log2(n / len(run)) for n in Counter(run).values())


def _is_name(path: Path_) -> bool:
    return next((step for step in reversed(path) if isinstance(step, str)), "") in NAMES


def _long_texts(value: dict[str, Any] | list[Any], path: Path_) -> Iterator[tuple[Path_, str]]:
    """Path and value of every text that has at least `MIN_ISSUED_CHARS` characters."""
    for step, part in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(part, str):
            if len(part) >= MIN_ISSUED_CHARS:
                yield (*path, step), part
        elif isinstance(part, dict | list):
            yield from _long_texts(part, (*path, step))


MAX_SHOWN_CHARS: Final = 60

M = TypeVar("M", bound=BaseModel)

_HINTS: Final = {
    "missing": "write it",
    "float_type": "write a number without quotes or unit",
    "int_type": "write a whole number without quotes or unit",
    "int_from_float": "write a whole number",
    "finite_number": "write a number",
    "bool_type": "write true or false",
    "list_type": "write a list: [a, b] or lines that begin with a dash",
    "model_type": "write key: value lines",
    "dict_type": "write key: value lines",
    "string_pattern_mismatch": "use the characters that docs/reference/configuration.md allows here",
}


def checked(model: type[M], located: Located) -> tuple[M | None, list[Problem]]:
    """The data as a strict model, and every problem in it; the model is None as soon as there is one.

    A problem that the YAML reader has reported already is not reported again.
    """
    problems = list(located.problems)
    try:
        value = model.model_validate(located.data)
    except ValidationError as error:
        # by line as well: of a key that is written twice, the first value is the one that was validated
        known = {(problem.path, problem.line) for problem in problems}
        for detail in error.errors(include_url=False):
            path = _written_path(located, tuple(detail["loc"]), missing=detail["type"] == "missing")
            problem = located.problem(path, *_message_and_hint(model, located, path, detail))
            if (problem.path, problem.line) not in known:
                problems.append(problem)
        return None, problems
    return (None if problems else value), problems


def validated(model: type[M], located: Located) -> M:
    """The data as a strict model.

    Raises:
        ConfigError: with every mistake, each at its line.
    """
    value, problems = checked(model, located)
    if value is None:
        raise ConfigError(problems)
    return value


def _message_and_hint(model: type[BaseModel], located: Located, path: Path_, detail: Any) -> tuple[str, str]:
    """Message and hint of one of pydantic's errors."""
    kind, message = detail["type"], words(detail)
    if kind == "extra_forbidden":
        known = _known_keys(model, located, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        return "is no known key", f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    if kind == "value_error":
        text, _, hint = message.partition("; ")
        return text, hint
    if kind == "missing":
        return message, _HINTS[kind]
    if kind in ("too_short", "too_long"):
        too_short = kind == "too_short"
        bound = detail["ctx"]["min_length" if too_short else "max_length"]
        return f"has {detail['ctx']['actual_length']} entries; {'at least' if too_short else 'at most'} {bound} can stand here", ""
    hint = _HINTS.get(kind, "")
    if kind == "string_type" and isinstance(detail["input"], bool | int | float):
        hint = "put it in quotes"
    return f"{message}, not {_shown(located, path, detail['input'])}", hint


def _written_path(located: Located, loc: Path_, *, missing: bool) -> Path_:
    """Pydantic's location without the names of union members, which are not part of the file.

    Args:
        missing: keep the last step although it was not written, since the error is that it is missing.
    """
    path: Path_ = ()
    tagged: Path_ | None = None
    for i, step in enumerate(loc):
        if path != tagged and step == located.value(*path, "kind"):
            tagged = path  # the option of a union that `kind` chooses; a key may have the same name: `words` of the kind `words`
        elif isinstance(step, int) or (*path, step) in located.positions or (missing and i == len(loc) - 1):
            path = (*path, step)
    return path


def _shown(located: Located, path: Path_, value: object) -> str:
    if names_a_secret(path):
        return "what was written"
    if path in located.written:
        value = located.written[path]
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    # mappings and lists are not repeated: they might hold secrets
    return ascii(value)[:MAX_SHOWN_CHARS] if isinstance(value, str | int | float) else f"a {_KIND.get(type(value), 'value')}"


_KIND: Final[dict[type, str]] = {dict: "mapping", list: "list"}


def _known_keys(model: type[BaseModel], located: Located, path: Path_) -> list[str]:
    """The keys that may stand at `path`."""
    at: type[BaseModel] | None = model
    models: list[type[BaseModel]] = []
    named = False  # the previous step was a field of type dict, so this one is a free name
    for depth, step in enumerate(path):
        if at is None:
            continue
        if isinstance(step, int):  # entries of a list are of one model each
            at = _discriminated(models, located, path[: depth + 1])
            continue
        if named:
            named, at = False, _discriminated(models, located, path[: depth + 1])
            continue
        field = at.model_fields.get(step)
        named = field is not None and get_origin(field.annotation) is dict
        models = _models_in(field.annotation) if field else []
        at = _discriminated(models, located, path[: depth + 1])
    return sorted(field.alias or name for name, field in at.model_fields.items()) if at else []


def _discriminated(models: list[type[BaseModel]], located: Located, path: Path_) -> type[BaseModel] | None:
    """The model whose discriminating literal field has the written value; the first model when none has."""
    for model in models:
        for name, field in model.model_fields.items():
            if get_origin(field.annotation) is Literal and get_args(field.annotation) == (located.value(*path, name),):
                return model
    return models[0] if models else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    arguments = getattr(annotation, "__args__", ())
    if arguments:
        return [model for argument in arguments for model in _models_in(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
