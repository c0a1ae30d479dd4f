"""The registry of models in memory, for tests and for trying things out."""

import msgspec

from domain.model_revisions import MAX_MODEL_REVISIONS, ModelRevision, RevisionMissing, RevisionsFull, RevisionTaken


class MemoryModelRevisions:
    """The registry of models in memory (`domain.model_revisions.ModelRevisionStore`)."""

    def __init__(self) -> None:
        self._revisions: dict[tuple[str, str], ModelRevision] = {}

    async def page(self, model: str, after: tuple[str, str] | None, most: int) -> list[ModelRevision]:
        keys = [key for key in sorted(self._revisions) if model in ("", key[0]) and (after is None or key > after)]
        return [self._revisions[key] for key in keys[:most]]

    async def get(self, model: str, revision: str) -> ModelRevision:
        found = self._revisions.get((model, revision))
        if found is None:
            raise RevisionMissing(f"{model}@{revision}")
        return found

    async def add(self, revision: ModelRevision) -> None:
        key = (revision.model, revision.revision)
        if key in self._revisions:
            raise RevisionTaken(f"model {revision.model!r} has a revision {revision.revision!r} already; a revision is never replaced")
        if len(self._revisions) >= MAX_MODEL_REVISIONS:
            raise RevisionsFull(f"{MAX_MODEL_REVISIONS} revisions are registered already")
        self._revisions[key] = revision

    async def retire(self, model: str, revision: str, now_unix: float) -> ModelRevision:
        found = await self.get(model, revision)
        retired_unix = now_unix if found.retired_unix is None else found.retired_unix
        return self._put(msgspec.structs.replace(found, retired_unix=retired_unix))

    async def keep_profile(self, model: str, revision: str, profile: str) -> ModelRevision:
        return self._put(msgspec.structs.replace(await self.get(model, revision), profile=profile))

    def _put(self, revision: ModelRevision) -> ModelRevision:
        self._revisions[(revision.model, revision.revision)] = revision
        return revision
