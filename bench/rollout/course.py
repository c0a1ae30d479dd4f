"""One whole rollout on simulated traffic, looked at after every interval."""

from random import Random

import msgspec

from bench.rollout.traffic import Traffic, Version
from policies.rollout.plan import RolloutPlan
from policies.rollout.progress import OVER, Status, begin, shares, tick
from policies.rollout.verdict import Judgement


class Ended(msgspec.Struct, frozen=True):
    """One rollout."""

    found_worse: bool
    done: bool
    after_s: float
    requests: int
    """The canary's."""
    metric: str
    """The one that was worse."""


def rollout(rng: Random, pool: dict[str, list[float]], version: Version, plan: RolloutPlan) -> Ended:
    """From its beginning until it is over or held."""
    traffic, state, requests, interval = Traffic(rng, pool, version, interval_s=plan.terms.interval_s), begin(plan, 0.0), 0, 0
    while True:
        seen = traffic.interval(interval, shares(plan, state).live)
        interval += 1
        requests += seen.canary.requests
        look = tick(plan, state, interval * plan.terms.interval_s, [seen])
        state = look.state
        if state.status in OVER or state.status is Status.HELD:
            worse = look.verdict.judgement is Judgement.WORSE
            metric = look.verdict.findings[0].metric if worse else ""
            return Ended(worse, state.status is Status.DONE, interval * plan.terms.interval_s, requests, metric)
