"""References to weights: where the files of a model lie, as the registry of models keeps it. Pure; nothing is opened.

/models/qwen3-8b                          a folder, or a GGUF file, on the engines' machines
pvc://models/qwen3-8b                     a folder of a volume claim
s3://bucket/qwen3-8b  gs://…  az://…      a folder of an object store
https://host/qwen3-8b.gguf                a file of a server
oci://registry.example/models/qwen3:8b    an artefact of a registry, with its tag or `@sha256:` digest
"""

import re
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

MAX_REFERENCE_CHARS: Final = 4096
FORMS: Final = "write /folder, pvc://claim/folder, s3://, gs:// or az:// bucket/folder, https://host/file, or oci://registry/name:tag"

_CLAIM: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_BUCKET: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_OCI_NAME: Final = re.compile(r"[a-z0-9]+((\.|_|__|-+|/)[a-z0-9]+)*")
_OCI_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_OCI_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

WeightsKind = Literal["path", "pvc", "object_store", "https", "oci"]


class WeightsPlace(NamedTuple):
    """A reference to weights that was read."""

    kind: WeightsKind
    where: str
    """The claim, bucket, host or registry; empty for a path."""
    path: str
    """The folder or file there."""


def weights_place(text: str) -> WeightsPlace:
    """Read a reference to weights.

    Raises:
        ValueError: the text is none; the message says what is wrong and what to write.
    """
    if len(text) > MAX_REFERENCE_CHARS or not text.isprintable() or " " in text:
        raise ValueError(f"is no reference to weights: it has blanks, unprintable characters, or more than {MAX_REFERENCE_CHARS}; {FORMS}")
    if text.startswith("/"):
        return WeightsPlace("path", "", _straight(text, "path"))
    scheme, mark, rest = text.partition("://")
    if not mark:
        raise ValueError(f"{text[:80]!r} is no reference to weights; {FORMS}")
    where, _, path = rest.partition("/")
    if scheme == "pvc":
        _need(_CLAIM.fullmatch(where), f"pvc://{where[:80]} names no volume claim; write pvc://claim/folder")
        return WeightsPlace("pvc", where, _straight(f"/{path}", "folder of the claim"))
    if scheme in ("s3", "gs", "az"):
        _need(_BUCKET.fullmatch(where), f"{scheme}://{where[:80]} names no bucket; write {scheme}://bucket/folder")
        return WeightsPlace("object_store", where, _straight(f"/{path}", "folder of the bucket"))
    if scheme == "https":
        return _https(text)
    if scheme == "oci":
        return _oci(where, path)
    raise ValueError(f"{scheme[:20]}:// is no place that weights are read from; {FORMS}")


def _https(text: str) -> WeightsPlace:
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    _need(host, f"{text[:80]!r} names no host; write https://host/file")
    # references are shown and audited, so no secret may stand in one
    _need(not (parts.username or parts.password or parts.query or parts.fragment), "has a user, a password or a query; leave them out")
    return WeightsPlace("https", parts.netloc, _straight(parts.path, "file"))


def _oci(registry: str, name: str) -> WeightsPlace:
    tagged = "write oci://registry/name:tag or oci://registry/name@sha256:DIGEST"
    _need(registry and name, f"oci://{registry[:80]} names no artefact; {tagged}")
    repository, at, digest = name.partition("@")
    tag = ""
    if at:
        _need(_OCI_DIGEST.fullmatch(digest), f"@{digest[:80]} is no digest of an artefact; {tagged}")
    else:
        repository, _, tag = name.rpartition(":")
        _need(_OCI_TAG.fullmatch(tag) and repository, f"oci://{registry[:80]}/{name[:80]} has no tag; {tagged}")
    _need(_OCI_NAME.fullmatch(repository), f"{repository[:80]!r} is no name of an artefact (lower-case letters, digits, . _ - /); {tagged}")
    return WeightsPlace("oci", registry, name)


def _straight(path: str, what: str) -> str:
    names = path.strip("/").split("/")
    if {"", ".", ".."} & set(names):
        raise ValueError(f"{path[:80]!r} is no {what}: it is empty, or has `.`, `..` or doubled slashes; {FORMS}")
    return path


def _need(holds: object, sentence: str) -> None:
    if not holds:
        raise ValueError(sentence)
