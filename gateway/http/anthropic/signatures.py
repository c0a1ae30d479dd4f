"""Signatures of thinking: a caller sends the thinking of earlier turns again, and only what an engine of ours thought is taken for it.

A signature is the beginning of an HMAC-SHA256 over the text (RFC 2104), in base64. Its key is derived from the gateway's secret, so every
worker, host and later start of one deployment knows the signatures of the others. A signature is no secret: who has it, has the text.
"""

import hmac
from base64 import b64encode
from typing import Final

MARK: Final = "tg1."
"""The beginning of a signature, which names its kind and version."""

_BYTES: Final = 24


class ThinkingSigner:
    """Signs texts of thinking and knows its own signatures again.

    Args:
        secret: the gateway's secret, of which the key is derived.
    """

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"tidegate thinking v1", "sha256")

    def sign(self, thinking: str) -> str:
        """The signature of a text."""
        # a lone surrogate can come from an engine's JSON, and only the same text has to give the same bytes
        return MARK + b64encode(hmac.digest(self._key, thinking.encode("utf-8", "surrogatepass"), "sha256")[:_BYTES]).decode()

    def knows(self, thinking: str, signature: str) -> bool:
        """Whether `signature` is of this text, made by this deployment."""
        return hmac.compare_digest(self.sign(thinking).encode(), signature.encode("utf-8", "surrogatepass"))
