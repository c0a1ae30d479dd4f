"""What a process of the release before tells others, written into `tests/fixtures`, and what it understands of theirs.

It is run by that release's own code (`tests/release_before.py`), and by today's code in tests.

    python tests/record_messages.py tell FOLDER    writes what one worker tells, and what a worker of the same release takes from it
    python tests/record_messages.py read FOLDER    prints what a worker takes from the messages in the folder

- `bus.bin`: all bytes of one connection between two workers of a host: the hello, and one message of every topic.
- `between-hosts.json`: the messages on the channel between hosts: a hello, news, and the last one of a worker that ends.
- `prefixes.bin`: the copy of the prefix index in the form in which a gateway leaves it in a file.
- `snapshot.bin`, `supervisor.json`: what the admin process reads of a worker and of the supervisor.
- `taken.json`: what a reader of these has to find.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from backends.breaker import IN_A_ROW, AttemptVerdict
from backends.health import Health
from backends.ports import PollResult
from backends.signals import Signals
from domain.priority import Class
from gateway.deps import Live
from gateway.fleet.shared_breakers import SharedBreakers
from gateway.fleet.shared_polls import SharedPolls
from gateway.fleet.shared_signals import SharedSignals
from gateway.placement.backend_state import BackendState
from gateway.placement.index_copy import copied, leave_copy, left_copy, take_copy
from gateway.placement.pool_state import PoolDefaults, PoolStates
from gateway.placement.shared_dispatches import SharedDispatches
from gateway.placement.shared_load import SharedLoad
from gateway.process.host_channel import HostChannel
from gateway.process.sibling_bus import Sibling, SiblingBus, SiblingTopic, bus_socket
from gateway.process.snapshots import IndexState, PolicyState, SlotState, SupervisedPlan, Supervision, WorkerSnapshot
from gateway.process.worker_link import publish, supervision
from gateway.queue.pool_queue import PoolQueue, PoolQueues
from gateway.queue.shared_service import SharedService
from gateway.telemetry.metrics import Metrics
from routing.fair_queue import QueueBounds, QueuedRequest
from routing.fleet import Availability, Backend, Fleet, Pool
from routing.ports import RoutingRequest
from tests.timing import until

NOW_S: Final = 100.0
WALL_S: Final = 1_790_000_000.0
GENERATION: Final = 20_261_128
"""Of the prefix hashes in all messages."""
HOST, OTHER_HOST = 71, 72
TELLS, HEARS = Sibling(0, 4_000_000_000), Sibling(1, 4_000_000_001)
"""The two workers; no process has such an id."""
CHAINS: Final = ((11, 12, 13), (21, 22), (31,))
"""Of the prompts that were sent: the first one has begun, the second one failed, the third one is under way."""
TOPICS: Final = 6


class Worker:
    """One worker with all its topics, which takes what others tell."""

    def __init__(self, me: Sibling) -> None:
        self.me = me
        self.pools = PoolStates({"chat": PoolDefaults(hold_s=0.6)}, generation=GENERATION)
        pool = Pool("chat", "m", "1", "vllm", tuple(Backend(name, "chat", Availability.UP, "") for name in "ab"))
        self.live = Live(None, None, Fleet({"chat": pool}))  # type: ignore[arg-type]  # nobody asks for tenants and policies
        for name in "ab":
            self.pools.add("chat", name)
            self.pools.capacity(name, 1_000_000)
            self.live.health[name] = Health(NOW_S)
        self.queue = PoolQueue(
            "chat",
            QueueBounds(10**6, 10**12, 10**6, 10**12),
            self.pools["chat"].load_table,
            lambda: pool,
            clock=lambda: NOW_S,
            loop=asyncio.get_running_loop(),
            rng=random.Random(1),
            log_defect=lambda error, _: sys.exit(str(error)),
        )
        # the release before, with whose code this file runs as well, has one line
        self.line = self.queue._line.queue if hasattr(self.queue, "_line") else self.queue._queue
        self.polls: list[Any] = []
        self.signals: list[Any] = []
        self.shared_polls = SharedPolls(me, lambda *poll: self.polls.append(poll), lambda: NOW_S)
        self.shared_signals = SharedSignals(me, self.pools, lambda *reading: self.signals.append(reading), lambda: NOW_S)
        self.dispatches = SharedDispatches(self.pools, lambda: NOW_S)
        self.topics: list[SiblingTopic] = [
            self.dispatches,
            SharedLoad(self.pools, lambda: NOW_S),
            SharedBreakers(self.live, me.number, lambda: NOW_S),
            self.shared_signals,
            SharedService(PoolQueues({"chat": self.queue})),
            self.shared_polls,
        ]

    def bus(self, run_dir: Path, hosts: HostChannel | None = None) -> SiblingBus:
        """Its bus."""
        bus = SiblingBus(run_dir, self.me, self.topics, lambda: NOW_S, hosts)
        for topic in self.topics:
            topic.tell_soon = bus.tell_soon  # type: ignore[attr-defined]  # each of them has it
        return bus

    def wait(self, *tenants: str, cost: int = 1000) -> None:
        """Requests that wait in its queue."""
        for tenant in tenants:
            assert self.line.put(QueuedRequest(tenant, Class.DEFAULT, False, cost, inf, 0.0, 100, 0)).accepted

    def next(self) -> str:
        """The tenant that is served next."""
        place = self.line.next(lambda _: True)
        assert place is not None
        self.line.take(place)
        return place.tenant

    def work(self) -> None:
        """Something of which every topic tells."""
        numbers = [
            self.dispatches.sent(name, RoutingRequest(100, chain=chain, session=77)) for name, chain in zip("aba", CHAINS, strict=True)
        ]
        self.dispatches.begun(numbers[0])
        self.dispatches.failed(numbers[1])
        self.pools["chat"].load_table.charge("a", 1000, 2000, NOW_S)
        for _ in range(IN_A_ROW):
            self.live.breakers.ended("b", "", AttemptVerdict.FAILURE, "r", NOW_S, random.Random(1), "engine_error")
        self.shared_signals.tell(
            "a", NOW_S - 0.5, 1.0, Signals(NOW_S - 0.5, running=3, waiting=2, kv_usage=0.25, loras=("x",), missing=("y",))
        )
        self.shared_signals.asked("chat")
        self.shared_polls.tell("chat", "a", 5.0, PollResult("", frozenset({"m"}), context_tokens=8192))
        self.wait("acme", cost=1_000_000)
        self.next()
        self.pools.index.touch("a", CHAINS[0], NOW_S)

    def taken(self) -> dict[str, Any]:
        """What it knows from others."""
        pool, index, breakers = self.pools["chat"], self.pools.index, self.live.breakers
        return {
            "dispatches": self.dispatches.figures().heard,
            "prefixes": [dict(index.match(chain, NOW_S).blocks) for chain in CHAINS],
            "session": pool.sessions.holder(77),
            "requests": list(pool.load_table.requests),
            "queue_tokens": list(pool.load_table.queue_tokens),
            "breakers": dict(breakers.shut("", NOW_S)),
            "signals": msgspec.to_builtins(self.signals),
            "polls": msgspec.to_builtins(self.polls),
            "asked": not pool.rest.at_rest(NOW_S),
            "first": self.next(),
        }


class Air:
    """The channel between hosts: every message, and who hears it."""

    def __init__(self) -> None:
        self.heard: list[Callable[[bytes], None]] = []
        self.said: list[bytes] = []

    def publish(self, message: bytes) -> bool:
        """See `BroadcastChannel`."""
        self.said.append(message)
        for heard in list(self.heard):
            asyncio.get_running_loop().call_soon(heard, message)
        return True

    async def sent(self) -> None:
        """See `BroadcastChannel`."""

    async def run(self, heard: Callable[[bytes], None]) -> None:
        """See `BroadcastChannel`."""
        self.heard.append(heard)
        await asyncio.Event().wait()


async def tell(folder: Path) -> None:
    """Write what a worker tells."""
    air, stream = Air(), bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(1 << 16):
            stream.extend(part)
        writer.close()

    with tempfile.TemporaryDirectory() as home:
        run_dir = Path(home)
        listener = await asyncio.start_unix_server(listen, path=str(bus_socket(run_dir, HEARS.number, HEARS.pid)))
        worker, far = Worker(TELLS), Worker(HEARS)
        bus = worker.bus(run_dir, HostChannel(air, HOST, worker.me, lambda: NOW_S))
        (run_dir / "far").mkdir()
        far_bus = far.bus(run_dir / "far", HostChannel(air, OTHER_HOST, far.me, lambda: NOW_S))
        await far_bus.start()
        await bus.start()
        await until(lambda: len(bus.siblings) == 2 and len(far_bus.siblings) == 1)
        worker.work()
        await until(lambda: len({kind for kind, _ in frames_of(stream)}) > TOPICS)
        await bus.close()
        await far_bus.close()
        listener.close()
    own = HostChannel(air, HOST, worker.me, lambda: NOW_S)._message(0)[:10]  # version, flags, host
    others = [message for message in air.said if message[2:10] == own[2:10]]
    news = max(others, key=len)
    (folder / "bus.bin").write_bytes(stream)
    (folder / "between-hosts.json").write_text(json.dumps([others[0].hex(), news.hex(), others[-1].hex()], indent=0) + "\n")
    leave_copy(folder / "prefixes.bin", await copied(worker.pools), WALL_S)
    (folder / "snapshot.bin").write_bytes(msgspec.msgpack.encode(snapshot()))
    plan = SupervisedPlan("127.0.0.1:8080", "127.0.0.1:8081", 2, 1.0, 30.0)
    publish(folder, "supervisor.json", Supervision(3999, 8080, 8081, (SlotState("worker-0", 4000, 1, 1, "exit 1"),), plan))


def snapshot() -> WorkerSnapshot:
    """What a worker tells the admin process of itself."""
    backend = BackendState("chat", "a", True, in_flight=2, signals=Signals(NOW_S, running=3), state="up", url="http://a:8000")
    return WorkerSnapshot(
        index=1,
        pid=4001,
        state="ready",
        started_at=WALL_S,
        reasons=("none",),
        fleet=(backend,),
        policies=PolicyState("abc", WALL_S, warnings=("w",)),
        metrics=Metrics(["m"]).snapshot(),
        prefixes=IndexState(6, 1000),
        tasks=9,
    )


def frames_of(stream: bytes | bytearray) -> list[tuple[int, bytes]]:
    """The messages of a connection: their kinds and payloads."""
    found, at = [], 0
    while len(stream) - at >= 5:
        size = int.from_bytes(stream[at : at + 4], "little")
        if len(stream) - at - 5 < size:
            break
        found.append((stream[at + 4], bytes(stream[at + 5 : at + 5 + size])))
        at += 5 + size
    return found


async def read(folder: Path) -> dict[str, Any]:
    """What a worker takes from the messages in a folder: from the bus, from another host, from a copy and from the run directory."""
    with tempfile.TemporaryDirectory() as home:
        run_dir = Path(home)
        worker = Worker(HEARS)
        worker.wait("acme", "quiet")
        bus = worker.bus(run_dir)
        await bus.start()
        stream = (folder / "bus.bin").read_bytes()
        size = sum(len(payload) for kind, payload in frames_of(stream) if kind)
        reader, writer = await asyncio.open_unix_connection(str(bus_socket(run_dir, HEARS.number, HEARS.pid)))
        writer.write(stream)
        await until(lambda: reader.at_eof() or bus.figures().received_bytes >= size)
        found: dict[str, Any] = {"bus": worker.taken() | {"unreadable": bus.figures().unreadable}}
        writer.close()
        await bus.close()
        far, air = Worker(HEARS), Air()
        far.wait("acme", "quiet")
        channel = HostChannel(air, OTHER_HOST, far.me, lambda: NOW_S)
        bus = far.bus(run_dir, channel)
        await bus.start()
        await until(lambda: bool(air.heard))
        hello, news, leaves = map(bytes.fromhex, json.loads((folder / "between-hosts.json").read_text()))
        there = []
        for message in (hello, news):
            air.heard[0](message)
            there.append([list(sibling) for sibling in channel.siblings])
        found["hosts"] = far.taken() | {"unreadable": bus.figures().unreadable}
        air.heard[0](leaves)
        found["hosts"]["siblings"] = [*there, [list(sibling) for sibling in channel.siblings]]
        await bus.close()
    new = Worker(HEARS)
    blocks = take_copy(new.pools, left_copy(folder / "prefixes.bin", WALL_S + 1), NOW_S)
    found["copy"] = {"blocks": blocks, "prefixes": [dict(new.pools.index.match(chain, NOW_S).blocks) for chain in CHAINS]}
    found["snapshot"] = msgspec.to_builtins(msgspec.msgpack.decode((folder / "snapshot.bin").read_bytes(), type=WorkerSnapshot))
    found["supervision"] = msgspec.to_builtins(supervision(folder))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]  # tuples become lists, as in the file


def lacks(today: Any, before: Any, at: str = "") -> list[str]:
    """The places where `today` says something else than `before` or nothing. Items at the end of a list and further names are no such
    place: fields are added like that."""
    if isinstance(before, Mapping) and isinstance(today, Mapping):
        return [
            place for name in before for place in (lacks(today[name], before[name], f"{at}/{name}") if name in today else [f"{at}/{name}"])
        ]
    if isinstance(before, (list, tuple)) and isinstance(today, (list, tuple)) and len(today) >= len(before):
        return [place for number, value in enumerate(before) for place in lacks(today[number], value, f"{at}/{number}")]
    return [] if today == before else [f"{at}: {today!r} for {before!r}"]


async def main(what: str, folder: Path) -> None:
    """See the module."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    if what == "tell":
        folder.mkdir(parents=True, exist_ok=True)
        await tell(folder)
        (folder / "taken.json").write_text(json.dumps(await read(folder), indent=1, sort_keys=True) + "\n")
    else:
        print(json.dumps(await read(folder)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
