"""OpenAI's vocabularies: both packages make the same ids, and no file is downloaded."""

import base64
import contextlib
import hashlib
import importlib
import itertools
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.prompt import openai_encoders
from gateway.prompt.openai_encoders import FILES, encoder, file_at_hand
from gateway.prompt.vocabulary import GeneralVocabulary

TEXTS = [
    "",
    "The sea is wide, and the ship is small.\n\n\tIt's 12345.678 km!  ",
    "def f(x):\n    return {'a': [1, 2, 3]}  # <|endoftext|>\r\n",
    "Größe, naïve, 東京は広い, Привет, שלום, 🚢🌊, \u0000\u200b",
    "don't DON'T we'll WE'LL   \n \n  x",
]


NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "o200k_base" else name for name in FILES]
"""The larger vocabulary takes 200 MB and seconds."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiktoken's cache folder, empty."""
    return tmp_path_factory.mktemp("tiktoken")


def cached(name: str, folder: Path) -> Path:
    """The file of a vocabulary in tiktoken's cache, made anew from bpe-openai's ranks: each rank is an id with the token's bytes."""
    file = folder / hashlib.sha1(FILES[name].url.encode()).hexdigest()
    if not file.exists():
        encoding = importlib.import_module("bpe_openai").get_encoding(name)  # 60 MB and a second: not for whoever only collects
        lines = []
        with contextlib.suppress(KeyError):  # behind the last rank stand special tokens
            for rank in itertools.count():
                lines.append(b"%b %d\n" % (base64.b64encode(encoding.decode_single_token_bytes(rank)), rank))
        file.write_bytes(b"".join(lines))
    return file


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach a network fails."""

    def refuse(*_args: object, **_named: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("name", NAMES)
def test_the_ranks_of_bpe_openai_are_the_published_file_byte_for_byte(name: str, cache: Path) -> None:
    assert hashlib.sha256(cached(name, cache).read_bytes()).hexdigest() == FILES[name].sha256


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("offline")
def test_both_packages_make_the_same_ids(name: str, cache: Path) -> None:
    cached(name, cache)
    ours, package = encoder(name, {"TIKTOKEN_CACHE_DIR": str(cache)})
    other, instead = encoder(name, {"TIKTOKEN_CACHE_DIR": ""})
    assert (package, instead) == ("tiktoken", "bpe-openai")
    rng = random.Random(7)
    alphabet = "aZ09 \n\t'.,<|>éßжש東🚢\u0301\u200d"
    texts = [*TEXTS, *("".join(rng.choices(alphabet, k=rng.randrange(200))) for _ in range(300))]
    assert [list(ours(text)) for text in texts] == [list(other(text)) for text in texts]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("damage", [lambda whole: whole[:-1], lambda whole: b"", None], ids=["cut", "empty", "missing"])
def test_a_file_with_another_digest_is_not_used_and_none_is_fetched(
    damage: Callable[[bytes], bytes] | None, cache: Path, tmp_path: Path
) -> None:
    whole = cached("cl100k_base", cache)
    if damage is not None:
        (tmp_path / whole.name).write_bytes(damage(whole.read_bytes()))
    assert encoder("cl100k_base", {"TIKTOKEN_CACHE_DIR": str(tmp_path)})[1] == "bpe-openai"


def test_a_package_that_ships_the_file_is_as_good_as_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = tmp_path / "shipping_vocabularies"
    (shipped / "data").mkdir(parents=True)
    (shipped / "__init__.py").touch()
    file = shipped / "data" / "cl100k_base.tiktoken"
    file.write_bytes(cached("cl100k_base", cache).read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(openai_encoders, "SHIPPING", {"shipping_vocabularies": "data"})
    environ = {"TIKTOKEN_CACHE_DIR": str(tmp_path / "none")}
    assert file_at_hand("cl100k_base", environ) == file
    assert encoder("cl100k_base", environ)[1] == "tiktoken"


def test_the_variables_of_the_process_are_as_before(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
    monkeypatch.delenv("DATA_GYM_CACHE_DIR", raising=False)
    cached("cl100k_base", cache)
    assert GeneralVocabulary("cl100k_base").package == "tiktoken"
    assert (os.environ["TIKTOKEN_CACHE_DIR"], "DATA_GYM_CACHE_DIR" in os.environ) == (str(cache), False)
