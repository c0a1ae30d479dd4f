"""Pieces put together are what the tokenizer makes of the whole text, id for id, and nobody gets another's."""

from array import array
from functools import lru_cache
from itertools import chain
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from gateway.prompt.vocabulary import PieceCache, Pieces

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<tool>"]
SAMPLE = "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n1<|im_end|>\n<|im_start|>user\n1<|im_end|>\n"
SOURCE = Path(__file__).parent
KINDS = ("byte-level", "byte-level-blank", "metaspace", "metaspace-always", "llama-2")


@lru_cache
def tokenizer(kind: str) -> Tokenizer:
    """A trained tokenizer of the kinds that published models have."""
    made = Tokenizer(models.BPE(unk_token=None if kind.startswith("byte") else "<s>", byte_fallback=False))
    alphabet: list[str] = []
    if kind.startswith("byte"):
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind == "byte-level-blank")
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "llama-2":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if kind.endswith("always") else "first")
    texts = sorted(str(path) for path in SOURCE.glob("*.py"))
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False, max_token_length=16
    )
    made.train(texts, trainer)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def whole(made: Tokenizer, text: str, *, special: bool = False) -> list[int]:
    return list(made.encode(text, add_special_tokens=special).ids)


def put_together(pieces: Pieces, text: str, scope: str = "", *, special: bool = False) -> list[int]:
    return list(chain.from_iterable(pieces.ids(text, scope, special=special)))


WORDS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end",
    "|>",
    "<",
    "</s>",
    "<tool>",
    " ",
    "  ",
    "\n",
    "\n\n",
    "user",
    "a",
    "def f(x):",
    "'s",
    "é",
    "日本",
    "7",
]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=24).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), special=st.booleans())
def test_pieces_are_the_whole_text(kind: str, texts: list[str], special: bool) -> None:
    """Also of texts that go on where an earlier one ended."""
    made = tokenizer(kind)
    pieces = Pieces(made, SAMPLE)
    assert pieces.cut == "<|im_end|>" or pieces.cut == "<|im_start|>"
    text = ""
    for more in texts:
        text += more
        for _ in range(2):  # made, and remembered
            assert put_together(pieces, text, special=special) == whole(made, text, special=special)


@pytest.mark.req("ROUTERS-21")
def test_a_conversation_that_has_grown_tokenises_what_is_new() -> None:
    made = tokenizer("byte-level")
    cache = PieceCache()
    pieces = Pieces(made, SAMPLE, cache)
    turns = "".join(f"<|im_start|>user\nturn {n} of a long talk<|im_end|>\n" for n in range(100))
    put_together(pieces, turns)
    before = cache.misses
    more = turns + "<|im_start|>user\nand one more<|im_end|>\n<|im_start|>assistant\n"
    assert put_together(pieces, more) == whole(made, more)
    assert cache.misses - before <= 4


def test_nobody_is_answered_from_what_another_has_sent() -> None:
    cache = PieceCache()
    pieces = Pieces(tokenizer("byte-level"), SAMPLE, cache)
    put_together(pieces, SAMPLE, "acme")
    hits, misses = cache.hits, cache.misses
    put_together(pieces, SAMPLE, "bolt")
    put_together(pieces, SAMPLE[:-1], "acm")
    assert (cache.hits - hits, cache.misses - misses) == (0, misses * 2)


@pytest.mark.parametrize(
    "other",
    [
        AddedToken("<|im_end|><|eos|>", special=True, normalized=False),
        AddedToken("ab<|im", special=True, normalized=False),
        AddedToken("x<|im_end|>", special=False, normalized=False),
    ],
)
def test_no_cut_where_another_token_overlaps_it(other: AddedToken) -> None:
    made = Tokenizer.from_str(tokenizer("byte-level").to_str())
    sample = SAMPLE.replace("<|im_start|>", "")
    assert Pieces(made, sample).cut == "<|im_end|>"
    made.add_tokens([other])
    assert Pieces(made, sample).cut == ""


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_no_cut_behind_a_token_that_takes_what_is_beside_it(flag: str) -> None:
    made = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([AddedToken("<end>", **{"special": True, "normalized": False, flag: True})])
    assert Pieces(made, "a<end>a<end>").cut == ""


def test_without_a_cut_the_text_is_one_piece() -> None:
    made = tokenizer("byte-level")
    pieces = Pieces(made)
    assert pieces.cut == ""
    assert put_together(pieces, SAMPLE, special=True) == whole(made, SAMPLE, special=True)


def test_what_a_tokenizer_file_cuts_off_or_fills_up_is_undone() -> None:
    made = Tokenizer.from_str(tokenizer("byte-level").to_str())
    made.enable_truncation(4)
    made.enable_padding(length=64)
    assert put_together(Pieces(made, SAMPLE), SAMPLE) == whole(tokenizer("byte-level"), SAMPLE)


def test_a_tokenizer_that_wraps_texts_in_a_way_of_its_own_gets_them_whole() -> None:
    made = Tokenizer.from_str(tokenizer("byte-level").to_str())
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    assert put_together(Pieces(made, SAMPLE), SAMPLE, special=True) == whole(made, SAMPLE, special=True)


def test_memory_is_bounded_and_the_piece_unused_for_longest_goes_first() -> None:
    cache = PieceCache(max_bytes=10_000)
    keep = b"keep"
    cache.put(keep, array("I", [1]))
    for n in range(1000):
        cache.put(b"%d" % n, array("I", range(50)))
        assert cache.get(keep) is not None
        assert cache.bytes <= 10_000
    cache.put(b"huge", array("I", range(10_000)))
    assert cache.get(b"huge") is None
    assert cache.get(b"0") is None


def test_the_library_remembers_no_words_for_all_tenants() -> None:
    """`bench.cache.channel` measures what comes of it; here it is only the calls, because the memory shows itself in times alone."""
    told: list[tuple[str, int]] = []

    class Watched:
        def _clear_cache(self) -> None:
            told.append(("clear", 0))

        def _resize_cache(self, capacity: int) -> None:
            told.append(("resize", capacity))

    class Made:
        """A tokenizer whose model is watched."""

        model = Watched()

        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer("byte-level"), name)

    Pieces(Made())
    assert told == [("clear", 0), ("resize", 0)]


def test_the_library_still_offers_what_is_relied_on() -> None:
    assert hasattr(tokenizers.Tokenizer, "encode_batch_fast")
    assert all(hasattr(model, name) for model in (models.BPE, models.Unigram) for name in ("_clear_cache", "_resize_cache"))
