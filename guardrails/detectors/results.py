"""What detectors said of texts, remembered for a while, for each tenant by itself. Texts are not kept.

The key of a result is a digest of the tenant, the detector's version, the direction and the SHA-256 of the text, so that no tenant's
question is answered with what was said to another, and none with what an older version or another rule set said.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from guardrails.ports import Detected

MAX_ENTRIES: Final = 100_000
"""Results of one worker, however small."""
ENTRY_BYTES: Final = 400
"""Memory that a result without findings takes: key, tuple and entry of the mapping; most texts have none."""
FOUND_BYTES: Final = 160
"""Memory that one finding takes."""


def result_key(version: str, tenant: str, direction: str, text: str) -> bytes:
    """The key of what a detector says of a text. 32 bytes; no two different questions have the same digested form."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (version, tenant, direction)]
    head = b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return hashlib.sha256(head + hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()).digest()


class Results:
    """The results of all detectors of one worker, those asked for longest ago forgotten first.

    Args:
        most_bytes: memory for them, as the constants above estimate it; 0 keeps none.
        most: results, whatever their size.
    """

    def __init__(self, most_bytes: int, most: int = MAX_ENTRIES) -> None:
        self._most_bytes = most_bytes
        self._most = most
        self._kept: OrderedDict[bytes, tuple[float, tuple[Detected, ...]]] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: float) -> tuple[Detected, ...] | None:
        """What was said, where it is remembered and not too old."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        expires_at, found = kept
        if now >= expires_at:
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return found

    def put(self, key: bytes, found: tuple[Detected, ...], expires_at: float) -> None:
        """Remember a whole result until a time. One that takes more than a hundredth of all memory is not remembered."""
        self._forget(key)
        size = _size(found)
        if size > self._most_bytes / 100:
            return
        self._kept[key] = (expires_at, found)
        self.bytes += size
        while self._kept and (self.bytes > self._most_bytes or len(self._kept) > self._most):
            self._forget(next(iter(self._kept)))

    def _forget(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= _size(kept[1])


def _size(found: tuple[Detected, ...]) -> int:
    return ENTRY_BYTES + FOUND_BYTES * len(found)
