"""Finds secrets that were written into configuration instead of being referred to.

A settings file ends up in repositories, tickets and backups; so a value that looks like a key is refused, wherever it stands.
Two tests: prefixes that issuers give their keys, and runs of characters too random to be a name. Pure.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from policies.located_yaml import Located
from policies.problems import Path_, Problem

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
