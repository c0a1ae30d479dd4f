"""A world of one gateway, simulated engines that nothing happens to, and twenty tenants without limits who ask as a test plans it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

import tests.world.world
from backends.simengine.settings import SimSettings
from bench.overload.plan import PREFIX_WORDS, QUESTION_WORDS, TENANTS, Planned, words
from domain.identity import TenantId
from gateway.config.load import Settings
from gateway.record import Record
from policies.compile import compiled
from policies.schema import PolicyDocument
from tenancy.accounts import DEFAULT_ORGANISATION, DEFAULT_PROJECT, Contents, Organisation, Project, Tenant
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Minted, digest_of, mint
from tests.world.accounts import PRICE
from tests.world.callers import MODEL, Ask, Manners
from tests.world.configured import APART, EDGE, NO_FILES
from tests.world.engines import PORT
from tests.world.gateways import PEPPER, Directory, Parts
from tests.world.plan import CALM_S, Coming, Plan
from tests.world.world import BEGAN_S, EPOCH_UNIX, World

NAMES: Final = tuple(f"t{number}" for number in range(TENANTS))
NOISY: Final = NAMES[0]
KEYS: Final[dict[str, Minted]] = {name: mint("test", bytes([at + 1]) * ENTROPY_BYTES) for at, name in enumerate(NAMES)}
BEGINS_S: Final = 5.0
"""Seconds after which the gateway has found its engines, and requests come."""


def contents() -> Contents:
    """Twenty tenants with a key each, without limits."""
    return Contents(
        organisations=(Organisation(DEFAULT_ORGANISATION),),
        tenants=tuple(Tenant(TenantId(name)) for name in NAMES),
        projects=tuple(Project(TenantId(name), DEFAULT_PROJECT) for name in NAMES),
        keys=tuple(
            KeyRecord(key.id, TenantId(name), DEFAULT_PROJECT, PEPPER.kid, (digest_of(PEPPER.secret, key.secret),))
            for name, key in KEYS.items()
        ),
        limits=(),
        prices=(PRICE,),
        version=1,
    )


def settings(engines: Sequence[str], limit: dict[str, Any]) -> Settings:
    pool = {"name": "chat", "model": MODEL, "limit": limit, "backends": [{"id": one, "url": f"http://{one}:{PORT}"} for one in engines]}
    return Settings.model_validate(
        {
            "pools": [pool],
            "routing": APART,
            "files": NO_FILES,
            "stores": {"counters": "redis://store:6379"},
            "data": {"limits": EDGE},
            "engines": {"signals_s": 0.1, "plain_timeout_s": 3600, "token_gap_s": 60},
            "drain": {"accept_s": 1, "grace_s": 10},
            "log": {"access": False},
        }
    ).based_at(Path("/"))


class WholeAnswer(Ask):
    """A request whose answer has as many tokens as it may have."""

    @property
    def request(self) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(super().request), "ignore_eos": True})


def planned_ask(number: int, plan: Planned, manners: Manners) -> Ask:
    """A request of `bench.overload`: one of the tenant's system prompts, and a question that is asked once."""
    ask = WholeAnswer(number, NAMES[plan.tenant], KEYS[NAMES[plan.tenant]].text, words(str(plan.question), QUESTION_WORDS), manners)
    ask.messages[0]["content"] = words(f"prefix {plan.tenant} {plan.prefix}", PREFIX_WORDS)
    return ask


class Neighbours(World):
    """One gateway and its engines, without limits of tenants. What callers get is not judged here, as their answers' lengths are not the
    natural ones. `policies` may be replaced by a subclass.

    Args:
        sim: one engine.
        comings: the requests, with their seconds after the beginning.
        limit: of the pool.
    """

    policies = compiled([PolicyDocument.model_validate({"tenant": "*", "models": [{"name": MODEL, "pool": "chat"}]})])

    def __init__(
        self, run_dir: Path, engines: Sequence[str], sim: SimSettings, comings: Sequence[Coming], seconds: float, **limit: Any
    ) -> None:
        self.sim, self.until_s = sim, BEGINS_S + seconds
        with patch.object(tests.world.world, "ENGINES", engines):
            super().__init__(1, run_dir)
        self.directory = Directory(contents())
        self.parts = Parts(settings(engines, limit), self.policies, self.directory, self.ledger, run_dir)
        self.plan = Plan(tuple(sorted(comings)), (), strict=True, peaceful=True)
        with patch.multiple(tests.world.world, LENGTH_S=self.until_s + CALM_S, GATEWAYS=("g0",)):
            self.run()

    def _sim(self, name: str) -> SimSettings:
        return self.sim

    def records(self, *, of_noisy: bool, from_s: float = 0.0) -> list[Record]:
        """The requests of the noisy tenant, or of all others, that came from so many seconds after the beginning on."""
        since = EPOCH_UNIX + BEGAN_S + BEGINS_S + from_s
        return [one for _, one in self.parts.records if (one.tenant == NOISY) is of_noisy and one.at_unix >= since]
