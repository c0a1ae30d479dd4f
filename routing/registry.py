"""Every routing policy by the name used in policy files. A new one is a file in `policies/` and a line here."""

from collections.abc import Mapping
from typing import Final

from routing.policies import (
    d2lpm,
    dynamo_cost,
    least_load,
    least_queued_tokens,
    llmd_223,
    lmetric,
    p2c,
    preble_e2,
    predicted_latency,
    random,
    round_robin,
    session_ring,
    smg_cache_aware,
    weighted,
)
from routing.ports import Policy

POLICIES: Final[Mapping[str, Policy]] = {
    "predicted_latency": predicted_latency.POLICY,
    "weighted": weighted.POLICY,
    "lmetric": lmetric.POLICY,
    "dynamo_cost": dynamo_cost.POLICY,
    "llmd_223": llmd_223.POLICY,
    "smg_cache_aware": smg_cache_aware.POLICY,
    "preble_e2": preble_e2.POLICY,
    "d2lpm": d2lpm.POLICY,
    "least_queued_tokens": least_queued_tokens.POLICY,
    "least_load": least_load.POLICY,
    "p2c": p2c.POLICY,
    "session_ring": session_ring.POLICY,
    "round_robin": round_robin.POLICY,
    "random": random.POLICY,
}
