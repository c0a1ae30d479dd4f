"""How each kind of engine speaks: one frozen value per file, listed here by the name used in `tidegate.yaml`."""

from collections.abc import Mapping
from typing import Final

import msgspec

from backends.dialects import dynamo, llamacpp, openai, sglang, tgi, triton, trtllm, vllm
from backends.dialects.dialect import Dialect
from backends.dialects.fields import fit

__all__ = ["DIALECTS", "Dialect", "body_for", "fit", "model_asked"]

DIALECTS: Final[Mapping[str, Dialect]] = {
    "vllm": vllm.DIALECT,
    "sglang": sglang.DIALECT,
    "trtllm": trtllm.DIALECT,
    "tgi": tgi.DIALECT,
    "triton": triton.DIALECT,
    "dynamo": dynamo.DIALECT,
    "llamacpp": llamacpp.DIALECT,
    "openai": openai.DIALECT,
}


def model_asked(dialect: Dialect, served_model: str, lora: str) -> str:
    """What a request names as its model to be answered by the model, or by an adapter (its engine-side name) on top of it."""
    if not lora:
        return served_model
    assert dialect.lora_model is not None  # adapters of other dialects do not load from settings
    return dialect.lora_model.format(base=served_model, adapter=lora)


def body_for(dialect: Dialect, fields: bytes, served_model: str, *, cache_salt: str | None, priority: bytes = b"") -> bytes:
    """The engine's request body: the model and what only we may set, in front of the checked fields, which stay as they are.

    Args:
        fields: a JSON object without these members (`Ask.fields`, or what `fit` made of it).
        cache_salt: the tenant's salt, for endpoints that take one (`Dialect.salts`); written under the dialect's name for it.
        priority: the member that says how soon (`Priority.written`); empty for none.
    """
    front = b'{"model":%b' % msgspec.json.encode(served_model)
    if cache_salt is not None and dialect.isolation is not None:
        front += b",%b:%b" % (msgspec.json.encode(dialect.isolation.field), msgspec.json.encode(cache_salt))
    if priority:
        front += b"," + priority
    return front + (b"}" if fields == b"{}" else b",%b" % fields[1:])
