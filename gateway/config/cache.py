"""`cache` of `tidegate.yaml`: where answers are kept that policies cache, and how similar questions are found."""

from pydantic import Field, field_validator

from domain.strict import Strict
from tenancy.counter_url import StoreKind, parse_counter_url


class SemanticSettings(Strict):
    """How similar questions are found, for policies with `cache.semantic`. Needs the extra `semantic`."""

    embedder_pool: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="The pool whose engines make the vectors of questions (`/v1/embeddings`). Unset: the small model that the extra "
        "`semantic` installs, in the worker itself.",
    )
    wait_ms: float = Field(
        default=20.0,
        ge=1,
        le=1000,
        description="How long a look-up waits for a vector, and as long again for `index`, in milliseconds; later than that it is a miss.",
    )
    index: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="A Postgres with the extension pgvector in which workers and gateways share questions: `postgresql://…`. Unset: each "
        "worker keeps its own in memory. Answers stay in `cache.store`, which then has to be set too.",
    )
    judge_pool: str | None = Field(
        default=None,
        min_length=1,
        max_length=63,
        description="The pool whose engines are asked whether two answers say the same where their vectors do not tell, for "
        "`decision: verified`. Unset: such answers teach nothing.",
    )
    judge_per_hour: int = Field(
        default=60, ge=1, le=1_000_000, description="Questions to `judge_pool` in an hour, at most, of each worker."
    )
    memory_bytes: int = Field(
        default=64 * 1024**2,
        ge=1024**2,
        le=64 * 1024**3,
        description="Memory for questions and their vectors, of all workers together. Not used with `index`.",
    )
    questions_per_owner: int = Field(
        default=10_000,
        ge=1,
        le=10_000_000,
        description="Questions kept for one tenant or sharing group, at most; of each worker without `index`.",
    )

    @field_validator("index")
    @classmethod
    def _is_postgres(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError(
                "is no address of a Postgres; write postgresql://user@host/database, or leave it out to keep questions in memory"
            )
        return url


class CacheSettings(Strict):
    """Where answers are kept that policies cache (`cache` of a policy file)."""

    memory_bytes: int = Field(
        default=64 * 1024**2,
        ge=0,
        le=64 * 1024**3,
        description="Memory for kept answers, of all workers together; 0 keeps none, and equal requests still share one engine call. Not "
        "used with `store`.",
    )
    store: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="Redis or Valkey in which workers and gateways share kept answers: `redis://…`, `rediss://…`, `unix:///socket`, "
        "`redis+sentinel://…` or `redis+cluster://…`, as in `stores.counters`, but best a server of its own. Unset: each worker keeps its "
        "own answers in memory.",
    )
    store_bytes_per_owner: int = Field(
        default=256 * 1024**2,
        ge=1024**2,
        le=1024**4,
        description="Bytes that the answers of one tenant or sharing group take in `store`, at most.",
    )

    semantic: SemanticSettings = Field(default=SemanticSettings(), description="How similar questions are found.")

    @field_validator("store")
    @classmethod
    def _is_shared(cls, url: str | None) -> str | None:
        if url is not None and parse_counter_url(url).kind in (StoreKind.MEMORY, StoreKind.EMBEDDED):
            raise ValueError("names no server; leave it out to keep answers in memory, or write redis://host:port")
        return url
