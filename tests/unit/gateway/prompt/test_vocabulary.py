"""Tokenizers from files and from a package, and what is said when they cannot be had."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from domain.ask import Ask, Endpoint
from gateway.http.openai import interpret
from gateway.prompt.chat_template import NotText
from gateway.prompt.vocabulary import GENERAL, VocabularyError, load_vocabulary


def ask(endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Ask:
    return interpret(endpoint, json.dumps({"model": "m", **fields}).encode())


CHAT = ask(messages=[{"role": "user", "content": "sea sea ship"}])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A word-level tokenizer with one special token in front, as Llama's has, and a template beside it."""
    words = tokenizers.models.WordLevel({"<s>": 0, "sea": 1, "ship": 2, "user:": 3, "?": 4}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(words)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{% for m in messages %} user: {{ m.content }}{% endfor %}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_models_own_counts_what_the_engine_counts(folder: Path) -> None:
    for source in (folder, folder / "tokenizer.json"):
        own = load_vocabulary(str(source), Path("/"), str)
        assert own.count(CHAT) == 5  # <s> user: sea sea ship, with the special token once
        assert own.count(ask(Endpoint.COMPLETIONS, prompt=["sea", "sea ship"])) == 2 + 3
        assert own.count(ask(Endpoint.COMPLETIONS, prompt=[[1, 2], [1]])) == 3


def test_a_template_file_comes_before_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("sea")
    assert load_vocabulary("tokenizer.json", folder, str).count(CHAT) == 1


def test_without_a_template_chats_are_unreadable(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(NotText):
        load_vocabulary(".", folder, str).count(CHAT)


@pytest.mark.parametrize(
    "name",
    # one of them takes 90 MB that the process never gives back
    [pytest.param(name, marks=pytest.mark.slow if name == "o200k_base" else ()) for name in GENERAL],
)
def test_a_general_vocabulary_bounds_from_above_and_below_the_bytes(name: str) -> None:
    general = load_vocabulary(name, Path("/"), str)
    long = ask(messages=[{"role": "user", "content": "The sea is wide, and the ship is small. " * 50}])
    assert 500 < general.count(long) < long.prompt_bytes / 2
    assert (
        general.count(ask(messages=[{"role": "user", "content": "𓂀" * 50}]))
        <= ask(messages=[{"role": "user", "content": "𓂀" * 50}]).prompt_bytes
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", "{}", "cannot be read"),
        ("tokenizer_config.json", "{", "no JSON"),
        ("tokenizer_config.json", '{"chat_template": "{% for %}"}', "template"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: str, says: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(VocabularyError, match=says) as caught:
        load_vocabulary(".", folder, str)
    assert str(folder) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match=r"nowhere/tokenizer\.json|nowhere cannot"):
        load_vocabulary("nowhere", tmp_path, str)
