"""The built-in rules over pieces: what is released is the whole text's, whatever the pieces; prose is held by a word and never scanned."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.guards.generated import negatives, secrets
from guardrails.chain import Chain, ChainRule
from guardrails.ports import CALM_RUN, Opening, Scanned, Scanner
from guardrails.rules.links import Links
from guardrails.rules.national_ids import NATIONAL_IDS
from guardrails.rules.pattern import Pattern
from guardrails.rules.pii import Pii
from guardrails.rules.secrets import Secrets
from guardrails.rules.words import Words
from guardrails.text import Text
from guardrails.verdict import GuardVerdict
from guardrails.window import MOST_CALM, GuardWindow
from tests.scale import scaled

SECRETS = Secrets("secrets")
PII = Pii("pii")
EVERYWHERE = Pii("pii", regions=sorted({entry.country for entry in NATIONAL_IDS}))
LINKS = Links("links", ["ok.example"])
WORDS = Words("words", ["project codename 7", "project codename 77", "foo bar", "bar"])
OTHER_WORDS = Words("other", ["Straße", "é clair", "c++"])
INNER_WORDS = Words("inner", ["ode", "gate"], whole=False)
PATTERNS = tuple(
    Pattern(f"pattern-{count}", pattern, bounded=True)
    for count, pattern in enumerate(
        (
            r"\bPROJ-[0-9]{4,6}\b",
            r"(?i)emp(?:loyee)? ?id: ?\d{1,3}\b",
            r"(?P<ship>gate|harbour) (?:opens|master){1,2}",
            r"é{1,3}[^\s]|x(?-i:Y)?z",
        )
    )
)
RULES: tuple[Scanner, ...] = (SECRETS, PII, EVERYWHERE, LINKS, Links("any"), WORDS, OTHER_WORDS, INNER_WORDS, *PATTERNS)

PROSE = "The gate opens at nine, and the harbour master notes each ship in the book by the door. “Über Höhen”, she says — twice!\n"
PERSONAL = (
    *("4111 1111 1111 1111", "4111-1111-1111-1111", "3782 822463 10005", "GB82 WEST 1234 5698 7654 32", "DE89370400440532013000"),
    *("+49 30 901820", "(415) 665-1146", "phone 020 7946 0018", "085 175 7641-Office\\,3660170548-Fax", "call 415 665 1146"),
    *("ssn 536-90-4399", "RCCMNL83S18D969H", "756.9217.0769.85", "Steuer-ID 36 574 261 809", "NINO AB 12 34 56 C", "AB 12 34 56 C"),
    *(
        "o'brien@mail.example.co.uk",
        "your_email@example.com",
        "203.0.113.77:8080",
        "2001:db8::1",
        "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
    ),
    *("2024-05-26", "12 34 56 78 90 12 34", "\uff14\uff11\uff11\uff11 1111 1111 1111", "cartão de cidadao 12345678 9 ZZ4"),
)
ADDRESSES = (
    *("![x](https://evil.example/?q=abcdefghijklmnop)", "[a](https://ok.example/)[b](https://evil.example/x)", "www.evil.example/path"),
    *('<img src="https://evil.example/a?data=0123456789abcdef">', "(//evil.example/x?abcdefghijklmnopqrs)", "\\\\evil.example\\x"),
)
PHRASES = (
    "PROJ-12345",
    "EMP id: 12",
    "gate opens",
    "harbour mastermaster",
    "ééx",
    "xYz",
    "project codename 7",
    "project codename 77",
    "foo bar",
    "pRoject  codename",
    "Straße",
    "c++",
    "é clair",
)
BETWEEN = (
    *(
        " ",
        "\n",
        ", ",
        ". ",
        "",
        "  ",
        "\t",
        "\u200b",
        "\u0301",
        "\u0338",
        "é",
        "“",
        " the gate opens ",
        "basic ",
        "AB ",
        "US ",
        "12 ",
        "+(",
    ),
    *("Authorization: Basic ", "-----", "-----BEGIN ", "https:", "aws_secret_access_key = ", "password is ", "secret: ", '"', "'", "`"),
    *("<", ">", "x" * 20, "\uff0c", "\u00a0", "\u0415", "\u0130", "\u03a3", ".", "-", "/", ":", "@", "1", "card "),
)
MADE = tuple(one.text for one in secrets(24, 2)) + tuple(negatives(24, 60))


def released(rules: Chain, pieces: Sequence[str], *, stride: int = 1, whole: GuardVerdict | None = None) -> str:
    """What a window passes, checked with its verdict against the whole text's; `doomed` is only said of a text that ends in a block."""
    whole = whole or rules.judge("".join(pieces))
    window = GuardWindow(rules, stride=stride)
    text = ""
    for piece in pieces:
        one = window.feed(piece)
        text += one.text
        assert whole.text is not None
        assert whole.text.startswith(text)
        assert not one.doomed or whole.ended == "block"
    text += window.end().text
    verdict = window.verdict()
    assert text == whole.text
    assert (verdict.ended, verdict.by, verdict.cut) == (whole.ended, whole.by, whole.cut)
    if not whole.refused:
        assert verdict.findings == whole.findings
    return text


def chain(*rules: Scanner, mode: str = "redact") -> Chain:
    return Chain([ChainRule(rule, "block" if mode == "block" else "redact") for rule in rules], Text)


@pytest.mark.req("R24", "R25")
@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_however_texts_of_all_rules_are_cut_the_window_releases_what_the_chain_passes(rng: random.Random) -> None:
    parts = []
    for _ in range(rng.randint(1, 6)):
        parts.append(rng.choice(rng.choice((MADE, PERSONAL, ADDRESSES, PHRASES, (PROSE,)))))
        parts += rng.choices(BETWEEN, k=rng.randint(0, 3))
    text = "".join(parts)
    if rng.random() < 0.3:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(("", "\u200b", "\u0301", "\u0338")) + text[at + rng.randint(0, 20) :]
    rules = Chain([ChainRule(rule, rng.choice(("redact", "redact", "block"))) for rule in rng.sample(RULES, rng.randint(1, 5))], Text)
    size, pieces, at = rng.choice((1, 2, 4, 7, 15, 40)), [], 0
    while at < len(text):
        pieces.append(text[at : at + rng.randint(1, size)])
        at += len(pieces[-1])
    released(rules, pieces, stride=rng.choice((1, 1, 5)))


@pytest.mark.req("R24")
def test_a_value_that_is_split_at_every_place_never_leaks() -> None:
    """Each value between safe texts, in two pieces at every place, in three at every pair of places (the short form: at every eighth), and
    one character after the other: in the long form more than 10^4 cases, as many as `test_window.py` has of plain rules."""
    rules = chain(SECRETS, PII, LINKS)
    short = [one.text for one in secrets(25, 1) if len(one.text) < 60][:8]
    cases = 0
    for value in [*PERSONAL[:14], *ADDRESSES[:1], *short[:4]]:
        text = f"so it is {value} and on"
        places = range(6, len(text) - 3)
        cuts = [(at,) for at in places] + list(itertools.combinations(places, 2))[:: scaled(8, 1)]
        whole = rules.judge(text)
        for cut in cuts:
            edges = [0, *cut, len(text)]
            released(rules, [text[begin:end] for begin, end in itertools.pairwise(edges)], whole=whole)
        released(rules, list(text), whole=whole)
        cases += len(cuts)
    assert cases > scaled(1700, 10_000)


class Reading:
    """Makes the forms of texts, and counts the texts."""

    def __init__(self) -> None:
        self.texts = 0

    def __call__(self, original: str) -> Scanned:
        self.texts += 1
        return Text(original)


@pytest.mark.req("R24", "R27")
@pytest.mark.parametrize("size", [1, 4, 30])
def test_prose_is_never_scanned_and_held_by_its_last_word(size: int) -> None:
    read = Reading()
    rules = Chain([ChainRule(rule, "redact") for rule in (SECRETS, PII, LINKS, WORDS)], read)
    window = GuardWindow(rules)
    text = PROSE * 30
    fed = passed = 0
    for at in range(0, len(text), size):
        fed += len(text[at : at + size])
        passed += len(window.feed(text[at : at + size]).text)
        last = max(text.rfind(" ", 0, fed), text.rfind("\n", 0, fed), 0)
        assert fed - passed == window.held == fed - last
    assert read.texts == 0
    assert passed + len(window.end().text) == len(text)


def test_what_is_not_calm_is_scanned() -> None:
    read = Reading()
    window = GuardWindow(Chain([ChainRule(SECRETS, "redact")], read))
    for count, piece in enumerate(
        (" a1", " \u0430", " x@", " basic ", " " + "y" * CALM_RUN, " -----", " " + "z" * (MOST_CALM + 1)), start=1
    ):
        window.feed(piece)
        assert read.texts >= count


def test_behind_a_value_prose_is_held_by_a_word_again() -> None:
    rules = chain(SECRETS, PII, LINKS)
    window = GuardWindow(rules)
    text = "card 4111 1111 1111 1111, key " + MADE[0] + " and then the harbour master writes "
    passed = "".join([window.feed(piece).text for piece in text])
    assert window.held <= len("writes ") + 1
    assert passed.startswith("card [CARD], key ")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_built_in_rule_says_where_a_match_may_be_open(rule: Scanner) -> None:
    assert isinstance(rule, Opening)
    assert rule.opens_at(Text("")) == 0
    for text in (*PERSONAL, *ADDRESSES, *PHRASES, *MADE[:40]):
        found = rule.scan(Text(text))
        for end in range(len(text)):
            opens = rule.opens_at(Text(text[:end]))
            begun = [f.begin for f in found if f.begin < end < f.end]
            assert 0 <= opens <= min([end, *begun])


@settings(max_examples=5, deadline=None)
@given(st.data())
@pytest.mark.parametrize("form", sorted({entry.form for entry in NATIONAL_IDS}))
def test_a_national_id_in_groups_is_held_from_its_first_character(form: str, data: st.DataObject) -> None:
    written = data.draw(st.from_regex(form, fullmatch=True, alphabet=st.characters(codec="ascii")))
    text = "it is " + written
    for end in range(7, len(text) + 1):
        assert EVERYWHERE.opens_at(Text(text[:end])) <= 6
