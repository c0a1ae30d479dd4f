"""Deterministic text: the same prompt, model and seed always give the same words, and one word is one token.

The tokenizer cuts text into pieces of at most four characters that never span white space (about what byte-pair encodings
average on English), and numbers each piece by a hash. It is stable across processes, so prefixes stay prefixes.
"""

import hashlib
import re
import zlib
from collections.abc import Iterator
from typing import Final

VOCABULARY: Final = 50_000

WORDS: Final = [
    "the",
    "tide",
    "turns",
    "and",
    "the",
    "gate",
    "opens",
    "while",
    "water",
    "finds",
    "its",
    "level",
    "past",
    "every",
    "stone",
    "harbour",
    "lights",
    "count",
    "ships",
    "that",
    "come",
    "home",
    "before",
    "dawn",
    "a",
    "careful",
    "pilot",
    "reads",
    "wind",
    "depth",
    "and",
    "current",
    "then",
    "waits",
    "patient",
    "engines",
    "hum",
    "below",
    "deck",
    "as",
    "ropes",
    "hold",
    "fast",
    "until",
    "morning",
    "brings",
    "rain",
    "sun",
    "salt",
    "gulls",
    "nets",
    "songs",
    "bread",
    "stories",
    "maps",
    "bells",
    "clocks",
    "and",
    "quiet",
    "work",
    "for",
    "many",
    "hands",
]

_PIECE: Final = re.compile(r"\s*\S{1,4}|\s+")


def tokens_of(text: str) -> list[int]:
    """The token ids of a text."""
    return [zlib.crc32(piece.encode()) % VOCABULARY for piece in _PIECE.findall(text)]


def words(prompt: list[int], model: str, seed: int) -> Iterator[str]:
    """An endless answer, one token at a time; every word but the first begins with a space."""
    state = _digest(prompt, model, seed)
    first = True
    while True:
        state = hashlib.blake2b(state, digest_size=16).digest()
        word = WORDS[int.from_bytes(state[:4]) % len(WORDS)]
        yield word if first else f" {word}"
        first = False


def natural_length(prompt: list[int], model: str, seed: int) -> int:
    """The number of tokens of the answer when no limit cuts it: 16 to 256."""
    return 16 + int.from_bytes(_digest(prompt, model, seed)[:4]) % 241


def embedding(text: str, dimensions: int) -> list[float]:
    """A unit vector for the text; equal texts have equal vectors."""
    raw = hashlib.shake_128(text.encode()).digest(2 * dimensions)
    values = [int.from_bytes(raw[i : i + 2]) / 32768 - 1 for i in range(0, len(raw), 2)]
    norm = sum(v * v for v in values) ** 0.5 or 1.0
    return [v / norm for v in values]


def _digest(prompt: list[int], model: str, seed: int) -> bytes:
    head = hashlib.blake2b(f"{model}\0{seed}\0".encode(), digest_size=16)
    head.update(b"".join(token.to_bytes(4, "little") for token in prompt))
    return head.digest()
