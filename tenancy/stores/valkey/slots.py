"""Hash slots of a cluster, as the server computes them. Pure.

Source: the cluster specification: CRC16 (XMODEM) of the part between the first `{` and the next `}`, of the whole key when
there is none, modulo 16,384.
"""

from binascii import crc_hqx
from typing import Final

SLOTS: Final = 16_384


def slot_of(key: bytes) -> int:
    """The slot of a key."""
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return crc_hqx(key, 0) % SLOTS


def tag_in(part: int, parts: int) -> bytes:
    """A short hash tag whose slot lies in one of `parts` equal parts of all slots: the first number for which it does."""
    width = SLOTS // parts
    number = 0
    while not part * width <= slot_of(b"%d" % number) < (part + 1) * width:
        number += 1
    return b"%d" % number
