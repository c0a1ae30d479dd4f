"""Leaks of the system prompt: rows of its words, however they are written, and in streams as in the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardrails.chain import Chain, ChainRule
from guardrails.ports import Bindable
from guardrails.rules.prompt_leak import CHARS_OF_WORD, PromptLeak
from guardrails.text import Text
from guardrails.window import GuardWindow
from tests.guard_doubles import assert_streams_alike

PROMPT = (
    "You are Ada, the assistant of the harbour office. Never name the harbour master, never quote prices,\n"
    "and always answer in two sentences at most. The office opens at nine and closes at five on every day but Sunday."
)
WORDS = PROMPT.split()


def _found(text: str, prompt: str = PROMPT, words: int = 6) -> list[str]:
    return [text[found.begin : found.end] for found in PromptLeak("p", min_words=words).bound([prompt]).scan(Text(text))]


def _chain(mode: str = "redact", words: int = 6) -> Chain:
    return Chain([ChainRule(PromptLeak("p", min_words=words), mode, joins=True)], Text).bound([PROMPT])  # type: ignore[arg-type]


@given(st.integers(0, len(WORDS) - 1), st.integers(1, 20), st.integers(4, 12))
def test_a_row_of_so_many_words_is_found_and_a_shorter_one_is_not(first: int, count: int, words: int) -> None:
    row = WORDS[first : first + count]
    text = f"It says: {' '.join(row)} !"
    found = _found(text, words=words)
    assert len(found) == max(0, len(row) - words + 1)
    assert bool(found) is (len(row) >= words)


def test_unbound_it_finds_nothing_and_bound_it_is_another_scanner() -> None:
    rule = PromptLeak("p")
    assert isinstance(rule, Bindable)
    assert rule.scan(Text(PROMPT)) == ()
    assert len(rule.bound(["other", PROMPT]).scan(Text(PROMPT))) == len(WORDS) - 11
    assert rule.scan(Text(PROMPT)) == ()


def test_a_chain_is_bound_for_one_request_and_one_without_such_rules_stays() -> None:
    plain = Chain([], Text)
    assert plain.bound([PROMPT]) is plain
    chain = Chain([ChainRule(PromptLeak("p", min_words=6), "block")], Text)
    assert chain.judge(PROMPT).text == PROMPT
    assert chain.bound([PROMPT]).judge("My rules: " + PROMPT).text == "My rules: "
    assert chain.judge(PROMPT).text == PROMPT


@pytest.mark.parametrize(
    "text",
    [
        "NEVER NAME THE HARBOUR MASTER, NEVER QUOTE PRICES",
        "never - name - the - harbour - master: never",
        "> never\n> name the\n> harbour master\n> never quote",
        "ne\u200bver n\u00adame the harb\u200dour master never",
        "n\u0435ver name the harbour m\u0430ster never",
        "\uff4eever name the harbour master never",
    ],
)
def test_case_punctuation_look_alikes_and_hidden_characters_make_no_difference(text: str) -> None:
    assert _found(text) != []


@pytest.mark.parametrize(
    "text",
    [
        "The harbour master opens the office at nine, and on Sunday nobody answers.",
        "I am Ada, the assistant of the office. Prices are on the board at the gate.",
        "never never never never never never never never",
        "Never name   " + " " * CHARS_OF_WORD * 6 + "the harbour master, never quote",
        "",
    ],
)
def test_other_texts_with_the_same_words_have_none(text: str) -> None:
    assert _found(text) == []


def test_scripts_without_spaces_are_compared_by_letters() -> None:
    prompt = "\u4f60\u662f\u6e2f\u53e3\u529e\u516c\u5ba4\u7684\u52a9\u624b\uff0c\u4e0d\u8981\u8bf4\u51fa\u4ef7\u683c\u3002"
    assert _found(f"x {prompt[2:12]}", prompt) != []
    assert _found("\u6e2f\u53e3\u7684\u4ef7\u683c", prompt) == []


def test_one_mark_stands_for_a_leak_and_streams_show_the_same() -> None:
    text = f"Sure. {PROMPT[:79]}? No; at most. The office opens at nine and, well."
    verdict = assert_streams_alike(_chain(), text)
    assert verdict.text == "Sure. [PROMPT_LEAK]? No; [PROMPT_LEAK], well."


@given(
    st.lists(st.sampled_from([*WORDS[:14], "and", "so", "\u0301", "\u200b", ", ", "  "]), max_size=25),
    st.sampled_from(["block", "redact"]),
    st.integers(1, 9),
)
def test_however_words_are_cut_a_stream_says_what_the_whole_says(words: list[str], mode: str, size: int) -> None:
    text = " ".join(words)
    assert_streams_alike(_chain(mode, 4), text, [list(range(size, len(text), size))])


def test_a_stream_of_other_words_is_held_back_by_a_word() -> None:
    window = GuardWindow(_chain())
    window.feed("Ships come in with the tide, and leave tomorrow morn")
    assert window.held == len("morn")
    window.feed("ing. You are Ada, the ")
    assert window.held == len("You are Ada, the ")


def test_fewer_than_two_words_are_no_row() -> None:
    with pytest.raises(ValueError, match="min_words is 1; at least 2"):
        PromptLeak("p", min_words=1)
