"""The partition of a question: everything that has to be equal before two questions are compared. Pure."""

import hashlib
from typing import Final

from cache.fields import add, effective_members
from cache.key import Scope, Target
from cache.semantic.conversation import Asked
from domain.ask import Ask

VERSION: Final = b"tidegate semantic cache 1"
"""Part of each partition; a change of what a partition, a profile or a label means changes it."""


def partition_of(scope: Scope, target: Target, ask: Ask, asked: Asked, embedder: str) -> bytes:
    """The partition of a request, 32 bytes: SHA-256 over length-prefixed fields, as the exact key is, without the text of the last turn
    and with the embedder.

    So questions are compared only within a scope, a model revision, an adapter, a guard policy, a system prompt with the same earlier
    turns, and the same parameters; members that the gateway does not know count as well.

    Args:
        embedder: `Embedder.version`.
    """
    hashed = hashlib.sha256(VERSION)
    for part in (scope.kind, scope.tenant, scope.name, scope.namespace):
        add(hashed, part.encode())
    for part in (target.endpoint, target.model, target.served, target.revision, target.adapter, target.guards, embedder):
        add(hashed, part.encode())
    add(hashed, asked.before)
    add(hashed, effective_members(ask, scope.tenant or scope.name))
    return hashed.digest()
