"""The dialects: the API of each kind of engine as one frozen value per file, listed here by the name used in `tidegate.yaml`."""

from collections.abc import Mapping
from typing import Final

import msgspec

from backends.dialects import dynamo, llamacpp, openai, sglang, tgi, triton, trtllm, vllm
from backends.dialects.dialect import Dialect
from backends.dialects.fields import fit
from backends.dialects.thinking import Efforts, ThinkingFields
from backends.forms import USAGE_ASKED, written_form

__all__ = ["DIALECTS", "Dialect", "body_for", "fit", "form_for", "model_asked", "with_efforts"]

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


def with_efforts(dialect: Dialect, efforts: Efforts | None) -> Dialect:
    """The dialect for a model that takes these efforts in place of the switch for thinking; the dialect itself for None."""
    if efforts is None:
        return dialect
    thinking = msgspec.structs.replace(dialect.fields.thinking or ThinkingFields(), efforts=efforts)
    return msgspec.structs.replace(dialect, fields=msgspec.structs.replace(dialect.fields, thinking=thinking))


def model_asked(dialect: Dialect, served_model: str, lora: str) -> str:
    """The model name that a request must carry for the served model, or for the adapter with this engine-side name on top of it."""
    if not lora:
        return served_model
    assert dialect.lora_model is not None  # settings refuse adapters for other dialects
    return dialect.lora_model.format(base=served_model, adapter=lora)


def body_for(dialect: Dialect, fields: bytes, served_model: str, *, cache_salt: str | None, priority: bytes = b"") -> bytes:
    """The engine's request body: the model and the members that only the gateway may set, in front of the checked fields, which stay
    unchanged.

    Args:
        fields: a JSON object without these members (`Ask.fields`, or the result of `fit`).
        cache_salt: the tenant's salt, for endpoints that take one (`Dialect.salts`); written under the dialect's field name.
        priority: the member with the priority (`Priority.written`); empty for none.
    """
    model, salt = msgspec.json.encode(served_model), b""
    if cache_salt is not None and dialect.isolation is not None:
        salt = b",%b:%b" % (msgspec.json.encode(dialect.isolation.field), msgspec.json.encode(cache_salt))
    comma, rest = (b"", b"}") if fields == b"{}" else (b",", memoryview(fields)[1:])
    # one copy of what may be megabytes
    return b"".join((b'{"model":', model, salt, b"," + priority if priority else b"", comma, rest))


def form_for(fields: bytes, served_model: str, upload: bytes) -> tuple[bytes, bytes]:
    """The engine's request as a form, and its content type: the model, the checked fields and the recording, and nothing else that the
    caller sent. No priority and no salt are in it: the engines' forms have no such fields.

    Args:
        fields: as for `body_for`, with the recording's name and size as `file`.
        upload: the bytes of the recording.
    """
    members = msgspec.json.decode(fields)
    file = members.pop("file")
    if (options := members.pop("stream_options", None)) is not None:
        members[USAGE_ASKED] = options["include_usage"]
    known = [(name, value) for name, value in members.items() if value is not None]
    return written_form([("model", served_model), *known], file["name"], upload)
