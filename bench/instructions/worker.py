"""`python -m bench.instructions.worker HOME WARM-UP REQUESTS`: a worker, whole and in this process, as it is counted.

It is the product's own worker on its own loop, with all that it keeps going and all its threads. What is not real is outside of it:

- sockets: the loop hands bytes to the worker's protocols and takes theirs, so that reading and writing cost nothing; only a counter store
  is asked through a real one, and answers before anything else goes on;
- time: clocks and timers, those of threads too, stand still between steps of the load, so that a run is the same however slow it is;
- chance: fixed seeds.

What only the clock asks for, and not often (reading the database, the policies, the ledger), is held back while it is counted: whether it
comes once or twice in so short a time would be most of the difference between two runs.

The folder holds what `bench.instructions.setup.made` wrote, the case as JSON, and the keys. Requests come `RATE` times a second, each on a
connection that has been used before, and are answered after `ANSWER_S`. Parts of the run are marked by dumps: "warm", the requests
("busy"), and as many steps without requests ("idle").
"""

import asyncio
import heapq
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import uvloop

from bench.instructions.frames import LIBRARY, Frames
from bench.instructions.setup import BARE, QUESTIONS, SIZES, STORED, VALKEY, Case, answer, requests, streamed_answer
from bench.overhead import bare_relay

RATE: Final = 500
"""Requests a virtual second: about what a core answers in this set-up."""
ANSWER_S: Final = 0.03
EVENT_S: Final = 0.001
"""Between two reads of a streamed answer."""
CONNECTIONS: Final = 64
WORK_S, WORK_LOOKS = 0.002, 500
"""How often and how many times to look whether a thread that was woken waits again; real seconds."""
REAL_LOOKS: Final = 200
LAST_CHUNK: Final = b"0\r\n\r\n"
STORING_S, STORING_LOOK_S = 30, 0.005
"""Longest wait for a thread to store one reply, and the time between two looks; real seconds, and callgrind slows it fifty times. The turns
of the loop that a look takes are counted, some 5 kIr of it."""
STARTING_S: Final = 0.005
QUIET_S: Final = 0.6
"""After the last request of a part: by then its reply is out and everything about it is on disk."""
EXPORT_QUIET_S: Final = 2.5
"""`QUIET_S` of a run in which some case exports traces: every case waits as long, so that exporters come to send."""
LONG_S: Final = 0.9
"""Timers as long and longer are held back while instructions are counted."""
TURNS: Final = 3
"""Turns of the loop between two moments: what a timer or some bytes lead to without waiting is done by then."""
STORE_TURNS: Final = 7
"""The turns of a request where a counter store is asked: its answer comes a turn later, and each request asks it twice."""

real_sleep = time.sleep
_monotonic, _wall = [1000.0], [1_800_000_000.0]


class Event(threading.Event):
    """As `threading.Event`, but a timeout ends when virtual time is there."""

    waiting = 0
    """Threads that have nothing to do now."""
    timeouts: ClassVar[list[tuple[float, int, "Event"]]] = []

    def wait(self, timeout: float | None = None) -> bool:
        with self._cond:  # type: ignore[attr-defined]  # the only way to wake who waits without setting it
            if not self.is_set():
                if timeout is not None:
                    heapq.heappush(Event.timeouts, (_monotonic[0] + timeout, id(self), self))
                Event.waiting += 1
                self._cond.wait()  # type: ignore[attr-defined]
                Event.waiting -= 1
            return self.is_set()

    @classmethod
    def until(cls, moment: float) -> None:
        """Wake those whose time has come, and let them work until they wait again."""
        while cls.timeouts and cls.timeouts[0][0] <= moment:
            event, before = heapq.heappop(cls.timeouts)[2], cls.waiting
            with event._cond:  # type: ignore[attr-defined]
                event._cond.notify_all()  # type: ignore[attr-defined]
            for _ in range(WORK_LOOKS):
                real_sleep(WORK_S)
                if cls.waiting >= before:
                    break


class Timer:
    """What `call_later` and `call_at` return."""

    __slots__ = ("_when", "args", "callback", "context", "dropped", "long")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        self._when, self.callback, self.args, self.context = when, callback, args, context if context is not None else copy_context()
        self.dropped = self.long = False

    def cancel(self) -> None:
        self.dropped = True

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self._when


class Loop(uvloop.Loop):
    """uvloop on virtual time, without TCP."""

    serves: Callable[[], asyncio.Protocol]
    """Makes what a caller's connection is on the worker's side."""

    def __init__(self, chat: list[bytes], turns: int) -> None:
        super().__init__()
        self.chat = chat
        """What an engine replies to a chat, read by read."""
        self._turns = turns
        self.quiet_s = QUIET_S
        self.driven = False
        self._timers: list[tuple[float, int, Timer]] = []
        self.hold_back = False
        self._count = 0

    def time(self) -> float:
        return _monotonic[0]

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        made = Timer(when, callback, args, context)
        made.long = when - _monotonic[0] >= LONG_S
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, made))
        return made

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self.call_at(_monotonic[0] + delay, callback, *args, context=context)

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        self.serves = protocol_factory
        return asyncio.Server

    async def create_connection(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        protocol = protocol_factory()
        transport = EngineTransport(self, protocol)
        protocol.connection_made(transport)
        return transport, protocol

    async def create_unix_connection(self, protocol_factory: Any, path: Any = None, **__: Any) -> Any:
        if os.path.basename(str(path)).startswith("worker-"):
            raise FileNotFoundError(f"{path}: there are no other workers")
        protocol = protocol_factory()
        transport = StoreTransport(self, protocol, str(path))
        protocol.connection_made(transport)
        return transport, protocol

    def until(self, moment: float) -> None:
        """Let time pass, and begin what is due by then."""
        _wall[0] += moment - _monotonic[0]
        _monotonic[0] = moment
        Event.until(moment)
        timers = self._timers
        while timers and timers[0][0] <= moment:
            timer = heapq.heappop(timers)[2]
            if not timer.dropped and not (timer.long and self.hold_back):
                self.call_soon(timer.callback, *timer.args, context=timer.context)

    def pass_time(self) -> None:
        """Let virtual time pass with real time until the load begins: a worker looks every few milliseconds whether its counter store is
        there."""
        if not self.driven:
            self.until(_monotonic[0] + STARTING_S)
            super().call_later(STARTING_S, self.pass_time)

    async def settle(self) -> None:
        """Let what is ready run."""
        for _ in range(self._turns):
            await asyncio.sleep(0)


class Transport(asyncio.Transport):
    """A connection whose other end is this bench."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        raise RuntimeError("nothing here is large enough for that")

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self._closing = True

    abort = close


class CallerTransport(Transport):
    """A caller, who is told from its replies that they were good and how many came."""

    good = 0

    def write(self, data: Any) -> None:
        if data.startswith(b"HTTP/1.1 "):
            if not data.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"a request was refused: {data!r}")
            CallerTransport.good += b"\r\ntransfer-encoding: chunked\r\n" not in data
        elif data.endswith(LAST_CHUNK):
            CallerTransport.good += 1


class EngineTransport(Transport):
    """An engine: polls are answered at once, chats after `ANSWER_S`."""

    def __init__(self, loop: Loop, protocol: Any) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol

    def write(self, data: Any) -> None:
        if data.startswith(b"POST "):
            for at, read in enumerate(self._loop.chat):
                self._loop.call_later(ANSWER_S + at * EVENT_S, self._protocol.data_received, read)
        else:
            reply = next(reply for asked, reply in QUESTIONS.items() if data.startswith(asked))
            self._loop.call_soon(self._protocol.data_received, reply)


class StoreTransport(Transport):
    """A counter store's real socket. The loop stands still until the store has answered, so that time and turns are the same each time."""

    def __init__(self, loop: Loop, protocol: Any, path: str) -> None:
        super().__init__()
        self._loop, self._protocol = loop, protocol
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)

    def write(self, data: Any) -> None:
        self._socket.sendall(data)
        self._loop.call_soon(self._read)

    def _read(self) -> None:
        if self._protocol._waiting and not self._closing:
            self._protocol.data_received(self._socket.recv(1 << 20))
            self._loop.call_soon(self._read)


async def load(loop: Loop, asked: Iterator[bytes], warm: int, count: int, home: Path, stored_s: float = 0.0) -> None:
    """Ask, count, and end the process.

    Args:
        stored_s: the virtual time from a request to the end of its engine's answer, where the reply's own end waits for a thread that
            stores something, for which real time has to pass; 0 where it waits for nothing.
    """
    loop.driven = True
    under_way = int(stored_s * RATE) + 2
    frames = Frames(home) if (home / LIBRARY).exists() else None
    callers: list[Any] = []
    for _ in range(CONNECTIONS):
        callers.append(loop.serves())
        callers[-1].connection_made(CallerTransport())

    async def until_answered(replies: int) -> None:
        for _ in range(int(STORING_S / STORING_LOOK_S) if stored_s else 0):
            if CallerTransport.good >= replies:
                break
            real_sleep(STORING_LOOK_S)
            await loop.settle()

    async def stretch(steps: int, given: Iterator[bytes | None]) -> None:
        before = CallerTransport.good
        for at in range(steps):
            loop.until(_monotonic[0] + 1 / RATE)
            data = next(given)
            if data is not None:
                callers[at % CONNECTIONS].data_received(data)
            await loop.settle()
            if data is not None:
                await until_answered(before + at + 1 - under_way)  # one after the other, or they would wait for the database's lock
        for at in range(int(loop.quiet_s * RATE)):
            loop.until(_monotonic[0] + 1 / RATE)
            await loop.settle()
            if data is not None:
                await until_answered(before + min(steps, steps + at + 1 - under_way))

    await stretch(warm, iter([next(asked) for _ in range(warm)]))
    loop.hold_back = True
    for _ in range(REAL_LOOKS):  # what has begun in threads ends
        real_sleep(WORK_S)
        await loop.settle()
    written = [next(asked) for _ in range(count)]
    if frames is not None:
        frames.begin()
    control("--instr=on")
    control("--dump=warm")
    await stretch(count, iter(written))
    control("--dump=busy")
    await stretch(count, iter([None] * count))
    control("--dump=idle")
    control("--instr=off")
    if CallerTransport.good != warm + count:
        raise RuntimeError(f"{CallerTransport.good} of {warm + count} requests were answered")
    if frames is not None:
        (home / "frames").write_text("\n".join(frames.names()))
    names = {one.native_id: one.name for one in threading.enumerate()}
    began = sorted(int(task) for task in os.listdir("/proc/self/task"))
    print("threads " + " ".join(names.get(task, "native").replace(" ", "-") for task in began), flush=True)
    os._exit(0)  # the drain would wait for timers that nobody moves on


def control(order: str) -> None:
    """Tell callgrind something."""
    if os.environ.get("BENCH_CALLGRIND"):
        said = subprocess.run(["callgrind_control", order, str(os.getpid())], capture_output=True, text=True, check=False)
        if "OK" not in said.stdout:
            raise RuntimeError(f"callgrind_control {order}: {said.stdout} {said.stderr}")


def main() -> None:
    """Make the process repeatable, then be a worker, or the bare relay."""
    home, warm, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    case = msgspec.json.decode((home / "case").read_bytes(), type=Case)
    time.monotonic = time.perf_counter = partial(_monotonic.__getitem__, 0)  # type: ignore[assignment]  # in C, as what they replace
    time.time = partial(_wall.__getitem__, 0)  # type: ignore[assignment]
    time.thread_time = partial([0.0].__getitem__, 0)  # type: ignore[assignment]  # threads that pace themselves take callgrind for load
    threading.Event = Event  # type: ignore[misc]
    dice = random.Random(5)
    secrets.randbits, secrets.token_hex = dice.getrandbits, lambda n=8: dice.randbytes(n).hex()  # type: ignore[assignment, misc]
    size = SIZES[case.size]
    loop = Loop(streamed_answer(size) if case.stream else [answer(size)], STORE_TURNS if case.subject == VALKEY else TURNS)
    if case.exports:
        loop.quiet_s = EXPORT_QUIET_S
    asked = requests((home / "keys").read_text().split(), case)

    def ready() -> None:
        answered_s = ANSWER_S + (len(loop.chat) - 1) * EVENT_S
        driven = load(loop, asked, warm, count, home, answered_s if case.api == STORED else 0.0)
        loop.drive = loop.create_task(driven)  # type: ignore[attr-defined]  # kept, or it would be collected
        loop.drive.add_done_callback(failed)  # type: ignore[attr-defined]

    if case.subject == BARE:
        loop.call_soon(ready)
        loop.run_until_complete(bare_relay.main(0, [f"http://127.0.0.1:{9001 + at}" for at in range(case.backends)]))
        return
    from gateway.config.load import load_settings
    from gateway.process.supervisor import WorkerSlot
    from gateway.process.worker import worker_main

    if case.subject == VALKEY:
        loop.call_soon(loop.pass_time)
    uvloop.new_event_loop = lambda: loop
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    (home / "run").mkdir()
    worker_main(WorkerSlot(0, sock, home / "run", -1, ready), load_settings(home / "tidegate.yaml", os.environ))


def failed(driven: "asyncio.Task[None]") -> None:
    """The load came to no good end."""
    driven.print_stack()
    print(driven.exception(), file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    main()
