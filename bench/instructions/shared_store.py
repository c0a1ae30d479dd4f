"""Look-ups of one worker in a shared store of answers, for callgrind: what a hit costs more there than in memory.

The worker of this bench has no sockets, so the look-up is counted by itself: a real Valkey, the real client, and an answer as long as the
bench's. `python -m bench.instructions.shared_store SOCKET SIZE WARM COUNT` is run by `bench.instructions`.
"""

import os
import sys
import threading
import time
from typing import Final

import uvloop

from bench.instructions.setup import SIZES, answer
from bench.instructions.worker import control
from cache.answers import Answer, Sealer
from cache.stores.memory import MemoryAnswers
from cache.stores.valkey import TEXTS, ValkeyAnswers
from domain.usage import Usage
from tenancy.counter_url import parse_counter_url
from tenancy.ports import CountersAway
from tenancy.stores.valkey.client import ValkeyScripts

OWNER: Final = "acme"
KEY: Final = bytes(32)
FAR: Final = 4e9


async def look_up(socket: str, size: str, warm: int, count: int) -> None:
    """Put one answer into both stores and look it up: `count` times each, and as often nothing."""
    scripts = ValkeyScripts(parse_counter_url(f"unix://{socket}"), TEXTS)
    await scripts.start(10.0)
    shared = ValkeyAnswers(scripts, CountersAway, Sealer(b"s" * 32), 1024**3, time.monotonic)
    memory = MemoryAnswers(1024**3)
    body = answer(SIZES[size]).partition(b"\r\n\r\n")[2]
    kept = Answer(OWNER, KEY, body, Usage(10, 64), "m", time.time(), FAR)
    await shared.put([kept])
    await memory.put([kept])
    for _ in range(warm):
        found = await shared.get([KEY], OWNER, time.time())
        if found[0] is None or memory.get_now(KEY, OWNER, time.time()) is None:
            raise RuntimeError(f"the answer is not there: {scripts.why}")
    control("--instr=on")
    control("--dump=warm")
    for _ in range(count):
        await shared.get([KEY], OWNER, time.time())
    control("--dump=shared")
    for _ in range(count):
        memory.get_now(KEY, OWNER, time.time())
    control("--dump=memory")
    control("--instr=off")
    if shared.figures().away:
        raise RuntimeError("a look-up was not answered in time, and was counted")
    print("threads " + " ".join(one.name.replace(" ", "-") for one in threading.enumerate()), flush=True)
    os._exit(0)


if __name__ == "__main__":
    import cache.stores.valkey as stored
    from tenancy.stores.valkey import node

    # callgrind is fifty times slower: a store that answers late is no store that is away
    stored.PATIENCE_S = stored.WRITE_PATIENCE_S = node.TIMEOUT_S = node.LOCAL_TIMEOUT_S = 60.0  # type: ignore[misc]
    uvloop.run(look_up(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
