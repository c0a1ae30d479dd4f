"""A window over pieces says what the chain says of the whole, releases no character of a finding, and holds no more than it has to."""

import itertools
import random
import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.guards.generated import NAMED, TOKENS, secrets
from guardrails.build import chain_of
from guardrails.chain import Chain, ChainRule
from guardrails.policy import GuardPolicy
from guardrails.ports import Scanned
from guardrails.rules.secrets import Secrets
from guardrails.text import INVISIBLE, Text
from guardrails.verdict import GuardVerdict
from guardrails.window import MOST_BEHIND, MOST_WEIGHTLESS, GuardWindow, Released
from tests.guard_doubles import Counting, Expression, Failing, PlainText, chain, rule
from tests.scale import scaled


def streamed(rules: Chain, pieces: Sequence[str], *, stride: int = 1, idle: bool = False) -> tuple[str, GuardVerdict]:
    window = GuardWindow(rules, stride=stride)
    text = ""
    for piece in pieces:
        text += window.feed(piece).text
        if idle:
            text += window.idle().text
    text += window.end().text
    return text, window.verdict()


def assert_same(rules: Chain, pieces: Sequence[str], *, stride: int = 1, idle: bool = False) -> None:
    whole = rules.judge("".join(pieces))
    text, verdict = streamed(rules, pieces, stride=stride, idle=idle)
    assert text == whole.text
    assert (verdict.ended, verdict.by, verdict.cut) == (whole.ended, whole.by, whole.cut)
    if whole.refused:
        assert [noted for noted in verdict.findings if noted.mode not in ("flag", "shadow")] == [
            noted for noted in whole.findings if noted.mode not in ("flag", "shadow")
        ]
    else:
        assert verdict.findings == whole.findings


RULES = [
    rule("redact", "ab{1,4}a", 6, kind="x"),
    rule("redact", "bc[ab]{3}", 5, kind="y"),
    rule("replace", r"\bcab\b", 5, replacement=""),
    rule("redact", "(?<=c)a(?=c)", 3, kind="z"),
    rule("redact", "ca{2,7}", 8, kind="w"),
    rule("block", "cc[ab]{2}c", 5),
    rule("block", r"\bbb", 3),
    rule("flag", "ba", 2),
    rule("shadow", "a+$", None),
]

JOINED = [
    ChainRule(Expression("ab", "ab", 2, "k"), "redact", joins=True),
    ChainRule(Expression("bab", "bab", 3, "k"), "replace", "~", joins=True),
    rule("redact", "ca", 2, kind="k"),
]

texts = st.text(alphabet="aabbc \u200b", max_size=60)
LOOK_ALIKES = "aabbc \u200b\u0430\u0441\u0301\u0327\uff42\ufb03\U000e0061\u1100\u1161\u33a4"
"""Latin and Cyrillic, marks that join the letter before, a full-width letter, a ligature, a tag character, Hangul, a square of three."""


@st.composite
def pieces_of(draw: st.DrawFn, texts: st.SearchStrategy[str] = texts) -> list[str]:
    text = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(text)])]


@pytest.mark.req("R24", "R25")
@given(pieces_of(), st.sets(st.sampled_from(range(len(RULES))), min_size=1), st.integers(1, 7), st.booleans())
def test_however_a_text_is_cut_the_window_releases_what_the_chain_passes(
    pieces: list[str], chosen: set[int], stride: int, idle: bool
) -> None:
    assert_same(chain(*[RULES[at] for at in sorted(chosen)]), pieces, stride=stride, idle=idle)


@pytest.mark.req("R24", "R25")
@given(pieces_of(st.text(alphabet=LOOK_ALIKES, max_size=60)), st.sets(st.sampled_from(range(len(RULES))), min_size=1))
def test_normalisation_makes_no_difference_between_pieces_and_the_whole(pieces: list[str], chosen: set[int]) -> None:
    assert_same(Chain([RULES[at] for at in sorted(chosen)], Text), pieces)


@pytest.mark.req("R24", "R25")
@given(pieces_of(), st.sets(st.sampled_from(range(len(JOINED))), min_size=1), st.integers(1, 4))
def test_findings_that_touch_get_one_mark_in_a_stream_as_in_the_whole(pieces: list[str], chosen: set[int], stride: int) -> None:
    assert_same(chain(*[JOINED[at] for at in sorted(chosen)]), pieces, stride=stride)


def test_what_normalisation_leaves_out_or_joins_takes_no_room() -> None:
    marks = [char for char in map(chr, range(0x110000)) if unicodedata.category(char)[0] == "M"]
    rules = Chain([rule("redact", "ab", 2)], Text)
    for char in [*INVISIBLE, *marks, *map(chr, range(0x1160, 0x1200)), "\uff9e", "\uff9f"]:
        window = GuardWindow(rules)
        window.feed("xyz" + char * 3)
        assert window.held >= 5, f"U+{ord(char):04X}"


@pytest.mark.req("R24", "R25")
def test_thousands_of_texts_are_streamed_as_they_are_judged() -> None:
    rng = random.Random(24)
    texts = scaled(1500, 10_000)
    refused = changed = 0
    for _ in range(texts):
        rules = chain(*[RULES[at] for at in sorted(rng.sample(range(len(RULES)), rng.randint(2, 6)))])
        text = "".join(rng.choices("aabbc \u200b", k=rng.randint(0, 50)))
        pieces = []
        at = 0
        while at < len(text):
            size = rng.randint(1, 9)
            pieces.append(text[at : at + size])
            at += size
        assert_same(rules, pieces)
        verdict = rules.judge(text)
        refused += verdict.refused
        changed += not verdict.refused and verdict.text != text
    assert refused > texts / 20
    assert changed > texts / 3.5


SECRETS = ("AKIA" + "Q7" * 8, "4111-1111-1111-1111", "ann.lee@example.com", "ghp_" + "x9Y" * 12)
PATTERNS = (
    rule("redact", r"\bakia[a-z0-9]{16}\b", 22, kind="aws_key"),
    rule("redact", r"\b\d{4}(-\d{4}){3}\b", 21, kind="card"),
    rule("redact", r"\b[a-z.]{1,20}@[a-z.]{1,20}\b", 43, kind="email"),
    rule("redact", r"\bghp_[a-z0-9]{36}\b", 42, kind="github"),
)


@pytest.mark.req("R24")
def test_a_value_that_is_split_at_every_place_never_leaks_and_safe_text_is_never_changed() -> None:
    """Every value, between safe texts, in two pieces at every place and in three at every pair of places: more than 10^4 cases."""
    rules = chain(*PATTERNS)
    cases = 0
    for value in SECRETS:
        before, after = "Look: it is ", " and so on."
        text = before + value + after
        places = range(len(text) + 1)
        cuts = [(at,) for at in places] + list(itertools.combinations(range(0, len(text) + 1), 2))
        passed = rules.judge(text).text
        assert passed is not None
        assert passed.startswith(before)
        assert passed.endswith(after)
        assert value not in passed
        for cut in cuts:
            window = GuardWindow(rules)
            edges = [0, *cut, len(text)]
            released = [window.feed(text[begin:end]).text for begin, end in itertools.pairwise(edges)]
            for count in range(1, len(released) + 1):
                assert passed.startswith("".join(released[:count]))
            assert "".join(released) + window.end().text == passed
            cases += 1
    safe = "A commit 3f786850e387550fdab836ed7e6dc881de23001b, a date 2026-01-31, 4111-1111, AKIA, and no @ mail."
    for cut in itertools.combinations(range(len(safe) + 1), 2):
        edges = [0, *cut, len(safe)]
        text, verdict = streamed(rules, [safe[begin:end] for begin, end in itertools.pairwise(edges)])
        assert (text, verdict.findings) == (safe, ())
        cases += 1
    assert cases > 10_000


@pytest.mark.req("R24")
@given(st.integers(0, 40), st.integers(1, 6), st.integers(1, 9))
def test_zero_width_characters_inside_a_value_do_not_make_its_beginning_pass(place: int, gaps: int, size: int) -> None:
    value = "".join([character + "\u200b" * gaps for character in "AKIA" + "Q7" * 8])
    text = "x" * place + " " + value + " end"
    rules = chain(*PATTERNS[:1])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert_same(rules, pieces)
    assert "Q" not in streamed(rules, pieces)[0]


@pytest.mark.req("R24")
@pytest.mark.parametrize("kind", sorted(TOKENS.keys() | NAMED.keys()))
def test_secrets_are_hidden_in_a_stream_as_in_the_whole(kind: str) -> None:
    rules = Chain([ChainRule(Secrets("keys", [kind]), "redact")], Text)
    rng = random.Random(kind)
    filler = "and so on, word by word; " * 20
    found = 0
    for made in [one for one in secrets(seed=11, each=4) if one.kind == kind]:
        text = f"{filler}\n{made.text}\n{filler}"
        found += len(rules.judge(text).findings)
        assert_same(rules, [text])
        edges = sorted({0, len(text), *[rng.randrange(len(text)) for _ in range(200)]})
        assert_same(rules, [text[begin:end] for begin, end in itertools.pairwise(edges)])
    assert found >= 3


def test_a_block_cuts_with_what_was_safe_before_it_and_nothing_follows() -> None:
    window = GuardWindow(chain(rule("block", "stop!", 5), rule("redact", "one", 3, kind="n")))
    pieces = ["It is one", " thing; st", "op", "! and m", "ore", " text"]
    released = [window.feed(piece) for piece in pieces]
    assert "".join([one.text for one in released]) == "It is [N] thing; "
    assert [one.ended for one in released] == ["", "", "", "block", "block", "block"]
    assert released[3].by == "stop!"
    assert window.end() == Released("", "block", "stop!")
    assert window.verdict().cut == 17


def test_a_block_that_is_sure_is_told_before_the_text_in_front_of_it_is_decided() -> None:
    rules = chain(rule("block", "stop", 4), rule("redact", "a[a-z]{50}z", 52))
    window = GuardWindow(rules)
    first = window.feed("ab stop it")
    assert (first.text, first.ended, first.doomed) == ("", "", "stop")
    rest = window.feed("." * 60)
    assert (rest.text, rest.ended, rest.by) == ("ab ", "block", "stop")


def test_flags_delay_nothing_and_are_noted_at_the_end() -> None:
    window = GuardWindow(chain(rule("flag", "secret", 6), rule("shadow", "e.*r", None)))
    assert [window.feed(piece).text for piece in ("se", "cr", "et")] == ["se", "cr", "et"]
    assert window.held == 0
    assert window.end() == Released()
    assert [(noted.rule, noted.begin, noted.end) for noted in window.verdict().findings] == [("secret", 0, 6), ("e.*r", 1, 4)]


def test_a_chain_without_rules_delays_nothing() -> None:
    assert GuardWindow(chain()).feed("any").text == "any"


@given(st.integers(1, 60), st.integers(1, 9))
def test_no_more_is_held_than_the_longest_match_needs(longest: int, size: int) -> None:
    window = GuardWindow(chain(rule("redact", "q{3}", longest)))
    fed = released = 0
    for _ in range(40):
        fed += size
        released += len(window.feed("x" * size).text)
        assert fed - released == window.held == min(fed, longest)
    released += len(window.end().text)
    assert (fed - released, window.held) == (0, 0)


class Words(Expression):
    """Finds a word between spaces, so that no match is open behind a space."""

    before = 12
    stirred_by = None

    def opens_at(self, text: Scanned) -> int:
        return text.original.rfind(" ") + 1


@given(texts, st.integers(1, 5))
def test_a_scanner_that_knows_where_a_match_may_be_open_holds_that_alone(text: str, size: int) -> None:
    text = text.replace("\u200b", "")
    rules = chain(ChainRule(Words("w", r"(?<![abc])ab{1,9}(?![abc])", 12, "w"), "redact"))
    assert_same(rules, [text[at : at + size] for at in range(0, len(text), size)])
    window = GuardWindow(rules)
    released = window.feed(text).text
    assert window.held == min(12, len(text) - (text.rfind(" ") + 1))
    assert released + window.end().text == rules.judge(text).text


def test_a_scanner_whose_opening_fails_is_held_like_any_other() -> None:
    class Broken(Words):
        def opens_at(self, text: Scanned) -> int:
            raise RuntimeError("failed")

    window = GuardWindow(chain(ChainRule(Broken("w", "ab", 2), "redact")))
    assert window.feed("x x x").text == "x x"
    assert window.end().text == " x"


def test_idle_scans_what_was_gathered_and_releases_nothing_that_may_be_open() -> None:
    window = GuardWindow(chain(rule("redact", "key-[0-9]{4}", 8, kind="k")), stride=100)
    assert window.feed("The value is key-12") == Released()
    assert window.idle().text == "The value i"
    assert window.idle() == Released()
    assert window.feed("34.").text + window.end().text == "s [K]."


def test_a_rule_that_needs_the_whole_holds_everything_up_to_the_bound() -> None:
    rules = chain(rule("redact", "a.*z", None, kind="all"))
    assert rules.needs_whole == ("a.*z",)
    window = GuardWindow(rules, most_held=10)
    assert [window.feed(piece).text for piece in ("xab", "cdz", "y")] == ["", "", ""]
    assert window.held == 7
    assert window.end().text == "x[ALL]y"
    window = GuardWindow(rules, most_held=10)
    assert window.feed("x" * 10) == Released()
    assert window.feed("x") == Released("", "too_long")
    assert window.end() == Released("", "too_long")


def test_zero_width_characters_without_end_are_not_held_without_end() -> None:
    window = GuardWindow(chain(rule("redact", "ab", 2)))
    assert window.feed("a").ended == ""
    ended = [window.feed("\u200b" * 512).ended for _ in range(MOST_WEIGHTLESS // 512 + 1)]
    assert ended[-1] == "too_long"
    assert set(ended[:-2]) == {""}


def test_a_rule_that_fails_closed_cuts_and_one_that_fails_open_does_not() -> None:
    window = GuardWindow(chain(ChainRule(Failing("net"), "redact")))
    assert window.feed("all is well here").text == "all is w"
    assert window.feed(" boom ") == Released("", "unavailable", "net")
    assert window.end() == Released("", "unavailable", "net")
    assert window.verdict().failed == ("net",)
    rules = chain(ChainRule(Failing("net"), "block", closed=False), rule("redact", "m ", 2, kind="m"))
    text, verdict = streamed(rules, ["all is well", " boom ", "again"])
    assert (text, verdict.failed, verdict.refused) == ("all is well boo[M]again", ("net",), False)


def test_each_piece_costs_a_scan_of_the_held_text_and_as_much_before_it_whatever_came_before() -> None:
    longest, size = 32, 4
    counting = Counting(Expression("c", "q{3}", longest))
    window = GuardWindow(Chain([ChainRule(counting, "redact")], PlainText))
    costs = []
    for _ in range(1000):
        before = counting.scanned
        window.feed("abcd")
        costs.append(counting.scanned - before)
    assert max(costs) == costs[-1] == 2 * longest + size


@pytest.mark.parametrize("text", ["AKIA" * 1000, "eyJ" * 1250, "password=" * 450])
def test_a_text_that_stays_open_is_scanned_a_bounded_number_of_times(text: str) -> None:
    chain = chain_of(GuardPolicy.model_validate({"rules": [{"id": "keys", "kind": "secrets", "mode": "redact"}]}).rules, "output")
    scanned = 0

    def counted(read: str) -> Scanned:
        nonlocal scanned
        scanned += len(read)
        return Text(read)

    window = GuardWindow(Chain(chain.rules, counted))
    out = "".join([window.feed(text[at : at + 4]).text for at in range(0, len(text), 4)]) + window.end().text
    assert out == text
    assert scanned < 64 * len(text), "a scan with each piece would be 500 times the text"


@pytest.mark.parametrize("text", ["\u200b", "a\u200b", "a\u0301", "\u0301"])
def test_what_is_scanned_again_of_characters_without_width_is_bounded(text: str) -> None:
    rules = GuardPolicy.model_validate(
        {"rules": [{"id": "p", "kind": "pattern", "pattern": "(a|aa){1,50}b[0-9]{1,20}", "mode": "redact"}]}
    ).rules
    most = 0

    def counted(read: str) -> Scanned:
        nonlocal most
        most = max(most, len(read))
        return Text(read)

    window = GuardWindow(Chain(chain_of(rules, "output").rules, counted))
    written = text * 6000
    out = "".join([window.feed(written[at : at + 16]).text for at in range(0, len(written), 16)]) + window.end().text
    assert out == written
    assert most < 3 * MOST_BEHIND, "what has gone on is forgotten"
