from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from backends.simengine.shapes import VOCABULARY, embedding, natural_length, tokens_of, words


@given(st.text(max_size=200), st.text(max_size=50))
def test_a_prefix_in_text_is_a_prefix_in_tokens(text: str, more: str) -> None:
    whole = f"{text} {more}"
    assert tokens_of(whole)[: len(tokens_of(text.rstrip()))] == tokens_of(text.rstrip())
    assert all(0 <= token < VOCABULARY for token in tokens_of(whole))


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=50))
def test_answers_are_deterministic_and_bounded(prompt: list[int]) -> None:
    assert list(islice(words(prompt, "m", 0), 20)) == list(islice(words(prompt, "m", 0), 20))
    assert 16 <= natural_length(prompt, "m", 0) <= 256


def test_model_and_seed_change_the_answer() -> None:
    texts = {"".join(islice(words([1, 2], model, seed), 20)) for model in ("a", "b") for seed in (0, 1)}
    assert len(texts) == 4


@given(st.text(), st.integers(1, 512))
def test_embeddings_are_unit_vectors(text: str, size: int) -> None:
    vector = embedding(text, size)
    assert len(vector) == size
    assert abs(sum(v * v for v in vector) - 1) < 1e-9
