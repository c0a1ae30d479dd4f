"""Requests that are placed without engines and sockets: a worker's own parts, and a pool whose engines have just reported."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from domain.ask import Ask, Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.membership import NO_TRAITS, Traits
from gateway.deps import Deps
from gateway.http.openai import interpret
from gateway.placement.place import Placement, decide, prepare
from gateway.story import Story
from gateway.wiring.requests import deps_for
from policies.compile import TenantPolicy, compiled
from policies.schema import PolicyDocument
from routing.fleet import Availability, Backend
from tests.gateway_harness import PEPPER, directory, settings_for
from tests.stories import with_facts

POOL = "chat"


class Worker:
    """Its clock stands still until it is told the time. Must be made inside a running loop."""

    def __init__(self, *ids: str, traits: Mapping[str, Traits] | None = None, policy: Mapping[str, Any] | None = None) -> None:
        document = {"tenant": "*", "models": [{"name": "sim", "pool": POOL}], **(policy or {})}
        policies = compiled([PolicyDocument.model_validate(document)])
        made = deps_for(settings_for(["http://127.0.0.1:1"]), policies, directory([]), PEPPER, observe=_ignored, log_defect=_ignored)
        self.now = 100.0
        self.compared: list[tuple[float, int]] = []
        self.first_tokens: list[tuple[float, float]] = []
        """Predicted and measured seconds to first tokens."""
        self.deps: Deps = replace(
            made,
            clock=lambda: self.now,
            rng=random.Random(1),
            count_prefix=lambda pool, backend, predicted, actual: self.compared.append((predicted, actual)),
            count_first_token=lambda pool, backend, predicted_s, actual_s: self.first_tokens.append((predicted_s, actual_s)),
        )
        up = tuple([Backend(one, POOL, Availability.UP, "") for one in ids])
        made.live.fleet = made.live.fleet.with_backends(POOL, up)
        for one in ids:
            self.deps.pool_states.add(POOL, one, (traits or {}).get(one, NO_TRAITS))
            self.report(one)
        self.now += 1.0
        found = policies.for_tenant("acme")
        assert found is not None
        self.policy: TenantPolicy = found

    @property
    def load_table(self) -> Any:
        return self.deps.pool_states[POOL].load_table

    def report(self, backend_id: str, **values: float) -> None:
        """The engine's word, now."""
        whole = {"running": 0.0, "waiting": 0.0, "queued_tokens": 0.0, "kv_usage": 0.0, "kv_capacity": 400_000.0, **values}
        self.load_table.report(backend_id, **whole, read_at=self.now, asked_at=self.now)

    def held(self, placement: Placement, backend_id: str) -> int:
        """Blocks of the prompt that the index says it holds now."""
        return self.deps.pool_states.index.match(placement.request.chain, self.now).held(backend_id)

    async def placed(self, ask: Ask, session: str = "") -> Placement:
        """Where the request would go."""
        headers = {b"x-session-id": session.encode()} if session else {}
        story = Story("r", self.now, 0.0, self.now, "r")
        story.asked.caller, story.asked.tenant_policy = Caller(TenantId("acme"), ProjectId("p"), KeyId("k")), self.policy
        unplaced = await prepare(ask, self.policy.models["sim"], headers, story, self.deps)
        return decide(unplaced, self.deps, self.deps.rng)

    def story(self, first_s: float = 0.2, last_s: float = 1.0, **values: Any) -> Story:
        """What was written down of an answer that came now."""
        story = Story("r", self.now, 0.0, self.now, "r")
        return with_facts(story, first_event_at=self.now + first_s, last_event_at=self.now + last_s, **values)


def chat(text: str = "x" * 20_000, *, stream: bool = True, **fields: Any) -> Ask:
    """A request."""
    body = {"model": "sim", "messages": [{"role": "user", "content": text}], "stream": stream, **fields}
    return interpret(Endpoint.CHAT, msgspec.json.encode(body))


def _ignored(*_: object) -> None:
    pass
