"""GPTCache on the same streams: its own Python runs `gptcache_pairs.py`, which gets our vectors in a file and writes what it answered.

GPTCache decides by a threshold on its evaluator's score. Its evaluation by distance is used with our vectors; the others need a model that
is downloaded.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.cache.course import Came
from bench.cache.intents import Stream

SCRIPT = Path(__file__).with_name("gptcache_pairs.py")
THRESHOLDS = (0.8, 0.975)
"""Thresholds of its score, (1 + cosine) / 2: cosines of 0.6 (its default) and 0.95."""
MOST = 3_000
"""Questions of the first order that it is asked; it takes some milliseconds for each."""


def gptcache_lines(python: Path, asked: Sequence[Stream]) -> dict[str, Came]:
    """What GPTCache answers by threshold, on the beginning of the first stream; raises where its process fails."""
    stream = asked[0]._replace(asked=asked[0].asked[:MOST], vectors=asked[0].vectors[:MOST])
    lines = {}
    for threshold in THRESHOLDS:
        with tempfile.TemporaryDirectory() as folder:  # it leaves its index where it runs, and would find it again
            vectors, texts = Path(folder, "vectors.npy"), Path(folder, "texts.json")
            np.save(vectors, stream.vectors)
            texts.write_text(json.dumps([question.text for question in stream.asked]))
            command = [str(python), "-I", str(SCRIPT), str(vectors), str(texts), str(threshold)]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout.splitlines()[-1])
        lines[f"GPTCache {threshold}, first {len(stream.asked):,} of one order"] = counted(stream, told["gave"], told["seconds"])
    return lines


def counted(stream: Stream, gave: Sequence[int | None], seconds: Sequence[float]) -> Came:
    """One stream's figures from the place of the question whose answer was given to each, or None."""
    known: set[str] = set()
    repeats = hits = wrong = exact = 0
    for asked, place in zip(stream.asked, gave, strict=True):
        repeats += asked.answer in known
        known.add(asked.answer)
        if place is not None and stream.asked[place].text == asked.text:
            exact += 1
        elif place is not None:
            hits += 1
            wrong += stream.asked[place].answer != asked.answer
    ordered = sorted(seconds)
    return Came(
        requests=len(gave),
        repeats=repeats,
        exact=exact,
        hits=hits,
        wrong=wrong,
        decided=len(gave),
        decide_s=sum(seconds),
        slowest_s=ordered[int(0.99 * len(ordered))],
    )
