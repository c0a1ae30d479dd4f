"""Tenants' token rate limits as token buckets: what the gateway's rate limits do, without their stores."""

from collections.abc import Mapping

from routing.simulation.fleet_file import Tenant


class TokenLimits:
    """One bucket per tenant that has a limit; full at the start."""

    __slots__ = ("_levels", "_tenants")

    def __init__(self, tenants: Mapping[str, Tenant]) -> None:
        self._tenants = tenants
        self._levels: dict[str, tuple[float, float]] = {}

    def take(self, tenant: str, tokens: int, now: float) -> bool:
        """Take the tokens from the tenant's bucket; False, and nothing taken, when it has fewer."""
        rule = self._tenants.get(tenant)
        if rule is None or rule.tokens_per_s is None:
            return True
        full = rule.tokens_per_s * rule.burst_s
        level, since = self._levels.get(tenant, (full, now))
        level = min(full, level + (now - since) * rule.tokens_per_s)
        enough = level >= tokens
        self._levels[tenant] = (level - tokens if enough else level, now)
        return enough
