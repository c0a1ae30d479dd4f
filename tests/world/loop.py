"""An event loop on virtual time: when nothing is ready, time jumps to the next timer. Its network is `network.Network`; it has no
threads, no sockets and no other chance than the one handed in, so that a run can be repeated exactly.

What asyncio leaves open is drawn by seed: how late a timer is, and how long bytes travel. What it promises (callbacks in the order
in which they were scheduled) stays.
"""

import asyncio
import random
from asyncio import base_events, futures
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.world.hosts import HERE, Host, belongs_to

if TYPE_CHECKING:
    from tests.world.network import Network

LATE_S = 0.002
"""A timer is late by up to this much, as on a machine that is busy."""
THREAD_S = 0.001
"""How long work in another thread takes; it is done at once and its result comes later."""


class Stuck(RuntimeError):
    """Nothing is ready and no timer is set, yet somebody waits."""


class Callback:
    """A callback that is to be run, at once or at a time: what asyncio's Handle and TimerHandle do, without their checks."""

    __slots__ = ("_args", "_callback", "_context", "_dropped", "_when")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None, when: float) -> None:
        self._callback, self._args, self._when, self._dropped = callback, args, when, False
        self._context = copy_context() if context is None else context

    def cancel(self) -> None:
        self._dropped = True
        self._callback, self._args = _nothing, ()

    def cancelled(self) -> bool:
        return self._dropped

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    pass


class VirtualLoop(base_events.BaseEventLoop):
    """See the module. `network` has to be set before anything is connected."""

    network: "Network"

    def __init__(self, rng: random.Random, began_at: float = 1000.0) -> None:
        self.now = began_at
        super().__init__()
        self._late = rng.random
        self._next: deque[Callback] = deque()
        self._timers: list[tuple[float, int, Callback]] = []
        self._count = 0
        self.troubles: list[str] = []
        """What nobody caught."""
        self.set_exception_handler(self._trouble)
        self.set_task_factory(self._task)

    def _run_once(self) -> None:
        ready, timers = self._next, self._timers
        if not ready:
            if not timers:
                raise Stuck("nothing will ever happen again")
            at, _, callback = heappop(timers)
            if callback._dropped:
                return
            if at > self.now:
                self.now = at
            ready.append(callback)
        for _ in range(len(ready)):
            callback = ready.popleft()
            if not callback._dropped:
                try:
                    callback._context.run(callback._callback, *callback._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"in {callback._callback!r}", "exception": error})

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        made = Callback(callback, args, context, self.now)
        self._next.append(made)
        return made

    call_soon_threadsafe = call_soon

    def punctually(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """A timer that is not late."""
        made = Callback(callback, args, context, when)
        self._count += 1
        heappush(self._timers, (when, self._count, made))
        return made

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self.punctually(max(when, self.now) + self._late() * LATE_S, callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self.punctually(self.now + max(delay, 0.0) + self._late() * LATE_S, callback, *args, context=context)

    def time(self) -> float:
        return self.now

    def _task(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        host = context.get(HERE) if context is not None else HERE.get(None)
        if host is not None:
            host.tasks[task] = None
            task.add_done_callback(lambda done: host.tasks.pop(done, None))
        return task

    def _trouble(self, loop: asyncio.AbstractEventLoop, told: dict[str, Any]) -> None:
        self.troubles.append(f"{told.get('message')}: {told.get('exception')!r} {told.get('task') or told.get('future') or ''}"[:500])

    def close(self) -> None:
        self._next.clear()
        self._timers.clear()
        super().close()

    # --- hosts ----------------------------------------------------------------------------------------------------

    def begin(self, host: Host, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `work` on a host."""
        return self.create_task(work, context=host.context.copy())

    def end_power(self, host: Host) -> None:
        """Nothing of this host runs from now on."""
        host.alive = False
        host.signals.clear()
        for callback in [*self._next, *(callback for _, _, callback in self._timers)]:
            if belongs_to(callback._context) is host:
                callback.cancel()
        self.network.end_power(host)

    async def bury(self, host: Host) -> None:
        """Let go of what a host without power had: its tasks end here, after everything has been judged."""
        tasks = list(host.tasks)
        for task in tasks:
            task.cancel()
        for _ in range(20):
            tasks = [task for task in tasks if not task.done()]
            if not tasks:
                return
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()

    # --- what code of ours asks of a loop ---------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> futures.Future[Any]:
        """The work is done at once, in this thread; its result comes later."""
        future = self.create_future()
        try:
            result, error = func(*args), None
        except Exception as raised:
            result, error = None, raised

        def tell() -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        self.call_later(THREAD_S, tell)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        host, context = HERE.get(), copy_context()
        host.signals[sig] = lambda: self.call_soon(callback, *args, context=context)

    def remove_signal_handler(self, sig: int) -> bool:
        return HERE.get().signals.pop(sig, None) is not None

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, str(host), int(port))

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **_: Any) -> Any:
        address = sock.getsockname() if sock is not None else (host, port)
        return self.network.listen(protocol_factory, *address)

    async def create_unix_server(self, protocol_factory: Any, path: Any = None, **_: Any) -> Any:
        Path(path).touch()  # whoever listens sets its mode
        return self.network.listen(protocol_factory, str(path), 0)
