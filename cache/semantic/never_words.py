"""Texts that the semantic cache never answers: too short, too long, about this moment, about the asker's own things, or about code to run.

**Lists.** A policy may replace both lists; an entry is a word, a phrase, or parts of a phrase with `...` between them, which stands for
up to three words (`my ... balance` is found in `my current account balance`). Case, accents and punctuation do not count; an entry is
found in whole words and inside one sentence only. An empty list finds nothing.

**The default list of time words** holds words whose meaning moves with the clock (`now`, `today`, `latest`, `next week`, `ago`), and
things that change by the hour (`weather`, `price`, `exchange rate`, `news`). A calendar date (`5 May 2024`) is not in it: its meaning
stays, and the guard compares it.

**The default list of personal words** holds phrases that ask for the state of something that belongs to the asker (`my ... balance`,
`where is my`, `am i`, `have i`), because two askers get two answers. The single words `my` and `account` are not in it: `How do I reset
my password?` and `How do I open an account?` have one answer for everybody. A tenant whose sharing scope is one end user may give an
empty list.
"""

import re
from collections.abc import Sequence
from typing import Final

from cache.semantic.words import SIGN, STOP, normal, tokens

SHORT: Final = "short"
LONG: Final = "long"
TIME: Final = "time"
PERSONAL: Final = "personal"
CODE: Final = "code"
REFUSALS: Final = (SHORT, LONG, TIME, PERSONAL, CODE)
"""What `text_refusal` may say."""

MIN_WORDS: Final = 3
"""Fewer words say too little for a similarity to mean anything. `Password reset steps` has three."""
MAX_CHARS: Final = 2_000
"""About 500 tokens. An embedding of a longer text sees less and less of each detail, and the guard reads texts on the event loop: the most
hostile ones of this length took it 6 ms, usual questions 0.1 ms."""
MAX_BETWEEN: Final = 3
"""Words that `...` stands for at most."""
MAX_ENTRIES: Final = 1_000
MAX_ENTRY_CHARS: Final = 200


def _entries(text: str) -> tuple[str, ...]:
    return tuple(entry.strip() for entry in text.split(";"))


DEFAULT_TIME: Final = _entries(
    "now; right now; nowadays; today; today's; tonight; tomorrow; yesterday; the current; currently; at the moment; at present; "
    "presently; so far; latest; newest; most recent; recently; up to date; as of; ago; lately; this morning; this afternoon; this "
    "evening; this week; this weekend; this month; this year; this season; next week; next weekend; next month; next year; next few; "
    "last night; last week; last weekend; last month; last year; next monday; next tuesday; next wednesday; next thursday; next "
    "friday; next saturday; next sunday; this monday; this tuesday; this wednesday; this thursday; this friday; this saturday; this "
    "sunday; last monday; last tuesday; last wednesday; last thursday; last friday; last saturday; last sunday; on monday; on "
    "tuesday; on wednesday; on thursday; on friday; on saturday; on sunday; what time is it; what day is it; what date is it; what is "
    "the time; what is the date; what year is it; the time in; weather; forecast; temperature outside; news; headlines; breaking; "
    "live score; score of the; traffic; price; prices; stock price; share price; exchange rate; exchange rates; interest rate; "
    "interest rates; in stock; available now; open now; trending; election results; flight status; in ... minutes; in ... hours; "
    "heute; jetzt; gestern; aktuell; aktuelle; aktuellen; derzeit; neueste; wetter; preis; preise; wechselkurs; nachrichten; "
    "aujourd'hui; maintenant; demain; hier soir; actuellement; meteo; prix; taux de change; hoy; ahora; ayer; actualmente; el tiempo "
    "en; clima; precio; precios; tipo de cambio; noticias; oggi; adesso; ieri; domani; attualmente; prezzo; prezzi; tasso di cambio; "
    "notizie; hoje; agora; ontem; amanha; atualmente; preco; precos; vandaag; nu; gisteren; momenteel; weer in; prijs; wisselkoers; "
    "nieuws"
)

DEFAULT_PERSONAL: Final = _entries(
    "my ... balance; my ... balances; my order; my ... order; my orders; my ... orders; my transaction; my transactions; my ... "
    "transactions; my statement; my ... statement; my bill; my ... bill; my invoice; my ... invoice; my package; my parcel; my "
    "delivery; my shipment; my ticket; my booking; my reservation; my appointment; my appointments; my calendar; my schedule; my "
    "meeting; my meetings; my reminders; my list; my ... list; my flight; my subscription ends; my salary; my paycheck; my income; my "
    "spending; my credit score; my ... limit; my points; my rewards; my name; my age; my birthday; my location; my ... history; my "
    "status; my application; my claim; my refund; my transfer; my payment; my files; my documents; my emails; my messages; my "
    "results; my grades; my symptoms; what is my; what are my; what was my; what were my; where is my; where are my; when is my; when "
    "will my; when does my; when did my; why is my; why are my; why was my; why were my; why did my; why has my; why does my; how is "
    "my; how much is my; is my; are my; was my; were my; has my; have my; did my; does my; will my; show ... my; check my; track my; "
    "read my; remind me; who am i; where am i; am i; was i; have i; had i; did i; do i have; do i owe; how much do i; how much have "
    "i; how many ... do i; how many ... have i; why did i; why was i; why am i; i was charged; i have been charged; i got charged; i "
    "was; i have been; i am still waiting; charged me; near me; around me; close to me; nearby; recommend me; remember me; about me; "
    "mein kontostand; mein ... kontostand; meine bestellung; meine rechnung; wo ist mein; wo ist meine; wann kommt mein; wann kommt "
    "meine; bin ich; habe ich; mon solde; ma commande; ma facture; ou est mon; ou est ma; suis je; ai je; mi saldo; mi pedido; mi "
    "factura; donde esta mi; estoy yo; il mio saldo; il mio ordine; la mia fattura; dov'e il mio; o meu saldo; meu saldo; meu pedido; "
    "minha fatura; onde esta o meu; onde esta meu; mijn saldo; mijn bestelling; mijn factuur; waar is mijn; ben ik; heb ik"
)

_RUN: Final = re.compile(
    r"\b(?:run|runs|running|execute|executes|executing|evaluate|eval|compile|interpret)\b(?:\W+\w+){0,4}?\W+"
    r"(?:code|script|program|snippet|command|commands|query|function|notebook|cell|test|tests|sql|python|javascript|bash|shell)\b",
    re.IGNORECASE,
)
_BLOCK: Final = re.compile(
    r"```|~~~|<script\b|<\?php|^[ \t]*(?:def \w+\(|class \w+[:({]|import \w+|from \w[\w.]* import |#include\b|function \w+\(|public class |"
    r"(?:const|let|var) \w+ = |SELECT\b.+\bFROM\b|>>> |\$ \w+)|[;{}][ \t]*\n.*[;{}][ \t]*$",
    re.MULTILINE,
)

Phrase = tuple[tuple[str, ...], ...]
"""Parts of a phrase; up to `MAX_BETWEEN` words stand between two parts."""


class NeverWords:
    """The two lists of a policy, made ready for finding.

    Args:
        time: entries that make a text's answer change with time.
        personal: entries that make a text's answer differ between askers.

    Raises:
        ValueError: an entry has no word or over 200 characters, or a list has over 1,000 entries.
    """

    def __init__(self, time: Sequence[str] = DEFAULT_TIME, personal: Sequence[str] = DEFAULT_PERSONAL) -> None:
        self._phrases: dict[str, list[tuple[str, Phrase]]] = {}
        """By the first word: the reason and the phrase."""
        for reason, entries in ((TIME, time), (PERSONAL, personal)):
            if len(entries) > MAX_ENTRIES:
                raise ValueError(f"the list of {reason} words has {len(entries)} entries; at most {MAX_ENTRIES} are allowed")
            for entry in entries:
                phrase = _phrase(entry)
                self._phrases.setdefault(phrase[0][0], []).append((reason, phrase))

    def found(self, text: str) -> str:
        """`time` or `personal`, whichever list has an entry in the text, `time` where both have; empty where none has."""
        return self.found_in(_folded(text))

    def found_in(self, words: Sequence[str]) -> str:
        """As `found`, in folded words; a member `\\n` ends a sentence."""
        reason, present = "", set(words)
        # of the phrases that begin with a word of the text, only those whose words are all there: a text of `my my my …` begins hundreds
        begun = {
            word: [(name, phrase) for name, phrase in self._phrases[word] if all(present.issuperset(part) for part in phrase)]
            for word in present & self._phrases.keys()
        }
        for at, word in enumerate(words):
            for name, phrase in begun.get(word, ()):
                if name != reason and _matches(phrase, words, at):
                    if name == TIME:
                        return TIME
                    reason = name
        return reason


def text_refusal(text: str, never: NeverWords) -> str:
    """Why the semantic cache passes a question by, as one of `REFUSALS`; empty for a question that it may answer.

    The request to run code is known in English only; a code block in any language.
    """
    if len(text) > MAX_CHARS:
        return LONG
    if _BLOCK.search(text) or _RUN.search(text):
        return CODE
    words = _folded(text)
    if _count(words) < MIN_WORDS:
        return SHORT
    return never.found_in(words)


def _phrase(entry: str) -> Phrase:
    parts = tuple(tuple(word for word in _folded(part) if word != "\n") for part in entry.split("..."))
    if len(entry) > MAX_ENTRY_CHARS or not all(parts):
        raise ValueError(f"{entry[:MAX_ENTRY_CHARS]!r} is no entry: write a word, a phrase, or parts of one with `...` between them")
    return parts


def _folded(text: str) -> list[str]:
    return ["\n" if token.kind == STOP else token.folded for token in tokens(normal(text)) if token.kind != SIGN]


def _count(words: Sequence[str]) -> int:
    """Words; in a script without spaces (Chinese, Japanese, Thai) two characters count as one word."""
    return sum(max(1, len(word) // 2) if word[0] >= "\u0e00" and len(word) > 1 else 1 for word in words if word != "\n")


def _matches(phrase: Phrase, words: Sequence[str], at: int) -> bool:
    """Whether the phrase begins at this word."""
    part, rest = phrase[0], phrase[1:]
    end = at + len(part)
    if tuple(words[at:end]) != part:
        return False
    if not rest:
        return True
    for between in range(MAX_BETWEEN + 1):
        if _matches(rest, words, end + between):
            return True
        if end + between >= len(words) or words[end + between] == "\n":
            return False
    return False
