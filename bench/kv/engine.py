"""The engine's side of the benchmark: batches of KV events, published at a steady rate by a process of its own."""

import time

import msgspec
import zmq

BLOCK = 16
LATE_S = 1.0
"""From listening to the first batch: the other side connects meanwhile."""


def batch(number: int, blocks: int) -> bytes:
    """A prompt of `blocks` blocks stored, and as many removed that were stored 64 batches earlier: a full cache at work."""
    hashes = [(number * blocks + at) * 0x9E3779B97F4A7C15 % 2**64 for at in range(blocks)]
    gone = [((number - 64) * blocks + at) * 0x9E3779B97F4A7C15 % 2**64 for at in range(blocks)]
    stored = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": 1,
        "token_ids": [(7 * n) % 128_000 for n in range(blocks * BLOCK)],
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * blocks,
        "group_idx": 0,
    }
    removed = [{"type": "BlockRemoved", "block_hashes": [block], "medium": "GPU", "group_idx": 0} for block in gone]
    return msgspec.msgpack.encode([time.time(), [stored, *removed], 0])


def publish(endpoint: str, rate: int, seconds: float, blocks: int) -> None:
    """The other process: `rate` batches a second."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, 100_000)
    socket.bind(endpoint)
    payloads = [batch(number, blocks) for number in range(int(rate * seconds))]
    time.sleep(LATE_S)
    begun = time.monotonic()
    for number, payload in enumerate(payloads):
        time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        socket.send_multipart([b"kv", number.to_bytes(8, "big"), payload])
    context.destroy(2_000)
