"""What stored Responses cost the request path: the read of a conversation, the write of its next turn, and the room that they take. Behind
it the same for a conversation of the Conversations API.

`python -m bench.responses [--postgres URL]`; medians over `--rounds`, in one process, with the database on this machine. Each turn has 2 KB
of input and 2 KB of output. Without `--postgres`, a server is started from its package for the time of the run.
"""

import argparse
import asyncio
import os
import tempfile
import time
from statistics import median

import sqlalchemy as sa

from domain.identity import TenantId
from tenancy.conversations import AddedItems, Conversation, ConversationItem
from tenancy.keys import Pepper
from tenancy.responses import ResponseChain, ResponseSealer, StoredResponse
from tenancy.stores.sql import SqlConversations, SqlResponses, migrate, open_engine
from tenancy.stores.sql.responses import stored_response
from tests.databases import postgres_server

TENANT = TenantId("bench")
TURNS = (1, 20, 200, 1000)
TEXT = b"The quick brown fox jumps over the lazy dog. " * 45
ROOM = 1024**4


def turn(name: str, before: ResponseChain | None) -> StoredResponse:
    """The next turn of a conversation."""
    last = before.turns[-1] if before is not None else None
    return StoredResponse(
        id=name,
        tenant=TENANT,
        created_unix=time.time(),
        expires_unix=time.time() + 86_400,
        previous=last.id if last is not None else "",
        turn=last.turn + 1 if last is not None else 0,
        bytes_before=before.bytes if before is not None else 0,
        response=b'{"output":[{"type":"message","content":[{"type":"output_text","text":"%b"}]}]}' % TEXT,
        items=b'[{"type":"message","role":"user","content":[{"type":"input_text","text":"%b"}]}]' % TEXT,
    )


async def measured(url: str, rounds: int) -> None:
    """Print the figures of one database."""
    engine = open_engine(url)
    await migrate(engine)
    store = SqlResponses(engine, ResponseSealer([Pepper("bench", b"b" * 32)], os.urandom), time.time)
    before: ResponseChain | None = None
    wrote: list[float] = []
    for number in range(max(TURNS)):
        new = turn(f"r{number}", before)
        begun = time.perf_counter()
        await store.add(new, ROOM)
        wrote.append(time.perf_counter() - begun)
        size = before.bytes if before is not None else 0
        before = ResponseChain((new,), size + len(new.response) + len(new.items) + 64)
    async with engine.connect() as connection:
        each = await connection.scalar(sa.select(sa.func.avg(stored_response.c.bytes)))
    late_ms = sorted(wrote)[-len(wrote) // 100] * 1e3
    print(f"{engine.dialect.name}: write {median(wrote) * 1e3:.2f} ms (99 % {late_ms:.2f}), {each:.0f} bytes a turn")
    for turns in TURNS:
        read: list[float] = []
        for _ in range(rounds):
            begun = time.perf_counter()
            chain = await store.chain(TENANT, f"r{turns - 1}")
            read.append(time.perf_counter() - begun)
            assert chain is not None
            assert len(chain.turns) == turns
        print(f"  read {turns} turns: {median(read) * 1e3:.2f} ms")
    await engine.dispose()


async def measured_conversations(url: str, rounds: int) -> None:
    """Print the figures of conversations in one database, after `measured`."""
    engine = open_engine(url)
    store = SqlConversations(engine, ResponseSealer([Pepper("bench", b"b" * 32)], os.urandom), time.time)
    now = time.time()
    wrote: list[float] = []
    for turns in TURNS:
        name = f"conv_{turns}"
        await store.create(Conversation(id=name, tenant=TENANT, created_unix=now, expires_unix=now + 86_400), [], ROOM)
        for number in range(turns):
            items = [ConversationItem(f"{kind}_{number}", b'{"type":"message","text":"%b"}' % TEXT) for kind in ("in", "out")]
            added = AddedItems(conversation=name, tenant=TENANT, created_unix=now, items=items)
            begun = time.perf_counter()
            await store.append_answer(added, ROOM, turn(f"{name}_{number}", None))
            wrote.append(time.perf_counter() - begun)
        read: list[float] = []
        for _ in range(rounds):
            begun = time.perf_counter()
            whole = await store.read(TENANT, name)
            read.append(time.perf_counter() - begun)
            assert whole is not None
            assert len(whole.items) == 2 * turns
        print(f"  read a conversation of {turns} turns: {median(read) * 1e3:.2f} ms")
    print(f"  add a turn with its Response: {median(wrote) * 1e3:.2f} ms")
    await engine.dispose()


def main() -> None:
    """Measure both databases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="URL of an empty database")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_both(f"sqlite:///{folder}/bench.db", args.rounds))
    if args.postgres:
        asyncio.run(_both(args.postgres, args.rounds))
        return
    with postgres_server() as server:
        asyncio.run(_both(server.get_uri(), args.rounds))


async def _both(url: str, rounds: int) -> None:
    await measured(url, rounds)
    await measured_conversations(url, rounds)


if __name__ == "__main__":
    main()
