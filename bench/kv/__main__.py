"""`python -m bench.kv`: what one worker pays for an engine's KV events: decoding and applying, and a subscription under load.

The second part publishes from a process of its own over a unix socket and reads the CPU time of this one, less what it takes
when nothing is published.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
import timeit
from pathlib import Path

import msgspec
import uvloop
import zmq

from backends.clients.kv_subscriber import KvSubscriber
from backends.kv.blocks import HeldBlocks
from backends.kv.events import decode
from backends.kv.stream import KvStream
from bench.kv.engine import BLOCK, batch, publish
from bench.results_file import Row, machine, refresh, table, write_rows

RATE = 1_000


def functions(blocks: int, repeat: int) -> list[Row]:
    """Best time of decoding, and of decoding and applying, one batch."""
    payloads = [batch(number, blocks) for number in range(500)]

    def applied() -> None:
        stream = KvStream(HeldBlocks(), can_replay=False)
        stream.connected()
        for number, payload in enumerate(payloads):
            stream.batch(number, payload)

    subject = f"batch of {blocks} block{'s' if blocks > 1 else ''} stored, {blocks} removed"
    decoding = min(timeit.repeat(lambda: [decode(payload) for payload in payloads], number=1, repeat=repeat)) / len(payloads)
    applying = min(timeit.repeat(applied, number=1, repeat=repeat)) / len(payloads)
    rows = [("decode_us", decoding), ("decode_apply_us", applying), ("decode_apply_us_per_block", applying / blocks)]
    return [Row(metric=metric, subject=subject, value=round(seconds * 1e6, 2), unit="us", n=repeat) for metric, seconds in rows]


async def listen(endpoint: str, count: int, idle_s: float) -> tuple[float, float, KvStream]:
    """CPU seconds per second while idle, CPU seconds for `count` batches, and the stream."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    stream = KvStream(HeldBlocks(), can_replay=False)
    loop = asyncio.get_running_loop()
    subscriber = KvSubscriber(context, stream, endpoint, None, bind=False, clock=time.monotonic, loop=loop)
    subscriber.tick()
    while not stream.counts.batches:
        await asyncio.sleep(0.001)
    before, begun = _cpu_s(), time.monotonic()
    async with asyncio.timeout(120):
        while stream.counts.batches + stream.counts.missed < count:
            await asyncio.sleep(0.05)
    used, lasted = _cpu_s() - before, time.monotonic() - begun
    before = _cpu_s()
    for _ in range(int(idle_s / 0.05)):
        await asyncio.sleep(0.05)
    idle = (_cpu_s() - before) / idle_s
    subscriber.close()
    context.destroy(0)
    return idle, used / lasted, stream


def _cpu_s() -> float:
    use = resource.getrusage(resource.RUSAGE_SELF)
    return use.ru_utime + use.ru_stime


def under_load(blocks: int, seconds: float) -> list[Row]:
    """Share of one core that listening takes at `RATE` batches a second, and what that is per batch."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{Path(folder) / 'kv'}"
        engine = multiprocessing.get_context("spawn").Process(target=publish, args=(endpoint, RATE, seconds, blocks))
        engine.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            idle, share, stream = runner.run(listen(endpoint, int(RATE * seconds), 3.0))
        engine.join()
    if stream.counts.missed or stream.counts.refused:
        raise SystemExit(f"not every batch came: {json.dumps(msgspec.to_builtins(stream.state()))}")
    subject = f"{RATE:,} batches/s of {blocks} block{'s' if blocks > 1 else ''} stored, {blocks} removed"
    rows = [("cpu_percent", (share - idle) * 100, "%"), ("cpu_us_per_batch", (share - idle) / RATE * 1e6, "us")]
    return [Row(metric=metric, subject=subject, value=round(value, 2), unit=unit, n=1) for metric, value, unit in rows]


def main() -> None:
    """Measure, and refresh the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load")
    given = parser.parse_args()
    single = [row for blocks in (1, 24, 512) for row in functions(blocks, given.repeat)]
    loaded = [row for blocks in (1, 24) for row in under_load(blocks, given.seconds)]
    write_rows("kv", single + loaded)
    text = (
        f"`python -m bench.kv`, {machine()}; blocks of {BLOCK} tokens; best of {given.repeat}, and {given.seconds:g} s of load.\n\n"
        f"{table(single, ['decode_us', 'decode_apply_us', 'decode_apply_us_per_block'], '')}\n\n"
        f"{table(loaded, ['cpu_percent', 'cpu_us_per_batch'], '')}"
    )
    refresh("kv", text)
    print(text)


if __name__ == "__main__":
    main()
