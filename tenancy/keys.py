"""API keys, pure: their text, their digests, and the snapshot that answers "who is this?" on the request path.

A key is `gw_<env>_<id10>_<secret43><crc6>`. The prefix lets scanners find leaked keys, the id may be logged, the secret has
256 bits, and the checksum detects a typo without a look-up. Only HMAC-SHA256(pepper, secret) is stored: a fast keyed hash is
right for 256-bit secrets (a password would need a slow one), and a stolen database alone opens nothing.

`mint`, `parse` and `rotated` make, read and renew keys, `KeyRecord` is a key as stored, `KeyRing` the snapshot. `tags_of` checks tags of
keys: names and values that operators set and policy rules match. Knows no store and no clock.
"""

import hashlib
import hmac
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from domain.identity import Caller, KeyId, ProjectId, TenantId
from tenancy.key_networks import Networks
from tenancy.rights import INFERENCE_ONLY, NO_RIGHTS_SET, KeyScope, Rights, Role

MAX_TAGS: Final = 16
MAX_TAG_VALUE_CHARS: Final = 64
TAG_NAME: Final = re.compile(r"[a-z][a-z0-9_.-]{0,31}", re.ASCII)
TAG_NAME_RULE: Final = "1 to 32 lower-case letters, digits, dots, dashes and underscores, beginning with a letter"

OWN_TAG: Final = "own."
"""How the names of tags begin that tenant-admins may set on keys of their tenant. Every other tag is set by owners and admins only, because
operators' rules read tags."""

Tags = tuple[tuple[str, str], ...]
"""Names and values, sorted by name; a tuple, so that it cannot be changed."""


class BadTags(ValueError):
    """Tags that no key can have; the message says which and what to write."""


def tags_of(values: Mapping[str, str]) -> Tags:
    """The tags as stored, from values by name.

    Raises:
        BadTags: too many, or a name or value that is out of bounds.
    """
    if len(values) > MAX_TAGS:
        raise BadTags(f"{len(values)} tags; at most {MAX_TAGS} are kept")
    for name, value in values.items():
        if not TAG_NAME.fullmatch(name):
            raise BadTags(f"{ascii(name)[:64]} is no name of a tag; write {TAG_NAME_RULE}")
        if not 0 < len(value) <= MAX_TAG_VALUE_CHARS or not value.isprintable():
            raise BadTags(f"the value of tag {name!r}: write 1 to {MAX_TAG_VALUE_CHARS} printable characters")
    return tuple(sorted(values.items()))


def changed_reserved_tags(before: Tags, after: Tags) -> list[str]:
    """The names of tags that differ between `before` and `after` and that a tenant-admin may not set, sorted."""
    return sorted({name for name, _ in set(before) ^ set(after) if not name.startswith(OWN_TAG)})


def written_tags(words: Iterable[str]) -> dict[str, str]:
    """Parse tags written as `name=value`.

    Raises:
        BadTags: a word without `=`, or the same name twice.
    """
    tags: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadTags(f"{ascii(word)[:64]} is no tag; write name=value")
        if name in tags:
            raise BadTags(f"tag {name!r} is given twice; keep one")
        tags[name] = value
    return tags


KEY_PREFIX: Final = "gw"
SECRET_BYTES: Final = 32
ENTROPY_BYTES: Final = SECRET_BYTES + 8
"""Random bytes `mint` needs: for the secret, and 8 for the id."""

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS: Final = 10
_SECRET_CHARS: Final = 43  # 62 ** 43 > 2 ** 256
_CRC_CHARS: Final = 6  # 62 ** 6 > 2 ** 32
_MAX_CHARS: Final = 96
"""Longer than any key; a longer text is refused before it is parsed."""

_KEY: Final = re.compile(r"gw_([a-z0-9]{1,16})_([0-9A-Za-z]{10})_([0-9A-Za-z]{43})([0-9A-Za-z]{6})", re.ASCII)
_ENVIRONMENT: Final = re.compile(r"[a-z0-9]{1,16}", re.ASCII)

OVERLAP_S: Final = 86_400.0
"""How long the old secret of a rotation works by default: time for one release of every program that uses it."""
MAX_OVERLAP_S: Final = 30 * 86_400

Digest = Callable[[bytes, bytes], bytes]


class Minted(msgspec.Struct, frozen=True):
    """A new key; `text` is shown to its owner once and stored nowhere."""

    text: str
    id: KeyId
    secret: bytes

    def __repr__(self) -> str:
        return f"Minted(id={self.id!r})"


class Parsed(msgspec.Struct, frozen=True, gc=False):
    """The parts of a well-formed key."""

    id: KeyId
    secret: bytes

    def __repr__(self) -> str:
        return f"Parsed(id={self.id!r})"


class Pepper(msgspec.Struct, frozen=True):
    """The secret that digests are keyed with; `kid` names it in stored rows, so that it can be changed later."""

    kid: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Pepper(kid={self.kid!r})"


class CannotRotate(ValueError):
    """The key gets no new secret; the message says why."""


class KeyRecord(msgspec.Struct, frozen=True):
    """One key as stored. Times are seconds since the epoch."""

    id: KeyId
    tenant: TenantId
    project: ProjectId
    kid: str
    digests: tuple[bytes, ...]
    """Digest of the secret; while a rotation overlaps, the digest of the secret before it as well."""
    label: str = ""
    created_unix: float = 0.0
    expires_unix: float | None = None
    revoked_unix: float | None = None
    old_until_unix: float | None = None
    """When the secret before the last rotation ends."""
    disabled: bool = False
    """Refused until it is enabled again; a revocation is for good."""
    scopes: frozenset[KeyScope] = INFERENCE_ONLY
    roles: frozenset[Role] = frozenset()
    rights: Rights = NO_RIGHTS_SET
    version: int = 1
    tags: Tags = ()
    """Matched by policy rules."""
    networks: Networks = ()
    """Where the key may be used from; empty for everywhere."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.digests) <= 2 or (len(self.digests) == 2) is not (self.old_until_unix is not None):
            raise ValueError("a key has one digest, and a second one until its overlap ends")
        if bool(self.roles) is not (KeyScope.ADMIN in self.scopes):
            raise ValueError("a key for the admin port has roles, and no other key has any")
        if not self.scopes:
            raise ValueError("a key is for the data port, for the admin port, or for both")

    def __repr__(self) -> str:
        return f"KeyRecord(id={self.id!r}, tenant={self.tenant!r}, project={self.project!r})"


_NOBODY: Final = KeyRecord(KeyId(""), TenantId(""), ProjectId(""), "", (bytes(32),))
"""The record that a presented secret is compared with when there are no keys, so that an unknown id costs the same time."""


def rotated(record: KeyRecord, kid: str, digest: bytes, now_unix: float, overlap_s: float) -> KeyRecord:
    """The key with a new secret. The secret before it stays valid for `overlap_s`, 0 for not at all; a still older one, in its own
    overlap, ends now.

    Raises:
        CannotRotate: the overlap is out of bounds, or the key is revoked.
    """
    if not 0 <= overlap_s <= MAX_OVERLAP_S:
        raise CannotRotate(f"an overlap of {overlap_s:g} s: between 0 and {MAX_OVERLAP_S} s")
    if record.revoked_unix is not None:
        raise CannotRotate(f"key {record.id!r} is revoked; make a new one")
    if overlap_s == 0 or kid != record.kid:  # digests of another pepper cannot be compared
        return msgspec.structs.replace(record, kid=kid, digests=(digest,), old_until_unix=None)
    return msgspec.structs.replace(record, kid=kid, digests=(digest, record.digests[0]), old_until_unix=now_unix + overlap_s)


def revoked(record: KeyRecord, now_unix: float) -> KeyRecord:
    """The key, refused for good; a key that is revoked already keeps the time of its revocation."""
    return record if record.revoked_unix is not None else msgspec.structs.replace(record, revoked_unix=now_unix)


def mint(environment: str, entropy: bytes) -> Minted:
    """Make a key from fresh random bytes.

    Args:
        environment: 1 to 16 lower-case letters or digits, for instance `live`.
        entropy: `ENTROPY_BYTES` from the operating system's generator.

    Raises:
        ValueError: the environment is malformed or the entropy has another length.
    """
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"{len(entropy)} random bytes given, {ENTROPY_BYTES} needed")
    key_id = _base62(int.from_bytes(entropy[SECRET_BYTES:]) % 62**_ID_CHARS, _ID_CHARS)
    return mint_again(environment, KeyId(key_id), entropy[:SECRET_BYTES])


def mint_again(environment: str, key_id: KeyId, entropy: bytes) -> Minted:
    """Make a new secret for an existing key.

    Args:
        entropy: `SECRET_BYTES` from the operating system's generator.

    Raises:
        ValueError: the environment is malformed or the entropy has another length.
    """
    if not _ENVIRONMENT.fullmatch(environment):
        raise ValueError(f"environment {environment!r}: 1 to 16 lower-case letters or digits")
    if len(entropy) != SECRET_BYTES:
        raise ValueError(f"{len(entropy)} random bytes given, {SECRET_BYTES} needed")
    secret = _base62(int.from_bytes(entropy), _SECRET_CHARS)
    body = f"{KEY_PREFIX}_{environment}_{key_id}_{secret}"
    return Minted(body + _checksum(body), key_id, secret.encode("ascii"))


def parse(text: str) -> Parsed | None:
    """The parts of a key, or None for any text that is no key; total over all strings, and quick for long ones."""
    if len(text) > _MAX_CHARS:
        return None
    matched = _KEY.fullmatch(text)
    if matched is None or _checksum(text[:-_CRC_CHARS]) != matched[4]:
        return None
    return Parsed(KeyId(matched[2]), matched[3].encode("ascii"))


def digest_of(pepper: bytes, secret: bytes) -> bytes:
    """HMAC-SHA256 of a key's secret; 32 bytes."""
    return hmac.digest(pepper, secret, hashlib.sha256().name)


class _Verified(msgspec.Struct, frozen=True):
    """A verified key: its caller, until when it is valid, and on which ports."""

    caller: Caller
    until_unix: float
    scopes: frozenset[KeyScope]


class KeyRing:
    """An immutable snapshot of every key, for the request path.

    Keys that were verified are remembered by their whole text for as long as the snapshot lives, so a key in use costs one
    dictionary look-up. The remembered texts are secrets that callers send with every request anyway, at most two for each key;
    beyond that the oldest is dropped, because the holder of one key can write its environment part in 36 ** 16 ways.
    """

    __slots__ = ("_decoys", "_digest", "_keys", "_most", "_pepper", "_verified")

    def __init__(self, records: Iterable[KeyRecord], pepper: Pepper, digest: Digest = digest_of) -> None:
        self._keys = {record.id: record for record in records if record.kid == pepper.kid}
        self._decoys = tuple(self._keys.values()) or (_NOBODY,)
        self._pepper = pepper.secret
        self._digest = digest
        self._most = 2 * len(self._keys)
        self._verified: dict[str, _Verified] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def authenticate(self, token: str, now_unix: float, scope: KeyScope = KeyScope.INFERENCE) -> Caller | None:
        """The caller behind a key, or None: unknown, wrong, expired, disabled, revoked and not for this port look the same.

        An unknown id costs the same keyed hash as a wrong secret, and digests are compared in constant time.
        """
        known = self._verified.get(token)
        if known is None:
            known = self._verify(token)
            if known is None:
                return None
            if len(self._verified) >= self._most:
                del self._verified[next(iter(self._verified))]
            self._verified[token] = known
        return known.caller if now_unix < known.until_unix and scope in known.scopes else None

    def is_valid(self, key_id: KeyId, now_unix: float) -> bool:
        """Whether the key may still be used, with some secret: it is neither revoked, disabled nor expired."""
        record = self._keys.get(key_id)
        return record is not None and now_unix < _valid_until(record, None)

    def _verify(self, token: str) -> _Verified | None:
        parsed = parse(token)
        if parsed is None:
            return None  # the checksum is no secret: anyone can compute it
        computed = self._digest(self._pepper, parsed.secret)
        decoy = hash(parsed.id) % len(self._decoys)
        record = self._keys.get(parsed.id)
        # an unknown id is compared with some other key: one that is known has to be fetched from memory, and that took 0.2 us
        digests = self._decoys[decoy].digests if record is None else record.digests
        # always two comparisons, so that nobody can tell by time which keys are being rotated
        is_current = hmac.compare_digest(digests[0], computed)
        is_old = hmac.compare_digest(digests[-1], computed)
        if record is None or not is_current | is_old:
            return None
        caller = Caller(record.tenant, record.project, record.id, tags=record.tags, networks=record.networks)
        return _Verified(caller, _valid_until(record, None if is_current else record.old_until_unix), record.scopes)

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"


def _valid_until(record: KeyRecord, old_until_unix: float | None) -> float:
    if record.disabled or record.revoked_unix is not None:
        return -math.inf
    return min(end for end in (record.expires_unix, old_until_unix, math.inf) if end is not None)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CRC_CHARS)


def _base62(number: int, width: int) -> str:
    out = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        out.append(_ALPHABET[digit])
    return "".join(reversed(out))
