"""KV events for tests: batches as engines send them, and an engine that keeps what it publishes."""

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

RECORDED = Path(__file__).parent / "wire" / "engine_kv_events"


def stored(hashes: Sequence[Any], tokens: Sequence[Any] | None = None, **fields: Any) -> dict[str, Any]:
    size = fields.pop("block_size", 1)
    tokens = [7] * len(hashes) * size if tokens is None else tokens
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": size,
    } | fields


def removed(*hashes: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU"}


CLEARED = {"type": "AllBlocksCleared"}


def packed(*events: Any, at: float = 1.0) -> bytes:
    return msgspec.msgpack.encode([at, list(events), 0])


def recorded(engine: str) -> Iterator[tuple[str, bytes]]:
    """What was recorded of a real engine: (what it shows, the message's last frame)."""
    for line in (RECORDED / f"{engine}.jsonl").read_text().splitlines():
        row = json.loads(line, object_hook=lambda o: bytes.fromhex(o["__bytes__"]) if "__bytes__" in o else o)
        yield row["shows"], msgspec.msgpack.encode(row["payload"])


class Engine:
    """Publishes what its cache does, and keeps the last `kept` batches for replays; counts copies, as vLLM does."""

    def __init__(self, kept: int = 10_000, started: float = 0.0) -> None:
        self.copies: Counter[int] = Counter()
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=kept)
        self.seq = 0
        self.at = started
        self.after: list[frozenset[int]] = []
        """What it held after each batch."""

    def publish(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        for event in events:
            if event["type"] == "BlockStored":
                self.copies.update(event["block_hashes"])
            elif event["type"] == "BlockRemoved":
                self.copies.subtract(event["block_hashes"])
                self.copies = +self.copies
            else:
                self.copies.clear()
        self.at += 0.001
        batch = (self.seq, packed(*events, at=self.at))
        self.seq += 1
        self.buffer.append(batch)
        self.after.append(frozenset(self.copies))
        return batch

    def replay(self, start: int) -> list[tuple[int, bytes]]:
        return [(seq, payload) for seq, payload in self.buffer if seq >= start]


def served(stream: Any, engine: Engine) -> None:
    """Answer the replays that a stream wants, as the engine does."""
    while (start := stream.next_replay()) is not None:
        for seq, payload in engine.replay(start):
            stream.replayed(seq, payload)
        stream.replay_over()
        while stream.go_on():
            pass
