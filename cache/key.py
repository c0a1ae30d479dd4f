"""The key of a request in the exact cache: SHA-256 over typed, length-prefixed fields.

Two requests have one key only when an engine would be asked for the same answer on behalf of the same scope. The body enters as its
prompt and its other members sorted by name, and every field with its length, so that no value can pass for another field (R49, R50).
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from cache.fields import add, effective_members, joined
from domain.ask import Ask
from domain.identity import Caller

VERSION: Final = b"tidegate exact cache 2"
"""Part of each key; a change of what a key means changes it."""

DIGEST_BYTES: Final = 32


class Scope(msgspec.Struct, frozen=True, gc=False):
    """The callers that share cached answers."""

    kind: str
    """`tenant`, `project`, `user` or `group`."""
    tenant: str
    name: str = ""
    """The project, the end user or the sharing group; empty for the whole tenant."""
    namespace: str = ""
    """The part of the scope that the request itself names; empty for none."""


def scope_of(kind: str, caller: Caller, user: str, group: str = "", namespace: str = "") -> Scope:
    """The scope of a caller's request.

    Args:
        kind: what the policy says: `tenant`, `project`, `user` or `group`.
        user: the end-user label of the request.
        group: the sharing group, for the kind `group`; it spans tenants, so the scope then names no tenant.
        namespace: the namespace that the request names.
    """
    if kind == "group":
        return Scope(kind, "", group, namespace)
    name = {"project": caller.project, "user": f"{len(caller.project)}:{caller.project}{user}"}.get(kind, "")
    return Scope(kind, caller.tenant, name, namespace)


class Target(msgspec.Struct, frozen=True, gc=False):
    """Everything beside the request that an answer depends on."""

    endpoint: str
    """The endpoint's path."""
    model: str
    """The public name of the model, which stands in the reply."""
    served: str
    """The name by which the pool's engines know the model."""
    revision: str
    adapter: str = ""
    """The digest of the LoRA adapter, its name where it has none, or empty for the base model."""
    guards: str = ""
    """The version of the guard policy that answers pass."""


def exact_key(scope: Scope, target: Target, ask: Ask) -> bytes:
    """The key of a request, 32 bytes.

    The prompt is hashed as it stands in the body, so bodies have a bound (`cache.eligible.MAX_BODY_BYTES`).
    """
    hashed = _begun(scope, target, b"request").copy()
    hashed.update(joined((effective_members(ask, scope.tenant or scope.name), ask.prompt)))
    return hashed.digest()


def input_keys(scope: Scope, target: Target, ask: Ask, inputs: Sequence[bytes]) -> list[bytes]:
    """The keys of the inputs of a request for embeddings, each with everything else that the request says.

    Args:
        inputs: each input as JSON.
    """
    shared = _begun(scope, target, b"one input").copy()
    add(shared, effective_members(ask, scope.tenant or scope.name))
    keys = []
    for one in inputs:
        own = shared.copy()
        add(own, one)
        keys.append(own.digest())
    return keys


@functools.lru_cache(4096)
def _begun(scope: Scope, target: Target, kind: bytes) -> "hashlib._Hash":
    """The hash over everything beside the body; a copy goes on with that."""
    begun = hashlib.sha256(VERSION)
    for part in (scope.kind, scope.tenant, scope.name, scope.namespace):
        add(begun, part.encode())
    for part in (target.endpoint, target.model, target.served, target.revision, target.adapter, target.guards):
        add(begun, part.encode())
    add(begun, kind)
    return begun
