"""What happens in a world and when, drawn from its seed before it begins."""

import random
from dataclasses import dataclass, field
from functools import partial

from backends.simengine.faults import FAULTS
from tests.world.callers import Manners

LENGTH_S = 600.0
WARM_S = 5.0
CALM_S = 75.0
"""At the end: nothing new goes wrong, what was broken is mended, and everything has time to end."""
TENANTS = ("acme", "bolt", "cora", "dune")
ENGINES = ("e0", "e1", "e2", "e3")
GATEWAYS = ("g0", "g1", "g2")

NOT_FOR_WORLDS = {"exit_process", "lose_kv_events", "lose_load_reports", "duplicate_usage", "oversize_event"}
"""The test's own process would end; nobody listens to it here; usage is reported wrongly, which nobody can bill rightly; it takes long."""
WRONG = tuple(name for name in FAULTS if name not in NOT_FOR_WORLDS)

ENGINE_TROUBLE = (("misbehave", 20), ("engine_killed", 4), ("engine_silent", 2), ("engine_slow", 2))
GATEWAY_TROUBLE = (("gateway_killed", 3), ("gateway_replaced", 2), ("clock", 1), ("directory", 1))
STORE_TROUBLE = (("store_stopped", 2), ("store_silent", 1), ("store_slow", 2), ("store_mute", 2), ("store_lost", 1), ("gateway_silent", 1))
"""All that keeps a gateway from asking the store."""


@dataclass(frozen=True, order=True)
class Trouble:
    """One thing that goes wrong at a moment, for some time."""

    at_s: float
    name: str
    target: str
    for_s: float
    how: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, order=True)
class Coming:
    """One request that comes."""

    at_s: float
    number: int
    tenant: str
    gateway: str
    manners: Manners = field(compare=False)


@dataclass(frozen=True)
class Plan:
    """A whole world."""

    comings: tuple[Coming, ...]
    troubles: tuple[Trouble, ...]
    strict: bool
    """Whether the counter store is always there, so that limits hold exactly."""
    peaceful: bool
    """Whether no gateway is killed, so that counters and ledger agree exactly."""


def drawn(seed: int, asks: int = 120) -> Plan:
    """The plan of a seed."""
    rng = random.Random(f"{seed} plan")
    strict, peaceful = rng.random() < 0.5, rng.random() < 0.3
    troubles = _troubles(rng, strict, peaceful)
    return Plan(tuple(_comings(rng, asks, [one.at_s for one in troubles])), tuple(troubles), strict, peaceful)


def _comings(rng: random.Random, asks: int, troubled: list[float]) -> list[Coming]:
    found: list[Coming] = []
    last = LENGTH_S - CALM_S
    while len(found) < asks:
        # often when something has just gone wrong, or is about to
        at = min(max(WARM_S, rng.choice(troubled) + rng.uniform(-2.0, 4.0)), last) if rng.random() < 0.6 else rng.uniform(WARM_S, last)
        tenant = rng.choice(TENANTS)
        # mostly alone, sometimes many at once from one tenant, to one gateway or to all
        count = 1 if rng.random() < 0.85 else rng.randrange(2, 25)
        same, spread = rng.choice(GATEWAYS), rng.random() < 0.7
        for _ in range(min(count, asks - len(found))):
            gateway = rng.choice(GATEWAYS) if spread else same
            found.append(Coming(at + rng.random() * 0.05, len(found), tenant, gateway, _manners(rng)))
    return sorted(found)


HEADERS = (
    ("x-tidegate-class", "batch"),
    ("x-tidegate-class", "critical"),
    ("x-tidegate-timeout-s", "0.5"),
    ("x-tidegate-timeout-s", "5"),
    ("x-stainless-retry-count", "1"),
)


def _manners(rng: random.Random) -> Manners:
    stream, draw = rng.random() < 0.75, rng.random()
    usual = partial(
        Manners,
        stream,
        usage=rng.random() < 0.5,
        choices=2 if rng.random() < 0.1 else 1,
        headers=(rng.choice(HEADERS),) if rng.random() < 0.3 else (),
    )
    most = rng.choice((1, 3, 6, 6, 12, 20))
    if draw < 0.08:
        return usual(max_tokens=most, leaves_after_s=rng.choice((0.0005, 0.004, 0.05, 0.5, 2.0)) * (0.5 + rng.random()))
    if draw < 0.14 and stream:
        return usual(max_tokens=most, leaves_after_bytes=rng.randrange(1, 2000))
    if draw < 0.20:
        return usual(max_tokens=most, body_pieces=rng.randrange(2, 6), body_pause_s=rng.choice((0.002, 0.3, 3.0)))
    if draw < 0.24 and stream:
        return usual(max_tokens=60, reads_until_bytes=rng.randrange(1, 3000), stalls_s=rng.choice((1.0, 4.0, 30.0)))
    return usual(max_tokens=most)


def _troubles(rng: random.Random, strict: bool, peaceful: bool) -> list[Trouble]:
    found, at = [], WARM_S
    kinds = [*ENGINE_TROUBLE, *(GATEWAY_TROUBLE[1:] if peaceful else GATEWAY_TROUBLE), *(() if strict else STORE_TROUBLE)]
    while True:
        at += rng.expovariate(1 / 8.0)
        if at > LENGTH_S - CALM_S:
            return found
        name = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        found.append(_trouble(rng, at, name))


def _trouble(rng: random.Random, at: float, name: str) -> Trouble:
    for_s = rng.choice((0.3, 2.0, 6.0, 12.0, 25.0)) * (0.5 + rng.random())
    if name == "misbehave":
        how = {
            "p": rng.choice((0.3, 0.6, 1.0)),
            "after": float(rng.randrange(0, 5)),
            "bytes_per_s": rng.choice((20.0, 300.0, 5000.0)),
            "delay_s": rng.choice((0.2, 2.0, 12.0)),
        }
        targets = "+".join(rng.sample(ENGINES, rng.choice((1, 2, 4))))
        return Trouble(at, f"misbehave {rng.choice(WRONG)}", targets, for_s, tuple(how.items()))
    if name.startswith("engine"):
        return Trouble(at, name, rng.choice(ENGINES), for_s, (("more_s", rng.choice((0.01, 0.2, 1.5))),))
    if name.startswith("store"):
        return Trouble(at, name, "store", for_s, (("more_s", rng.choice((0.01, 0.03, 0.2))),))
    return Trouble(at, name, rng.choice(GATEWAYS), for_s, (("skew_s", rng.choice((-300.0, -5.0, 5.0, 300.0))),))
