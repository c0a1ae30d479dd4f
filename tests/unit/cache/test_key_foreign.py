"""Random look-ups over tenants, projects, users and sharing groups: an answer reaches the scope that it was made for, and no other."""

import random
from typing import Any

import pytest
from msgspec import msgpack

from cache.answers import Answer
from cache.key import Scope, Target, exact_key, scope_of
from cache.stores.memory import MemoryAnswers
from domain.ask import Ask, Endpoint
from domain.identity import Caller, KeyId, ProjectId, TenantId
from domain.usage import NO_USAGE
from gateway.http.openai import interpret

PROBES = 100_000
TARGET = Target(Endpoint.CHAT.path, "m", "llama", "r1")
TENANTS = ("a", "ab", "abc", "b", "bc", "c", "acme", "acme-2")
"""Names that run together with those of projects and users: `a` + `bc` is `ab` + `c`."""
PROJECTS = ("a", "b", "bc", "c", "acme")
USERS = ("", "a", "b", "bc", "1:a")
NAMESPACES = ("", "a", "b")
KINDS = ("tenant", "project", "user", "group")
TEXTS = 40


def scoped(rng: random.Random) -> tuple[str, Scope]:
    """The owner and the scope of a random caller under a random policy."""
    kind, tenant = rng.choice(KINDS), rng.choice(TENANTS)
    caller = Caller(TenantId(tenant), ProjectId(rng.choice(PROJECTS)), KeyId("k"))
    group = rng.choice(PROJECTS) if kind == "group" else ""
    return (f"group:{group}" if group else tenant), scope_of(kind, caller, rng.choice(USERS), group, rng.choice(NAMESPACES))


def asks() -> list[Ask]:
    """Requests whose texts are the same for every tenant."""
    body = b'{"model":"m","messages":[{"role":"user","content":"%d"}],"temperature":0}'
    return [interpret(Endpoint.CHAT, body % number) for number in range(TEXTS)]


@pytest.mark.req("R4", "R50")
def test_no_look_up_of_a_hundred_thousand_finds_what_another_scope_has(record_property: Any) -> None:
    rng = random.Random(4)
    store = MemoryAnswers(10**9)
    texts = asks()
    kept: set[bytes] = set()
    for _ in range(8_000):
        (owner, scope), number = scoped(rng), rng.randrange(TEXTS)
        made_for = msgpack.encode((owner, scope, number))
        kept.add(made_for)
        store.put_now(Answer(owner, exact_key(scope, TARGET, texts[number]), made_for, NO_USAGE, "m", 0.0, 1e9))
    hits = foreign = missed = stolen = 0
    for _ in range(PROBES):
        (owner, scope), number = scoped(rng), rng.randrange(TEXTS)
        asked_for = msgpack.encode((owner, scope, number))
        key = exact_key(scope, TARGET, texts[number])
        found = store.get_now(key, owner, 1.0)
        if found is None:
            missed += asked_for in kept
        else:
            hits += 1
            foreign += found.document != asked_for
        other = scoped(rng)[0]
        stolen += other != owner and store.get_now(key, other, 1.0) is not None
    assert (foreign, stolen, missed) == (0, 0, 0)
    assert hits > PROBES // 10, "too few hits to say anything"
    record_property("figure", f"{foreign} foreign among {hits} hits of {PROBES} look-ups")
