"""Overload through whole gateways, on virtual time: three gateways with two simulated engines, asked for more than they can answer."""

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final
from unittest.mock import patch

import msgspec
import pytest

import tests.world.world
from backends.simengine.settings import SimSettings
from gateway.config.load import Settings
from policies.compile import compiled
from policies.schema import PolicyDocument
from tests.world.accounts import KEYS, contents
from tests.world.callers import MODEL, Ask, Manners, send
from tests.world.configured import APART, EDGE, NO_FILES
from tests.world.engines import PORT
from tests.world.gateways import SLOWED, Directory, Parts
from tests.world.plan import CALM_S, ENGINES, GATEWAYS, Coming, Plan
from tests.world.world import BEGAN_S, World

pytestmark = pytest.mark.slow

SERVING: Final = ENGINES[:2]
TOKENS: Final = 40
CAPACITY_PER_S: Final = 3.0
"""Answers of so many tokens that the engines give, about."""
WAITS_S: Final = 4.0
TENANT: Final = "cora"
SETTINGS: Final = Settings.model_validate(
    {
        "pools": [{"name": "chat", "model": MODEL, "backends": [{"id": one, "url": f"http://{one}:{PORT}"} for one in SERVING]}],
        "routing": APART,
        "files": NO_FILES,
        "stores": {"counters": "redis://store:6379"},
        "data": {"limits": EDGE},
        "engines": {"signals_s": 0.2},
        "drain": {"accept_s": 1, "grace_s": 10},
        "log": {"access": False},
    }
).based_at(Path("/"))
POLICIES: Final = compiled(
    [PolicyDocument.model_validate({"tenant": "*", "models": [{"name": MODEL, "pool": "chat"}], "max_wait_s": WAITS_S})]
)
SWEEP_S: Final = next(value for _, name, value in SLOWED if name == "SWEEP_S")
"""How often the queues of a world look for requests whose wait is over."""


class Crowd(World):
    """A world in which nothing goes wrong but the number of callers, without limits of tenants; callers ask the gateways in turn.

    Args:
        phases: from which second on how many requests per second come; the last entry ends the arrivals.
        retries: how often a caller repeats a request that was refused, as the official clients do: after the time that the refusal names.
        course: what arrivals are drawn from.
    """

    def __init__(self, run_dir: Path, phases: Sequence[tuple[float, float]], retries: int = 0, course: int = 0) -> None:
        super().__init__(1, run_dir)
        self.directory = Directory(msgspec.structs.replace(contents(random.Random(1)), limits=()))
        self.parts = Parts(SETTINGS, POLICIES, self.directory, self.ledger, run_dir)
        self.parts.on_record = self._recorded
        self.retries = retries
        self.attempts: list[list[Ask]] = []
        """The attempts of each request, in the order of arrival."""
        dice, comings = random.Random(f"arrivals {course}" if course else "arrivals"), list[Coming]()
        for (begins_s, per_s), (ends_s, _) in pairwise(phases):
            at_s = begins_s + dice.expovariate(per_s)
            while at_s < ends_s:
                comings.append(Coming(at_s, len(comings), TENANT, GATEWAYS[len(comings) % len(GATEWAYS)], Manners()))
                at_s += dice.expovariate(per_s)
        self.plan = Plan(tuple(comings), (), strict=True, peaceful=True)
        with patch.object(tests.world.world, "LENGTH_S", phases[-1][0] + CALM_S):
            self.run()

    def _sim(self, name: str) -> SimSettings:
        # a tenth of a fast engine's speed, in batches of four: few answers fill it, and none of its tokens is a slow one
        return SimSettings(models=(MODEL,), speed=0.1, preset="h100-8b", max_num_seqs=4)

    async def _ask(self, one: Coming) -> None:
        attempts = list[Ask]()
        self.attempts.append(attempts)
        for attempt in range(self.retries + 1):
            headers = (("x-stainless-retry-count", str(attempt)),) if attempt else ()
            manners = Manners(max_tokens=TOKENS, headers=headers)
            ask = Ask(100_000 * attempt + one.number, TENANT, KEYS[TENANT].text, f"number {one.number}", manners)
            attempts.append(ask)
            self.asks.append(ask)
            await send(ask, one.gateway, self.loop)
            if ask.status == 200 or ask.headers.get(b"x-should-retry") == b"false":
                return
            await asyncio.sleep(float(ask.headers.get(b"retry-after-ms", b"500")) / 1000)

    def answered(self, begins_s: float, ends_s: float) -> int:
        """Whole answers that ended in these seconds."""
        return sum(ask.whole and ask.status == 200 and begins_s <= ask.ended_at - BEGAN_S < ends_s for ask in self.asks)

    def at_first_try(self, begins_s: float, ends_s: float) -> float:
        """Share of the requests of these seconds that were answered at their first attempt."""
        firsts = [attempts[0] for attempts in self.attempts if begins_s <= attempts[0].began_at - BEGAN_S < ends_s]
        return sum(ask.status == 200 and ask.whole for ask in firsts) / len(firsts)


@pytest.mark.req("R20")
def test_a_minute_of_five_times_the_load_with_retries_is_over_a_minute_later(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    usual, over_s, until_s = 0.7 * CAPACITY_PER_S, 100.0, 200.0
    afterwards = []
    for course in range(3):
        home = tmp_path / str(course)
        home.mkdir()
        crowd = Crowd(home, [(10.0, usual), (40.0, 5 * CAPACITY_PER_S), (over_s, usual), (until_s, 0.0)], retries=2, course=course)
        assert crowd.breaches == []
        assert crowd.at_first_try(10.0, 40.0) == 1.0
        assert crowd.at_first_try(60.0, over_s) < 0.4, "it was no overload"
        assert sum(map(len, crowd.attempts)) > 2 * len(crowd.attempts), "hardly anybody tried again"
        afterwards.append(crowd.at_first_try(over_s + 60.0, until_s))
    record_property("figure", f"at the first try afterwards {min(afterwards):.1%} to {max(afterwards):.1%}")
    # a burst of a course's own arrivals may be refused at 0.7 of the capacity too; overload that lasted would refuse most of all courses
    assert sum(afterwards) / len(afterwards) >= 0.95
    assert min(afterwards) >= 0.85


@pytest.mark.req("GATEWAYS-15")
def test_three_times_the_load_costs_no_tenth_of_the_answers_and_nobody_waits_past_a_deadline(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    crowd = Crowd(tmp_path, [(10.0, CAPACITY_PER_S), (25.0, 1.3 * CAPACITY_PER_S), (80.0, 3 * CAPACITY_PER_S), (130.0, 0.0)])
    assert crowd.breaches == []
    peak, overloaded = crowd.answered(40.0, 80.0) / 40.0, crowd.answered(90.0, 130.0) / 40.0
    record_property("figure", f"{overloaded:.2f} answers a second of {peak:.2f}")
    assert crowd.at_first_try(90.0, 130.0) < 0.5, "it was no overload"
    assert overloaded >= 0.9 * peak
    waited = [record.queue_s for _, record in crowd.parts.records]
    assert 0.0 < max(waited) <= WAITS_S + SWEEP_S + 0.1
    refused = [ask for ask in crowd.asks if ask.status != 200]
    assert {ask.status for ask in refused} == {503}
    assert all(float(ask.headers[b"retry-after"]) > 0 for ask in refused)
    assert max(ask.ended_at - ask.began_at for ask in refused) <= WAITS_S + SWEEP_S + 0.1
