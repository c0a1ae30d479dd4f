"""One simulated engine behind one or several gateways that hold back what it has no room for, in virtual time.

Requests come in an open loop; each gateway lets them through in order while its limits allow, and gives up on what has waited for
`PATIENCE` of the objective. The engine is that of `routing.simulation`; what a gateway learns of it comes late, as in life.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol

import msgspec

from backends.concurrency_limit import Heard, LimitBounds, Limiter
from routing.simulation.decoders import Decoding
from routing.simulation.draws import exponential, lognormal
from routing.simulation.engine import IDLE, SimulatedEngine
from routing.simulation.timing import CLASSES, StepTiming

WAY_S: Final = 0.002
"""Between gateway and engine, one way."""
LOOK_S: Final = 0.1
TOLD_LATE_S: Final = 0.02
PATIENCE: Final = 0.5
WARM_S: Final = 30.0
NEAR_SLO: Final = 0.95
"""Of the objective is what engines are told to keep: it is for single answers, and they are judged by the mean."""


class Case(msgspec.Struct, frozen=True):
    """An engine, what it is asked for, and what counts as a good answer."""

    name: str
    machine: str
    prompt: int
    output: int
    max_num_seqs: int = 256
    token_budget: int = 2048
    kv_tokens: int | None = None
    ttft_slo_s: float = 2.0
    tpot_slo_s: float = 0.1
    long_share: float = 0.0
    """Of prompts that are 20 times as long, with answers a quarter as long."""

    @property
    def timing(self) -> StepTiming:
        """The engine's constants."""
        timing = CLASSES[self.machine]
        return timing if self.kv_tokens is None else msgspec.structs.replace(timing, kv_tokens=self.kv_tokens)


class Told(msgspec.Struct, frozen=True):
    """What an engine says of itself at one moment."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    generated: int
    """Tokens of answers since the start."""


class Gate(Protocol):
    """What decides how much one gateway may have on the engine."""

    def room(self) -> tuple[float, float]:
        """Requests, and uncached prompt tokens whose first token has not come."""
        ...

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        """A first token came."""
        ...

    def ended(self, gap_s: float) -> None:
        """A whole answer came."""
        ...

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        """Ten times a second."""
        ...


class Static:
    """Limits that stay."""

    def __init__(self, requests: float, tokens: float = float("inf")) -> None:
        self._room = (requests, tokens)

    def room(self) -> tuple[float, float]:
        return self._room

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        pass

    def ended(self, gap_s: float) -> None:
        pass

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        pass


class Found:
    """Limits found online.

    Args:
        processes: that share the engine; 0: nobody knows.
        pace: whether it is told how fast tokens have to come.
    """

    def __init__(self, case: Case, processes: int = 1, rank: int = 0, *, pace: bool = True) -> None:
        self.limiter = Limiter(LimitBounds(gap_s=NEAR_SLO * case.tpot_slo_s if pace else None))
        self.processes, self.rank = processes, rank

    def room(self) -> tuple[float, float]:
        limiter = self.limiter
        return limiter.room() if limiter.has_report and not self.processes else limiter.share(max(1, self.processes), self.rank)

    def began(self, uncached: int, before: float, ttft_s: float) -> None:
        self.limiter.began(uncached, before, ttft_s)

    def ended(self, gap_s: float) -> None:
        self.limiter.ended(gap_s)

    def look(self, own: int, begun: int, told: Told | None, now: float) -> None:
        heard = Heard(own, begun) if told is None else Heard(own, begun, told.running, told.waiting, told.preemptions, told.generated)
        self.limiter.update(heard, max(1, self.processes), now)


class Score(msgspec.Struct, frozen=True):
    """One run, after `WARM_S`."""

    goodput: float
    """Good answers a second."""
    done: float
    """Whole answers a second, good or not."""
    ttft_p99_s: float
    """From a request's arrival."""
    waited_mean: float
    """Requests in the engine's own queue, as told."""
    limit_mean: float
    preemptions: float


class Kind(IntEnum):
    """Of events; of one moment the lower come first."""

    LOOK = 0
    TOLD = 1
    ARRIVAL = 2
    SUBMIT = 3
    BEGUN = 4
    ENDED = 5
    ENGINE = 6
    CALL = 7


class Request:
    """One of them."""

    __slots__ = ("arrived", "at", "began", "first", "gateway", "output", "prompt", "queued", "sent")

    def __init__(self, at: float, prompt: int, output: int, gateway: int) -> None:
        self.arrived = at
        self.prompt, self.output, self.gateway = prompt, output, gateway
        self.sent = self.first = 0.0
        self.queued = 0.0


class Gateway:
    """One process."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.queue: deque[Request] = deque()
        self.own = self.begun = 0
        self.tokens = 0


class World:
    """One run. `shares` are those of arrivals by gateway."""

    def __init__(
        self, case: Case, rate: float, seconds: float, gates: Sequence[Gate], *, seed: int = 0, tells: bool = True,
        shares: Sequence[float] = (), rates: Callable[[float], float] = lambda at: 1.0,
    ) -> None:  # fmt: skip
        self.case, self.seconds, self.tells = case, seconds, tells
        self.engine = SimulatedEngine(
            case.timing, 16, max_num_seqs=case.max_num_seqs, token_budget=case.token_budget, begun=self._begun, ended=self._ended
        )
        self.gateways = [Gateway(gate) for gate in gates]
        self.now = 0.0
        self._heap: list[tuple[float, int, int, Any]] = []
        self._number = 0
        self._planned = -1
        self._order = self._generated = 0
        self.goods = self.finished = self.refused = 0
        self.ttfts: list[float] = []
        self.waits: list[int] = []
        self.limits: list[float] = []
        self._arrivals(rate, seed, shares, rates)
        for place in range(len(gates)):
            self._plan(LOOK_S * (place + 0.5) / len(gates), Kind.LOOK, place)

    def _arrivals(self, rate: float, seed: int, shares: Sequence[float], rates: Callable[[float], float]) -> None:
        rng, case = random.Random(f"{seed} {case_key(self.case)}"), self.case
        spread = random.Random(f"{seed} gateways")
        at, count = 0.0, len(self.gateways)
        while rate > 0.0:
            at += exponential(rng, 1.0 / (rate * rates(at)))
            if at > self.seconds:
                break
            long = rng.random() < case.long_share
            prompt = round(lognormal(rng, case.prompt * (20 if long else 1), 0.5))
            output = max(2, round(lognormal(rng, case.output / (4 if long else 1), 0.5)))
            prompt, output = max(1, min(prompt, case.timing.kv_tokens // 3)), min(output, case.timing.kv_tokens // 3)
            gateway = spread.choices(range(count), shares)[0] if shares else spread.randrange(count)
            self._plan(at, Kind.ARRIVAL, Request(at, prompt, output, gateway))

    def _plan(self, at: float, kind: Kind, what: Any) -> None:
        self._number += 1
        heapq.heappush(self._heap, (at, kind, self._number, what))

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Something of the test's own."""
        self._plan(when, Kind.CALL, call)

    def run(self) -> Score:
        """Until the time is over."""
        handlers = (self._look, self._told, self._arrival, self._submit, self._first, self._over, self._step, self._call)
        while self._heap and self._heap[0][0] <= self.seconds:
            self.now, kind, _, what = heapq.heappop(self._heap)
            handlers[kind](what)
        lasted = self.seconds - WARM_S
        self.ttfts.sort()
        return Score(
            self.goods / lasted,
            self.finished / lasted,
            self.ttfts[int(0.99 * len(self.ttfts))] if self.ttfts else 0.0,
            sum(self.waits) / max(1, len(self.waits)),
            sum(self.limits) / max(1, len(self.limits)),
            self.engine.preemptions,
        )

    def _call(self, call: Callable[[], None]) -> None:
        call()
        self.follow()

    def follow(self) -> None:
        """The engine may have planned something else."""
        engine = self.engine
        if engine.until != IDLE and engine.plan_id != self._planned:
            self._planned = engine.plan_id
            self._plan(engine.until, Kind.ENGINE, engine.plan_id)

    def _step(self, plan_id: int) -> None:
        if self.engine.plan_id == plan_id:
            self._generated += self._decoded(self.engine.until)
            self.engine.advance()
            self.follow()

    def _decoded(self, now: float) -> int:
        engine = self.engine
        return engine._decoders.count * min(engine._k, engine._steps_by(now, int)) if engine._k else 0

    def _arrival(self, request: Request) -> None:
        gateway = self.gateways[request.gateway]
        gateway.queue.append(request)
        self._let_through(gateway)

    def _let_through(self, gateway: Gateway) -> None:
        requests, tokens = gateway.gate.room()
        queue, patience = gateway.queue, PATIENCE * self.case.ttft_slo_s
        while queue and gateway.own < requests and not (gateway.tokens and gateway.tokens + queue[0].prompt > tokens):
            request = queue.popleft()
            if self.now - request.arrived > patience:
                self.refused += 1
                continue
            gateway.own += 1
            request.queued, request.sent = gateway.tokens, self.now
            gateway.tokens += request.prompt
            self._plan(self.now + WAY_S, Kind.SUBMIT, request)

    def _submit(self, request: Request) -> None:
        self._order += 1
        self.engine.submit(Decoding(request, request.prompt, request.output, (), self._order), self.now)
        self.follow()

    def _begun(self, run: Decoding, now: float) -> None:
        self._plan(now + WAY_S, Kind.BEGUN, run.turn)

    def _ended(self, run: Decoding, now: float) -> None:
        self._plan(now + WAY_S, Kind.ENDED, run.turn)

    def _first(self, request: Request) -> None:
        gateway = self.gateways[request.gateway]
        request.first = self.now
        gateway.begun += 1
        gateway.tokens -= request.prompt
        gateway.gate.began(request.prompt, request.queued, self.now - request.sent)
        self._let_through(gateway)

    def _over(self, request: Request) -> None:
        gateway = self.gateways[request.gateway]
        gateway.own -= 1
        gateway.begun -= 1
        gap = (self.now - request.first) / max(1, request.output - 1)
        gateway.gate.ended(gap)
        if self.now > WARM_S:
            ttft = request.first - request.arrived
            self.finished += 1
            self.ttfts.append(ttft)
            self.goods += ttft <= self.case.ttft_slo_s and gap <= self.case.tpot_slo_s
        self._let_through(gateway)

    def _look(self, place: int) -> None:
        running, waiting, _, usage = self.engine.look(self.now)
        told = Told(running, waiting, usage, self.engine.preemptions, self._generated + self._decoded(self.now))
        self._plan(self.now + TOLD_LATE_S, Kind.TOLD, (place, told))
        self._plan(self.now + LOOK_S, Kind.LOOK, place)

    def _told(self, what: tuple[int, Told]) -> None:
        place, told = what
        gateway = self.gateways[place]
        gateway.gate.look(gateway.own, gateway.begun, told if self.tells else None, self.now)
        if self.now > WARM_S:
            self.waits.append(told.waiting)
            self.limits.append(gateway.gate.room()[0])
        self._let_through(gateway)


def case_key(case: Case) -> str:
    """For the dice: the same load for every limiter."""
    return f"{case.name} {case.prompt} {case.output}"


def capacity(case: Case, seconds: float = 150.0) -> float:
    """Requests a second that it answers when it always has enough to do."""
    return World(msgspec.structs.replace(case, ttft_slo_s=2e9), 1000.0 * 60 / case.prompt, seconds, [Static(float("inf"))]).run().done


CASES: Final = (
    Case("decode", "h100-8b", 300, 400),
    Case("prefill", "h100-8b", 6000, 60),
    Case("70b", "h100-70b-tp4", 1500, 250, ttft_slo_s=3.0),
    Case("few seats", "h100-8b", 800, 200, max_num_seqs=16),
    Case("kv", "rtx-4090-8b", 600, 300, ttft_slo_s=4.0, tpot_slo_s=0.15),
    Case("long prompts", "h100-8b", 500, 300, long_share=0.1, ttft_slo_s=3.0),
)
