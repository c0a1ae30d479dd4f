"""How each kind of engine speaks: one frozen value per file, listed here by the name used in `tidegate.yaml`."""

from collections.abc import Mapping
from typing import Final

import msgspec

from backends.dialects import llamacpp, openai, sglang, vllm
from backends.dialects.dialect import Dialect

__all__ = ["DIALECTS", "Dialect", "body_for"]

DIALECTS: Final[Mapping[str, Dialect]] = {
    "vllm": vllm.DIALECT,
    "sglang": sglang.DIALECT,
    "llamacpp": llamacpp.DIALECT,
    "openai": openai.DIALECT,
}


def body_for(dialect: Dialect, fields: bytes, served_model: str, *, cache_salt: str | None) -> bytes:
    """The engine's request body: the model and what only we may set, in front of the checked fields, which stay as they are.

    Args:
        fields: a JSON object without these members (`Ask.fields`).
        cache_salt: the tenant's salt; written only for dialects that take one.
    """
    front = b'{"model":%b' % msgspec.json.encode(served_model)
    if cache_salt is not None and dialect.takes_cache_salt:
        front += b',"cache_salt":%b' % msgspec.json.encode(cache_salt)
    return front + (b"}" if fields == b"{}" else b",%b" % fields[1:])
