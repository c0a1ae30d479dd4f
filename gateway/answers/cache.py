"""The answer cache of one worker: its store and the flights under way."""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from cache.answers import Answer
from cache.ports import AnswerStore, Selection
from cache.semantic.control import Proof
from cache.semantic.ports import IndexFigures
from cache.stores.memory import MemoryAnswers
from domain.clock import WallClock
from domain.usage import Usage
from gateway.answers.flights import SharedFlight
from tenancy.keys import Pepper

if TYPE_CHECKING:
    from gateway.answers.semantic import SemanticCache

_USER_DIGEST_CHARS: Final = 32


def cache_secret(pepper: Pepper) -> bytes:
    """The secret of the answer cache, derived, so that one secret configures all and none reveals another."""
    return hmac.new(pepper.secret, b"tidegate answer cache v1", hashlib.sha256).digest()


def digest_of_user(secret: bytes, label: str) -> str:
    """A keyed digest of an end user's label: the cache can erase a user's answers without knowing the user."""
    return hmac.new(secret, b"end user of an answer" + label.encode(), hashlib.sha256).hexdigest()[:_USER_DIGEST_CHARS]


class SimilarState(msgspec.Struct, frozen=True):
    """How the similar questions of one worker stand."""

    state: str
    """`unused` while no request has asked for them, `starting`, `ready`, or why they cannot be had."""
    index: IndexFigures | None = None


class AuditedHits(msgspec.Struct, frozen=True):
    """What audits of one worker say of the hits that one owner's similar questions are given."""

    owner: str
    allowed: float
    """Wrong answers per hit that the policy allows."""
    proof: Proof


class SemanticSource(Protocol):
    """The similar questions of a worker, which are made ready when they are first asked for: most gateways never need them."""

    why: str
    """Why they cannot be had, for an operator; empty where they can, or while nobody has asked."""

    def ready(self) -> "SemanticCache | None":
        """The similar questions; None while they are being made ready, which the first call begins, and where they cannot be had."""
        ...

    def state(self) -> SimilarState:
        """How they stand."""
        ...

    def audited(self) -> list[AuditedHits]:
        """What audits say of the hits of each owner; nothing before there are any."""
        ...

    async def purge(self, selection: Selection) -> int:
        """Remove questions; raises while a shared index cannot be reached."""
        ...

    async def close(self) -> None:
        """End what is under way, and connections."""
        ...


class AnswerCache:
    """The cache as the steps of a request use it.

    Args:
        store: where answers are kept.
        wall: seconds since the epoch.
        digest_of_user: a keyed digest of an end user's label, so that no store has the label itself.
    """

    def __init__(
        self, store: AnswerStore | None = None, wall: WallClock = lambda: 0.0, digest_of_user: Callable[[str], str] = lambda _: ""
    ) -> None:
        self.store: AnswerStore = store if store is not None else MemoryAnswers(0)
        self.flights: dict[bytes, SharedFlight] = {}
        """The flights under way, by key. Bounded by the requests under way."""
        self.purges: dict[str, int] = {}
        """How many purges of each owner this worker has heard of: an answer that was under way during one is not kept."""
        self.semantic: SemanticSource | None = None
        """Similar questions; None where this worker has none."""
        self._wall = wall
        self.digest_of_user = digest_of_user

    async def find(self, keys: Sequence[bytes], owner: str, max_age_s: float | None) -> list[Answer | None]:
        """The kept answer of each key, not older than `max_age_s`."""
        now, store = self._wall(), self.store
        found = [store.get_now(key, owner, now) for key in keys] if store.in_process else await store.get(keys, owner, now)
        return [answer if answer is not None and _is_young(answer, now, max_age_s) else None for answer in found]

    async def find_one(self, key: bytes, owner: str, max_age_s: float | None) -> Answer | None:
        """As `find`, of one key in a store elsewhere."""
        return (await self.find((key,), owner, max_age_s))[0]

    def find_now(self, key: bytes, owner: str, max_age_s: float | None) -> Answer | None:
        """As `find_one`, in a store in this process: without a coroutine, because every miss asks."""
        now = self._wall()
        answer = self.store.get_now(key, owner, now)
        return answer if answer is not None and _is_young(answer, now, max_age_s) else None

    def answer(
        self, key: bytes, owner: str, document: bytes, usage: Usage, *, model: str, ttl_s: float, namespace: str, writer: str, user: str
    ) -> Answer:
        """A new answer, made now."""
        now = self._wall()
        return Answer(owner, key, document, usage, model, now, now + ttl_s, namespace, writer, self.digest_of_user(user) if user else "")

    def age_s(self, answer: Answer) -> float:
        """Seconds since an answer was made."""
        return max(0.0, self._wall() - answer.kept_at)

    async def close(self) -> None:
        """End what the similar questions have under way; the store's connections are their opener's."""
        if self.semantic is not None:
            await self.semantic.close()

    async def purge(self, selection: Selection) -> int:
        """Remove answers, those under way included; returns how many were there. Raises while a shared store cannot be reached."""
        self.purges[selection.owner] = self.purges.get(selection.owner, 0) + 1
        if self.semantic is not None:
            await self.semantic.purge(selection)
        return await self.store.purge(selection)


def _is_young(answer: Answer, now: float, max_age_s: float | None) -> bool:
    return max_age_s is None or now - answer.kept_at <= max_age_s
