"""Among backends where the tenant still has a positive deficit the longest match wins, then the fewest queued tokens.

    deficit(tenant, backend) starts at `quantum`, and every placement takes uncached tokens + output_weight * expected output off
    when a tenant has none left anywhere, each of its deficits gets `quantum` more, until one is positive

Source: D2LPM, double deficit longest prefix match (Cao et al., arXiv 2501.14312): locality is followed only while it is affordable,
so a tenant whose prefix lies on one backend moves on when it has used its share there. Not certain, because only the abstract could be
read again: the paper's quanta (here 16,384 tokens, about one second of prefill of an 8B model's half H100), and that output counts
double as in VTC. What it does inside an engine, the order of the queue by the second deficit, is not a router's to do.
"""

from collections import OrderedDict
from typing import Final

from pydantic import Field

from domain.clock import Rng
from domain.strict import Strict
from routing.load import LoadTable
from routing.ports import Candidates, Policy, RoutingRequest, Scores, by_backend
from routing.warmth import spare

TERMS: Final = ("missing_tokens", "queue_tokens", "deficit")

TENANTS: Final = 4096
"""Tenants whose deficits are remembered; the least recently seen is forgotten first."""
SPENT: Final = 1e9
"""Added where the tenant has no deficit left: more than the tokens of any prompt."""


class Params(Strict):
    """The quantum."""

    quantum: float = Field(
        default=16_384, ge=1, le=1e9, description="Tokens a tenant may spend on one backend before its deficit there is used up."
    )
    output_weight: float = Field(default=2.0, ge=0, le=1000, description="Weight of a generated token, in prompt tokens.")


class Deficits:
    """The deficit of each tenant on each backend. Bounded by `TENANTS` times the backends of the pool."""

    def __init__(self, params: Params) -> None:
        self._params = params
        self._by_tenant: OrderedDict[str, dict[str, float]] = OrderedDict()

    def of(self, tenant: str, ids: list[str]) -> list[float]:
        """The tenant's deficits on these backends, at least one of them positive: when none was, quanta are added to all."""
        quantum = self._params.quantum
        by_backend = self._by_tenant.get(tenant)
        if by_backend is None:
            return [quantum] * len(ids)
        deficits = [by_backend.get(backend_id, quantum) for backend_id in ids]
        most = max(deficits)
        if most <= 0.0:
            more = quantum * (int(-most // quantum) + 1)
            deficits = [deficit + more for deficit in deficits]
            self._by_tenant[tenant] = dict(zip(ids, deficits, strict=True))
        return deficits

    def placed(self, request: RoutingRequest, backend_id: str, uncached_tokens: float, now: float) -> None:
        tenants = self._by_tenant
        params = self._params
        deficits = tenants.setdefault(request.tenant, {})
        tenants.move_to_end(request.tenant)
        if len(tenants) > TENANTS:
            tenants.popitem(last=False)
        spent = uncached_tokens + params.output_weight * request.output_tokens
        deficits[backend_id] = deficits.get(backend_id, params.quantum) - spent


def score(request: RoutingRequest, candidates: Candidates, load_table: LoadTable, params: Params, memory: Deficits, rng: Rng) -> Scores:
    """The cost by the module's rule."""
    rows = candidates.rows
    ids = load_table.ids
    deficits = memory.of(request.tenant, [ids[row] for row in rows])
    longest = max(candidates.matched)
    missing = [longest - held for held in candidates.matched]
    queued = [load_table.queue_tokens[row] for row in rows]
    cost = [
        lacks + tokens / SPENT + (0.0 if deficit > 0.0 else SPENT) for lacks, tokens, deficit in zip(missing, queued, deficits, strict=True)
    ]
    return Scores(spare(cost, candidates.shares, rng), by_backend(missing, queued, deficits))


POLICY: Final = Policy(score, Params, TERMS, Deficits, unit="tokens")
