"""Who there is in a world: four tenants with a key each, their limits and what they pay."""

import random

import msgspec

from domain.identity import TenantId
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Contents, Organisation, Project, Tenant
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, digest_of, mint
from tenancy.limits import Level, Limit, Meter, Scope, Window
from tenancy.prices import Price, TokenRates
from tests.world.gateways import PEPPER
from tests.world.plan import TENANTS

KEYS: dict[str, Minted] = {name: mint("test", bytes([at + 1]) * ENTROPY_BYTES) for at, name in enumerate(TENANTS)}
PRICE = Price("list", "sim", "*", 0.0, TokenRates(1_000_000_000, 100_000_000, 3_000_000_000), TokenRates(1000, 250, 4000))


def contents(rng: random.Random) -> Contents:
    """The directory of a world; how tight limits are depends on the seed."""

    def limit(tenant: str, meter: Meter, window: Window, amount: int) -> Limit:
        scope = Scope(Level.TENANT, tenant) if tenant else Scope(Level.GLOBAL, "")
        return Limit(scope, meter, window, max(1, round(amount * rng.choice((0.5, 1.0, 3.0)))))

    limits = (
        limit("", Meter.CONCURRENT_REQUESTS, Window.NOW, 16),
        limit("", Meter.TOKENS, Window.EVER, 40_000),
        limit("acme", Meter.CONCURRENT_REQUESTS, Window.NOW, 4),
        limit("acme", Meter.TOKENS, Window.EVER, 6_000),
        limit("bolt", Meter.COST_NANOUSD, Window.EVER, 6_000_000),
        limit("bolt", Meter.REQUESTS, Window.MINUTE, 6),
        limit("dune", Meter.REQUESTS, Window.EVER, 25),
        limit("dune", Meter.UNITS, Window.DAY, 10_000),
        limit("dune", Meter.TOKENS, Window.MINUTE, 5_000),
    )
    keys = tuple(
        KeyRecord(KEYS[name].id, TenantId(name), DEFAULT_PROJECT, PEPPER.kid, (digest_of(PEPPER.secret, KEYS[name].secret),))
        for name in TENANTS
    )
    return Contents(
        organisations=(Organisation(DEFAULT_ORGANISATION),),
        tenants=tuple(Tenant(TenantId(name)) for name in TENANTS),
        projects=tuple(Project(TenantId(name), DEFAULT_PROJECT) for name in TENANTS),
        keys=keys,
        limits=limits,
        prices=(PRICE,),
        version=1,
    )


def raised(given: Contents) -> Contents:
    """The same with more of everything, as a newer version."""
    limits = tuple(msgspec.structs.replace(one, amount=one.amount + one.amount // 2 + 1) for one in given.limits)
    return msgspec.structs.replace(given, limits=limits, version=given.version + 1)
