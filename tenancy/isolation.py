"""Tenant isolation inside engines: the cache salt a tenant's requests carry. Pure.

An engine mixes the salt into its first block hash, so prefixes are reused within one tenant and never between two; without
it, prefix hits of others are measurable (CVE-2025-46570, and timing studies of shared caches).
"""

import hashlib
import hmac
from typing import Final

PREFIX: Final = "tg1-"
"""Prefix of every salt. vLLM keeps salts and adapter names as untagged strings in one tuple, so an adapter named like a salt
would hit its blocks; no adapter may be named with this prefix."""


def cache_salt(secret: bytes, *fields: str) -> str:
    """HMAC-SHA256 over the length-prefixed fields (tenant, model, revision, adapter), as 32 hex digits behind `PREFIX`.

    Length prefixes keep ("org_1", "2345") and ("org_12345", "") apart. vLLM accepts up to 128 characters without `@ / \\ NUL`.
    """
    message = b"".join(b"%d:%b" % (len(raw), raw) for raw in (field.encode() for field in fields))
    return PREFIX + hmac.new(secret, message, hashlib.sha256).hexdigest()[:32]
