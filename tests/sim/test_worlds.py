"""Seeded worlds (R59): three gateways, a counter store and four engines on virtual time, with everything going wrong. What is real in them
and what is modelled is said in docs/explanation/worlds.md. `make test-sim` runs 2,000; one that fails is run again by `make test-sim
SEED=n`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import gateway.http.edge.taps
import gateway.lifecycle
import gateway.request.forward
import gateway.request.retry
from domain.priority import Class
from domain.usage import WHOLE_FINISH_REASONS
from gateway.http.edge.relay import ReplyRelay
from gateway.placement.in_flight import InFlight
from gateway.process.worker import _Worker
from gateway.queue.preempt import PreemptibleRequest, Preemption
from tests.world.callers import Manners
from tests.world.plan import Coming, Plan, Trouble
from tests.world.running import run_one
from tests.world.world import World

ROOT = Path(__file__).parents[2]
WORLDS = int(os.environ.get("TIDEGATE_WORLDS", "24"))
FIRST = 10_000
"""Seeds of this suite; `make test-sim` runs those from 0, so that together they are more."""
ENOUGH = 40
"""Worlds in which a gateway that is broken on purpose has to be found."""


@pytest.mark.slow
@pytest.mark.req("R59")
def test_nothing_that_goes_wrong_breaks_an_invariant(record_property: Callable[[str, object], None]) -> None:
    broken = {}
    asks = troubles = 0
    for seed in range(FIRST, FIRST + WORLDS):
        ran = run_one(seed)
        asks, troubles = asks + ran.asks, troubles + ran.troubles
        if ran.breaches:
            broken[f"SEED={seed}"] = ran.breaches
    record_property("figure", f"{WORLDS} worlds of 10 minutes, {asks} requests, {troubles} troubles")
    assert not broken


@pytest.mark.slow
@pytest.mark.req("R59")
def test_a_seed_replays_identically() -> None:
    """Here, and in another process in which sets and addresses are in another order."""
    seed = FIRST + 7
    own = run_one(seed).digest
    assert run_one(seed).digest == own
    code = f"from tests.world.running import run_one; print(run_one({seed}).digest)"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "4711"}, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == own


def test_seeds_differ() -> None:
    assert run_one(FIRST).digest != run_one(FIRST + 1).digest


def found_by(seeds: Iterable[int]) -> list[str]:
    """The first breaches in these worlds."""
    return next((ran.breaches for ran in map(run_one, seeds) if ran.breaches), [])


def sometimes(broken: Callable[..., Any], right: Callable[..., Any], every: int) -> Callable[..., Any]:
    """`broken` every n-th time."""
    calls = 0

    def either(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return (broken if calls % every == 0 else right)(*args, **named)

    return either


async def _no_settlement(*_: Any) -> None:
    return None


def _as_if_nothing_came(right: Callable[..., bool]) -> Callable[..., bool]:
    return lambda kind, *, answer_begun, **more: right(kind, answer_begun=False, **more)


def _one_salt(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, cache_salt, **more: right(*given, cache_salt="everybody's" if cache_salt else None, **more)


def _no_release(self: InFlight) -> None:
    self.ended = True


def _once_whoever(self: Preemption, tier: int) -> list[Any]:
    """Of batch whatever runs, answering or not."""
    relays = [one for one in self._relays() if isinstance(one, ReplyRelay) and not one.outcome.done()]
    found = [(one, one.story, charge) for one in relays if (charge := one.story.tried.charge) is not None and not charge.over]
    batch = [one for one in found if one[1].asked.priority_class is Class.BATCH and not one[1].placed.pulled_back]
    return [PreemptibleRequest(Class.BATCH, 0.0, one) for one in batch]


def _twice(observe: Callable[..., None]) -> Callable[..., None]:
    def both(worker: Any, record: Any) -> None:
        observe(worker, record)
        observe(worker, record)

    return both


BROKEN: dict[str, tuple[Callable[[], Any], *tuple[str, ...]]] = {
    "a settlement is left out": (
        lambda: patch.object(gateway.lifecycle, "settle", sometimes(_no_settlement, gateway.lifecycle.settle, 20)),
        "holds at rest",
        "closed by nothing",  # whichever a world shows first
    ),
    "a place is not given back": (
        lambda: patch.object(InFlight, "over", sometimes(_no_release, InFlight.over, 20)),
        "in the load table",
    ),
    "a retry after the first byte": (
        lambda: patch.object(gateway.request.retry.attempt, "may_retry", _as_if_nothing_came(gateway.request.retry.attempt.may_retry)),
        "ask-",
    ),
    "one salt for everybody": (
        lambda: patch.object(gateway.request.forward, "body_for", _one_salt(gateway.request.forward.body_for)),
        "salts",
    ),
    "a record is written twice": (
        lambda: patch.object(_Worker, "_observe", sometimes(_twice(_Worker._observe), _Worker._observe, 20)),
        "booked twice",
    ),
}

SHOWING = {"a retry after the first byte": FIRST + 3}
"""The world that shows it, where the first one does not; it runs first, and others after it should it come to show nothing."""


@pytest.mark.parametrize("what", BROKEN)
def test_a_gateway_that_is_broken_on_purpose_is_found(what: str) -> None:
    breaking, *said = BROKEN[what]
    with breaking():
        breaches = found_by([SHOWING.get(what, FIRST), *range(FIRST, FIRST + ENOUGH)])
    assert any(words in one for words in said for one in breaches), breaches


def world_of(tmp_path: Path, comings: list[Coming], troubles: list[Trouble], peaceful: bool = True) -> World:
    """A world of a plan made by hand."""
    world = World(1, tmp_path)
    world.plan = Plan(tuple(comings), tuple(troubles), strict=not any(one.name.startswith("store") for one in troubles), peaceful=peaceful)
    world.run()
    return world


def test_an_abort_that_counts_as_an_end_is_found(tmp_path: Path) -> None:
    how = (("p", 1.0), ("after", 3.0), ("bytes_per_s", 20.0), ("delay_s", 1.0))
    aborting = Trouble(15.0, "misbehave abort_finish", "e0+e1+e2+e3", 30.0, how)
    comings = [Coming(20.0 + n, n, "cora", "g0", Manners(stream=n % 2 == 0, max_tokens=4)) for n in range(4)]
    assert world_of(tmp_path, comings, [aborting]).breaches == []
    with patch.object(gateway.http.edge.taps, "WHOLE_FINISH_REASONS", WHOLE_FINISH_REASONS | {"abort"}):
        breaches = world_of(tmp_path, comings, [aborting]).breaches
    assert any("finished by" in one for one in breaches)


def test_an_answer_that_is_taken_back_after_it_began_is_found(tmp_path: Path) -> None:
    usual = Manners(max_tokens=60, headers=(("x-tidegate-class", "batch"),))
    batch = [Coming(20.0, n, "bolt" if n % 2 else "cora", "g0", usual) for n in range(8)]
    comings = [*batch, *[Coming(22.0, n, "dune", "g0", Manners(max_tokens=4)) for n in (8, 9)]]
    assert world_of(tmp_path, comings, []).breaches == []
    with patch.object(Preemption, "_candidates", _once_whoever):
        breaches = world_of(tmp_path, comings, []).breaches
    assert any("not its own" in one for one in breaches), breaches


def test_a_worker_that_ends_waits_for_the_settlements_of_what_it_answered(tmp_path: Path) -> None:
    """An answer that is out just before its worker is told to go: the round trip to the store takes longer than the end of the connection,
    and the ledger used to call such requests lost."""
    usual = Manners(max_tokens=16)
    comings = [Coming(20.0 + 0.013 * n, n, "acme", "g0", usual) for n in range(4)] + [
        Coming(20.0 + 0.013 * n, n, "bolt", "g0", usual) for n in range(4, 8)
    ]
    slow = Trouble(19.0, "store_slow", "store", 20.0, (("more_s", 0.02),))
    world = world_of(tmp_path, comings, [slow, Trouble(20.2, "gateway_replaced", "g0", 1.0)])
    assert world.breaches == []
    assert {row.closing for row in world.ledger.rows.values()} <= {"settle", "estimate", "release"}
    assert len(world.ledger.rows) >= 4, "too few answers to tell"


def test_a_calm_world_answers_everybody(tmp_path: Path) -> None:
    comings = [Coming(20.0 + 3.0 * n, n, "cora", f"g{n % 3}", Manners(stream=n % 2 == 0, max_tokens=4)) for n in range(12)]
    world = world_of(tmp_path, comings, [])
    assert world.breaches == []
    assert [ask.status for ask in world.asks] == [200] * 12
    assert all(ask.whole for ask in world.asks)
