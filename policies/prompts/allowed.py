"""`prompts` of a policy file: the prompts of a tenant, and the version of each that a request gets. Pure."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

import msgspec
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from domain.strict import Strict
from policies.prompts.prompt import RegisteredPrompt
from policies.prompts.schema import PromptId, PromptVersion
from policies.rollout.assignment import place
from policies.yaml.located import Located
from policies.yaml.problems import Path_, Problem

Registry = Mapping[str, Mapping[int, RegisteredPrompt]]
"""All prompts, by id and version."""

MAX_VERSIONS: Final = 16
"""Versions of one prompt that a tenant has at a time."""
_MAX_LISTED: Final = 10


class WeightedVersion(Strict):
    """One of several versions."""

    version: PromptVersion = Field(description="Number of the version.")
    weight: float = Field(
        ge=0,
        le=1_000_000,
        description="Weight of the version: its share of the conversations, relative to the other weights; 0 for a version that only "
        "requests by number get.",
    )


class PromptEntry(Strict):
    """One prompt, with the versions that exist for the tenant."""

    id: PromptId = Field(description="Id of the prompt.")
    version: PromptVersion | None = Field(default=None, description="The only version that exists for the tenant.")
    versions: list[WeightedVersion] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_VERSIONS,
        description="Instead of `version`: the versions that exist for the tenant, with weights that assign requests without a version.",
    )

    @model_validator(mode="after")
    def _has_version_or_versions(self) -> Self:
        if (self.version is None) is (self.versions is None):
            message = (
                "has version and versions; keep one"
                if self.version
                else "says nothing of versions; write version, versions, or the id alone"
            )
            raise ValueError(message)
        if self.versions is not None:
            if not any(weighted.weight for weighted in self.versions):
                raise ValueError("gives no version any weight; give one")
            numbers = [weighted.version for weighted in self.versions]
            if twice := next((number for number in numbers if numbers.count(number) > 1), None):
                raise ValueError(f"lists version {twice} twice; keep one")
        return self


_Pattern = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_*-]{1,64}$")]
AllowedPrompt: Any = Annotated[
    Annotated[_Pattern, Tag("pattern")] | Annotated[PromptEntry, Tag("entry")],
    Discriminator(lambda value: "pattern" if isinstance(value, str) else "entry"),
]


class AllowedVersions(msgspec.Struct, frozen=True):
    """One prompt of a tenant: its versions, and the share of the conversations that each gets."""

    id: str
    versions: Mapping[int, RegisteredPrompt]
    """The versions that exist for the tenant."""
    shares: tuple[tuple[float, int], ...]
    """The end of each version's interval on [0, 1), and the version; at least one."""

    def version(self, wanted: int | None, key: str) -> RegisteredPrompt | None:
        """The version that a request gets; None when it names one that does not exist.

        Args:
            wanted: the version that the request names; None to choose one by hash of `key`: equal keys get the same version.
            key: the sticky key of the request.
        """
        if wanted is not None:
            return self.versions.get(wanted)
        if len(self.shares) == 1:
            return self.versions[self.shares[0][1]]
        at = place(f"prompt {self.id}", key)
        return self.versions[next((version for end, version in self.shares if at < end), self.shares[-1][1])]


_NONE: Final[Mapping[str, AllowedVersions]] = MappingProxyType({})


def allowed_of(entries: Iterable["str | PromptEntry"], registry: Registry) -> Mapping[str, AllowedVersions]:
    """The prompts of a validated policy file, by id. An entry with an id takes precedence over a pattern that matches the id."""
    written = list(entries)
    if not written:
        return _NONE
    allowed: dict[str, AllowedVersions] = {}
    for pattern in written:
        if isinstance(pattern, str):
            for name, versions in registry.items():
                if fnmatchcase(name, pattern):
                    allowed[name] = AllowedVersions(name, versions, ((1.0, max(versions)),))
    for entry in written:
        if isinstance(entry, PromptEntry) and entry.id in registry:
            weights = (
                {weighted.version: weighted.weight for weighted in entry.versions or ()} if entry.version is None else {entry.version: 1.0}
            )
            whole = sum(weights.values())
            ends = accumulate(weight / whole for weight in weights.values())
            shares = tuple((end, version) for end, (version, weight) in zip(ends, weights.items(), strict=True) if weight)
            allowed[entry.id] = AllowedVersions(entry.id, {version: registry[entry.id][version] for version in weights}, shares)
    return MappingProxyType(allowed)


def allowed_problems(located: Located, registry: Registry) -> Iterator[Problem]:
    """References to unknown prompts and versions, and prompts that are listed twice. Reads the data as written, so that other mistakes in
    the file hide none of these."""
    entries = located.value("prompts")
    seen: set[str] = set()
    for i in range(len(entries) if isinstance(entries, list) else 0):
        at: Path_ = ("prompts", i)
        entry = located.value(*at)
        name = located.value(*at, "id") if isinstance(entry, dict) else entry
        at = (*at, "id") if isinstance(entry, dict) else at
        if not isinstance(name, str):
            continue
        if name in seen:
            yield located.problem(at, f"{name!r} is listed twice", "keep one")
        seen.add(name)
        if isinstance(entry, str) and "*" in name:
            if name != "*" and not any(fnmatchcase(prompt_id, name) for prompt_id in registry):
                yield located.problem(at, f"no prompt is called {name!a:.70}", _suggestion(name, registry))
        elif name not in registry:
            yield located.problem(at, f"there is no prompt {name!a:.70}", _suggestion(name, registry))
        elif isinstance(entry, dict):
            yield from _version_problems(located, ("prompts", i), name, registry[name])


def _version_problems(located: Located, at: Path_, name: str, versions: Mapping[int, RegisteredPrompt]) -> Iterator[Problem]:
    listed_versions = located.value(*at, "versions")
    paths = [
        (*at, "version"),
        *((*at, "versions", j, "version") for j in range(len(listed_versions) if isinstance(listed_versions, list) else 0)),
    ]
    for path in paths:
        version = located.value(*path)
        if type(version) is int and version not in versions:
            listed = ", ".join(map(str, sorted(versions)[-_MAX_LISTED:]))
            yield located.problem(path, f"the prompt {name!a:.70} has no version {version}", f"there are: {listed}")


def _suggestion(name: str, registry: Registry) -> str:
    near = difflib.get_close_matches(name, registry, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    listed = sorted(registry)
    return f"there are: {', '.join(listed[:_MAX_LISTED]) or 'none'}{', …' if len(listed) > _MAX_LISTED else ''}"
