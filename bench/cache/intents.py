"""Streams of questions with intents: two public sets, each split in a tuning half and one that is kept away, in seeded orders."""

import gzip
import hashlib
import json
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache.embedders.packaged import PackagedModel

Vectors = NDArray[np.float32]
FILES = {"banking77": "intents-banking77/train.jsonl.gz", "clinc150": "intents-clinc150/clinc.jsonl.gz"}
HALVES = ("tuning", "kept-away")
OUTSIDE = "oos"
"""The intent of questions that have none: each of them has an answer of its own."""


class Asked(NamedTuple):
    """A question of a stream."""

    text: str
    answer: str
    """What its right answer is: the intent, or, outside all intents, the question itself."""


def half_of(text: str) -> str:
    """The half that a question belongs to: by its SHA-256, so it never changes."""
    return HALVES[hashlib.sha256(text.encode()).digest()[0] % 2]


def questions(data: Path, name: str, half: str) -> list[Asked]:
    """One half of a set, in the order of the file. A text that stands there twice is asked twice."""
    with gzip.open(data / FILES[name], "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [
        Asked(row["text"], f"{OUTSIDE}: {row['text']}" if row["intent"] == OUTSIDE else row["intent"])
        for row in rows
        if half_of(row["text"]) == half
    ]


class Stream(NamedTuple):
    """Questions in the order in which they are asked."""

    asked: list[Asked]
    vectors: Vectors
    """Unit vectors, (questions, dimensions)."""
    seed: int
    closest: NDArray[np.int32]
    """For each question the places of its `CLOSEST` nearest of the whole stream, nearest first; they may come later."""


CLOSEST = 256
CHUNK = 512


def closest(vectors: Vectors) -> NDArray[np.int32]:
    """The rows nearest to each row, nearest first and without itself, (rows, `CLOSEST`)."""
    count = min(CLOSEST, len(vectors) - 1)
    found = np.empty((len(vectors), count), np.int32)
    for begin in range(0, len(vectors), CHUNK):
        similarities = vectors[begin : begin + CHUNK] @ vectors.T
        own = np.arange(len(similarities))
        similarities[own, begin + own] = -2
        best = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        order = np.argsort(-np.take_along_axis(similarities, best, axis=1), axis=1)
        found[begin : begin + CHUNK] = np.take_along_axis(best, order, axis=1)
    return found


def streams(data: Path, name: str, half: str, orders: int) -> list[Stream]:
    """Streams of the same questions in `orders` seeded orders, with the packaged embedder's vectors."""
    asked = questions(data, name, half)
    vectors = PackagedModel().embed([question.text for question in asked])
    nearest = closest(vectors)
    made = []
    for seed in range(orders):
        order = list(range(len(asked)))
        Random(seed).shuffle(order)
        place_of = np.empty(len(order), np.int32)
        place_of[order] = np.arange(len(order))
        made.append(Stream([asked[row] for row in order], vectors[order], seed, place_of[nearest[order]]))
    return made
