"""R34: running answers end when their key is no longer valid, where the policy says so."""

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from domain.faults import Kind
from domain.identity import Caller, KeyId, ProjectId, TenantId
from gateway.deps import Watch
from gateway.request.end_revoked import EVERY_S, RevokedAnswers
from policies.compile import TenantPolicy
from policies.routing_choice import routing_of
from policies.schema import DEFAULT_ROUTING
from tenancy.accounts import DEFAULT_PROJECT, Contents, Organisation, Project, Tenant
from tenancy.directory import Directory
from tenancy.keys import ENTROPY_BYTES, KeyRecord, Pepper, digest_of, mint, revoked
from tests.unit.gateway.http.edge.test_relay import EVENT, SSE, Bench

PEPPER = Pepper("k1", b"p" * 32)
ACME = TenantId("acme")
MINTED = mint("live", bytes(ENTROPY_BYTES))
KEY = KeyRecord(MINTED.id, ACME, DEFAULT_PROJECT, "k1", (digest_of(PEPPER.secret, MINTED.secret),))
POLICY = TenantPolicy("acme", {}, routing_of(DEFAULT_ROUTING), expose_headers=False, max_output_tokens=16, end_revoked=True)
BY_KEY = Caller(ACME, DEFAULT_PROJECT, MINTED.id)
BY_TOKEN = Caller(ACME, DEFAULT_PROJECT, KeyId("jwt:0123"))


def directory(key: KeyRecord | None = KEY, *, disabled: bool = False) -> Directory:
    contents = Contents(
        organisations=(Organisation("default"),),
        tenants=(Tenant(ACME),),
        projects=(Project(ACME, ProjectId(DEFAULT_PROJECT), disabled=disabled),),
        keys=() if key is None else (key,),
    )
    return Directory(contents, PEPPER)


class Gateway:
    """One running answer, and the worker's sweep."""

    def __init__(self, caller: Caller = BY_KEY, policy: TenantPolicy | None = POLICY) -> None:
        self.bench = Bench()
        self.bench.story.asked.caller = caller
        self.bench.story.asked.tenant_policy = policy
        self.bench.relay.on_head(200, SSE)
        self.bench.relay.on_data(EVENT)
        self.watch = Watch()
        self.watch.watched[self.bench.relay] = None
        self.live = SimpleNamespace(directory=directory())
        self.deps: Any = SimpleNamespace(live=self.live, watch=self.watch, wall=lambda: 1000.0 + self.bench.now)
        self.answers = RevokedAnswers()

    def swept(self, after_s: float = 0.25) -> Kind | None:
        """The kind of fault that ended the answer, or None while it runs."""
        self.bench.now += after_s
        self.answers.sweep(self.bench.now, self.deps)
        outcome = self.bench.relay.outcome
        fault = outcome.result() if outcome.done() else None
        return None if fault is None else fault.kind


@pytest.mark.req("R34")
@pytest.mark.parametrize(
    "after",
    [directory(revoked(KEY, 1.0)), directory(msgspec.structs.replace(KEY, disabled=True)), directory(None), directory(disabled=True)],
)
async def test_an_answer_ends_at_the_sweep_after_its_key_is_no_longer_valid(after: Directory) -> None:
    gateway = Gateway()
    assert gateway.swept() is None
    gateway.live.directory = after
    assert gateway.swept() is Kind.KEY_REVOKED
    assert gateway.bench.flight.calls == ["abort"]
    assert gateway.swept() is Kind.KEY_REVOKED  # once


async def test_an_answer_ends_when_its_key_expires_and_nothing_else_changes() -> None:
    gateway = Gateway()
    gateway.live.directory = directory(msgspec.structs.replace(KEY, expires_unix=1000.0 + gateway.bench.now + 1))
    assert gateway.swept() is None
    assert gateway.swept(EVERY_S) is Kind.KEY_REVOKED


async def test_an_answer_of_a_token_ends_with_its_project() -> None:
    gateway = Gateway(BY_TOKEN)
    gateway.live.directory = directory(None)
    assert gateway.swept() is None
    gateway.live.directory = directory(None, disabled=True)
    assert gateway.swept() is Kind.KEY_REVOKED


@pytest.mark.parametrize("policy", [None, msgspec.structs.replace(POLICY, end_revoked=False)])
async def test_without_the_policys_word_an_answer_goes_on(policy: TenantPolicy | None) -> None:
    gateway = Gateway(policy=policy)
    gateway.live.directory = directory(revoked(KEY, 1.0))
    assert gateway.swept() is None
    assert gateway.swept(math.ceil(EVERY_S)) is None
