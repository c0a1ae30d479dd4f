"""API keys, pure: their text, their digests, and the snapshot that answers "who is this?" on the request path.

A key is `gw_<env>_<id10>_<secret43><crc6>`. The prefix lets scanners find leaked keys, the id may be logged, the secret has
256 bits, and the checksum tells a typo without a look-up. Stored is only HMAC-SHA256(pepper, secret): a fast keyed hash is
right for 256-bit secrets (a password would need a slow one), and a stolen database alone opens nothing.

Knows no store and no clock.
"""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from domain.identity import Caller, KeyId, ProjectId, TenantId

PREFIX: Final = "gw"
ENTROPY_BYTES: Final = 40
"""Random bytes `mint` needs: 32 for the secret, 8 for the id."""

_ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_CHARS: Final = 10
_SECRET_CHARS: Final = 43  # 62 ** 43 > 2 ** 256
_CRC_CHARS: Final = 6  # 62 ** 6 > 2 ** 32
_MAX_CHARS: Final = 96
"""Longer than any key; what is longer is refused before anything looks at it."""

_KEY: Final = re.compile(r"gw_([a-z0-9]{1,16})_([0-9A-Za-z]{10})_([0-9A-Za-z]{43})([0-9A-Za-z]{6})", re.ASCII)
_ENVIRONMENT: Final = re.compile(r"[a-z0-9]{1,16}", re.ASCII)

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


class KeyRecord(msgspec.Struct, frozen=True):
    """One key as stored. Two digests while a rotation overlaps; times are seconds since the epoch."""

    id: KeyId
    tenant: TenantId
    project: ProjectId
    kid: str
    digests: tuple[bytes, ...]
    label: str = ""
    created_unix: float = 0.0
    expires_unix: float | None = None
    revoked_unix: float | None = None

    def __repr__(self) -> str:
        return f"KeyRecord(id={self.id!r}, tenant={self.tenant!r}, project={self.project!r})"


def mint(environment: str, entropy: bytes) -> Minted:
    """Make a key from fresh random bytes.

    Args:
        environment: 1 to 16 lower-case letters or digits, for instance `live`.
        entropy: `ENTROPY_BYTES` from the operating system's generator.

    Raises:
        ValueError: the environment is malformed or the entropy has another length.
    """
    if not _ENVIRONMENT.fullmatch(environment):
        raise ValueError(f"environment {environment!r}: 1 to 16 lower-case letters or digits")
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"{len(entropy)} random bytes given, {ENTROPY_BYTES} needed")
    secret = _base62(int.from_bytes(entropy[:32]), _SECRET_CHARS)
    key_id = _base62(int.from_bytes(entropy[32:]) % 62**_ID_CHARS, _ID_CHARS)
    body = f"{PREFIX}_{environment}_{key_id}_{secret}"
    return Minted(body + _checksum(body), KeyId(key_id), secret.encode("ascii"))


def parse(text: str) -> Parsed | None:
    """The parts of a key, or None for anything that is none; total over all strings, and quick for long ones."""
    if len(text) > _MAX_CHARS:
        return None
    found = _KEY.fullmatch(text)
    if found is None or _checksum(text[:-_CRC_CHARS]) != found[4]:
        return None
    return Parsed(KeyId(found[2]), found[3].encode("ascii"))


def digest_of(pepper: bytes, secret: bytes) -> bytes:
    """HMAC-SHA256; 32 bytes."""
    return hmac.digest(pepper, secret, hashlib.sha256().name)


class KeyRing:
    """An immutable snapshot of every key, for the request path.

    Keys that were verified are remembered by their whole text for as long as the snapshot lives, so a key in use costs one
    dictionary look-up. The remembered texts are secrets that callers send with every request anyway; their number is
    bounded by the keys there are, and a revocation replaces the snapshot.
    """

    __slots__ = ("_digest", "_dummy", "_keys", "_pepper", "_verified")

    def __init__(self, records: Iterable[KeyRecord], pepper: Pepper, digest: Digest = digest_of) -> None:
        self._keys = {record.id: record for record in records if record.kid == pepper.kid}
        self._pepper = pepper.secret
        self._digest = digest
        self._dummy = (b"\0" * 32,)
        self._verified: dict[str, KeyRecord] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def authenticate(self, token: str, now_unix: float) -> Caller | None:
        """The caller behind a key, or None: unknown, wrong, expired and revoked look the same.

        An unknown id costs the same keyed hash as a wrong secret, and digests are compared in constant time.
        """
        record = self._verified.get(token)
        if record is None:
            record = self._verify(token)
            if record is None:
                return None
            self._verified[token] = record
        if record.revoked_unix is not None or (record.expires_unix is not None and record.expires_unix <= now_unix):
            return None
        return Caller(record.tenant, record.project, record.id)

    def _verify(self, token: str) -> KeyRecord | None:
        parsed = parse(token)
        if parsed is None:
            return None  # the checksum is no secret: anyone can compute it
        record = self._keys.get(parsed.id)
        computed = self._digest(self._pepper, parsed.secret)
        matches = False
        for stored in record.digests if record is not None else self._dummy:
            matches |= hmac.compare_digest(stored, computed)
        return record if matches else None

    def __repr__(self) -> str:
        return f"KeyRing({len(self._keys)} keys)"


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode("ascii")), _CRC_CHARS)


def _base62(number: int, width: int) -> str:
    out = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        out.append(_ALPHABET[digit])
    return "".join(reversed(out))
