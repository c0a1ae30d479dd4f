"""Verdicts on texts that were judged before, so that of a long conversation only what is new is scanned.

A verdict is found by a hash of rules, direction and text that is keyed with a secret and with the tenant: nobody can find out whether
another tenant has sent a text, and the memory holds no text. What a chain says of a text depends on nothing else, so that a remembered
verdict is never wrong; a change of rules changes their version.
"""

from hashlib import blake2b
from typing import Final

import msgspec

from guardrails.chain import Chain
from guardrails.policy import Direction
from guardrails.verdict import GuardVerdict

MAX_REMEMBERED: Final = 32_768
"""Verdicts in each of two generations; about 10 MB where nothing was found, as is usual."""
MAX_FINDINGS: Final = 100
"""A verdict with more findings is not remembered."""
KEY_BYTES: Final = 16
"""128 bits: no two texts of one gateway's life have one key."""

_PASSED: Final = GuardVerdict(text=None)


class RememberedVerdicts:
    """A memory of two generations: when the younger one is full it becomes the older one, whose verdicts are forgotten. Reads and writes
    are single operations on dicts, so threads may share it.

    Args:
        secret: keys the hashes.
        most: verdicts of a generation.
    """

    __slots__ = ("_most", "_old", "_secret", "_young", "found", "judged")

    def __init__(self, secret: bytes, most: int = MAX_REMEMBERED) -> None:
        self._secret = blake2b(secret, digest_size=32).digest()
        self._most = most
        self._young: dict[bytes, GuardVerdict] = {}
        self._old: dict[bytes, GuardVerdict] = {}
        self.found = 0
        """Verdicts that were given from memory."""
        self.judged = 0
        """Texts that were scanned."""

    def judge(self, chain: Chain, text: str, *, tenant: str, version: str, direction: Direction) -> GuardVerdict:
        """The verdict of a chain on a text, its own text left out (`Chain.changed` makes it again).

        Args:
            version: of the rules of the chain, such as `GuardSet.version`.
        """
        hashed = blake2b(digest_size=KEY_BYTES, key=self._secret)
        for part in (tenant, version, direction):
            encoded = part.encode()
            hashed.update(len(encoded).to_bytes(4) + encoded)
        hashed.update(text.encode("utf-8", "surrogatepass"))
        key = hashed.digest()
        verdict = self._young.get(key)
        if verdict is None and (verdict := self._old.get(key)) is not None:
            self._young[key] = verdict
        if verdict is not None:
            self.found += 1
            return verdict
        self.judged += 1
        verdict = msgspec.structs.replace(chain.judge(text), text=None)
        if not verdict.failed and len(verdict.findings) <= MAX_FINDINGS:
            if len(self._young) >= self._most:
                self._old, self._young = self._young, {}
            self._young[key] = _PASSED if verdict == _PASSED else verdict
        return verdict
