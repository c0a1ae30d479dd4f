"""Run by GPTCache's own Python (`bench.cache.rivals`), never imported: `gptcache_pairs.py VECTORS TEXTS THRESHOLD`.

Asks GPTCache for each text in turn, with our vectors, and puts the text with its place as its answer where there was none. Prints one line
of JSON: by text the place that was given or null, and the seconds that asking took.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from gptcache import Cache, Config
from gptcache.adapter.api import get, put
from gptcache.manager import CacheBase, VectorBase, get_data_manager
from gptcache.processor.pre import get_prompt
from gptcache.similarity_evaluation.distance import SearchDistanceEvaluation


def main() -> None:
    """Send one stream through an empty GPTCache: SQLite, FAISS, its evaluation by distance."""
    vectors, texts, threshold = np.load(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), float(sys.argv[3])
    by_text = dict(zip(texts, vectors, strict=True))
    cache = Cache()
    cache.init(
        pre_embedding_func=get_prompt,
        embedding_func=lambda text, **_: by_text[text],
        data_manager=get_data_manager(
            CacheBase("sqlite", sql_url="sqlite://"), VectorBase("faiss", dimension=vectors.shape[1]), max_size=len(texts) + 1
        ),
        similarity_evaluation=SearchDistanceEvaluation(),
        config=Config(similarity_threshold=threshold),
    )
    gave, seconds = [], []
    for place, text in enumerate(texts):
        begun = time.perf_counter()
        found = get(text, cache_obj=cache)
        seconds.append(time.perf_counter() - begun)
        gave.append(None if found is None else int(found))
        if found is None:
            put(text, str(place), cache_obj=cache)
    print(json.dumps({"gave": gave, "seconds": seconds}))


if __name__ == "__main__":
    main()
