"""The registry of models: which weights a revision of a model is, how they are served, and what was measured of them. Values only."""

from collections.abc import Collection
from typing import Final, Protocol

import msgspec

DIGEST_PREFIX: Final = "sha256:"
PROOF_DIGITS: Final = 12
"""Digits of a digest in an engine's served name, as of adapters: 48 bits tell the revisions of one registry apart."""
MAX_MODEL_REVISIONS: Final = 10_000
"""Revisions of one database, retired ones included: one a day for 27 years."""


class ParallelLayout(msgspec.Struct, frozen=True):
    """Over how many GPUs an engine spreads the model, in each of four ways."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1


class ModelRevision(msgspec.Struct, frozen=True, kw_only=True):
    """One revision of one model. All of it but `retired_unix` and `profile` stays as it was registered."""

    model: str
    revision: str
    weights: str
    """Where the weights lie: `path:`, `pvc:`, `s3:`, `gs:`, `az:`, `https:` or `oci:` reference."""
    digest: str
    """`sha256:` and 64 hexadecimal digits of the manifest (`backends/launch/weights_digest.py`)."""
    architecture: str = ""
    precision: str = ""
    """The type of the weights, as `bfloat16` or `fp8`; empty where nobody said it."""
    layout: ParallelLayout = ParallelLayout()
    tokenizer: str = ""
    """Where the tokenizer lies; empty for beside the weights."""
    context_tokens: int = 0
    """Longest prompt and answer together; 0 where nobody said it."""
    adapters: tuple[str, ...] = ()
    """Names of adapters that go with it."""
    launch: str = ""
    """The launch configuration that it is served with; empty for none."""
    registered_by: str = ""
    registered_unix: float = 0.0
    retired_unix: float | None = None
    profile: str = ""
    """The measured profile (`routing.profile`) as JSON; empty while nobody measured."""

    @property
    def reference(self) -> str:
        """The name under which everything refers to the revision."""
        return f"{self.model}@{self.revision}"


def proof_of(digest: str) -> str:
    """What an engine's served name ends with when it proves this digest, as `@sha256-0123456789ab`."""
    return f"@sha256-{digest.removeprefix(DIGEST_PREFIX)[:PROOF_DIGITS]}"


class Pinned(msgspec.Struct, frozen=True):
    """The revision that the engines of a pool must prove to serve."""

    reference: str
    digest: str
    admit: bool = False
    """Whether an engine that proves nothing is used."""

    def unproven(self, names: Collection[str]) -> str:
        """Why an engine with these served names does not prove the revision; empty when it does."""
        proof = proof_of(self.digest)
        if any(name.endswith(proof) for name in names):
            return ""
        other = next((name for name in names if "@sha256-" in name), "")
        serves = f"it serves {ascii(other)[1:-1][:120]}" if other else "none of its names carries a digest"
        return f"does not prove revision {self.reference}: {serves}, and a name that ends with {proof} is wanted"


class RevisionTaken(ValueError):
    """The model has a revision of this name already."""


class RevisionsFull(ValueError):
    """`MAX_MODEL_REVISIONS` revisions are registered."""


class RevisionMissing(LookupError):
    """The model has no revision of this name."""


class ModelRevisionStore(Protocol):
    """The registered revisions, shared by every gateway on the database. Nothing is ever removed: what served once stays explained."""

    async def page(self, model: str, after: tuple[str, str] | None, most: int) -> list[ModelRevision]:
        """At most `most` revisions by model and name, those behind `after`; of one model where `model` is not empty."""
        ...

    async def get(self, model: str, revision: str) -> ModelRevision:
        """One revision. Raises RevisionMissing."""
        ...

    async def add(self, revision: ModelRevision) -> None:
        """Register a revision. Raises RevisionTaken, RevisionsFull."""
        ...

    async def retire(self, model: str, revision: str, now_unix: float) -> ModelRevision:
        """Mark a revision as retired; one that is retired keeps its first time. Raises RevisionMissing."""
        ...

    async def keep_profile(self, model: str, revision: str, profile: str) -> ModelRevision:
        """Replace the measured profile of a revision. Raises RevisionMissing."""
        ...
