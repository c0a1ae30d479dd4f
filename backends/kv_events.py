"""What engines publish of their KV cache, as values: one msgpack batch in, Stored / Removed / Cleared out. Pure.

vLLM and SGLang send `[time, [events…], rank]`. An event is a map with a "type" (today) or an array that begins with it (older
releases); both are read, and fields and positions that are not known are ignored. An event whose type is not known is not: it
may have removed blocks, so its batch is refused and the stream is no longer exact.

Events carry every prompt's tokens and the tenants' cache salts in clear: neither may reach a log, an error or a `repr`.
"""

from typing import Any, Final, TypeAlias

import msgspec

MASK: Final = (1 << 64) - 1
MAX_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Largest batch read: more than a million tokens, where an engine's step computes some ten thousand."""
MAX_EVENTS: Final = 100_000
"""Events in one batch; a full KV cache that is turned over in one step has fewer."""
MAX_NAME_CHARS: Final = 256
"""Longest adapter name or salt; vLLM takes salts of 128."""
MAX_BLOCK_SIZE: Final = 65_536
GPU: Final = "GPU"


class _Secretive(msgspec.Struct, frozen=True, gc=False):
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Stored(_Secretive, frozen=True, gc=False):
    """Blocks that can be found from now on, a chain in order. An engine stores a block again when it computed it twice."""

    hashes: list[int]
    """Unsigned 64 bits each."""
    parent: int | None
    """The block before the first one; None at a prompt's beginning."""
    tokens: list[int | tuple[int, int]]
    """Secret. Pairs where an engine with speculative decoding hashes pairs."""
    block_size: int
    lora: str | None = None
    salt: str | None = None
    """Secret. Only a prompt's first block has one; its children inherit it through the parent."""
    by_tokens: bool = True
    """Whether tokens, salt and adapter alone tell these blocks: `block_size` tokens for each hash, and no image in them."""
    medium: str = GPU
    group: int | None = None

    def __repr__(self) -> str:
        return f"Stored({len(self.hashes)} blocks of {self.block_size}, {'root' if self.parent is None else 'child'})"


class Removed(_Secretive, frozen=True, gc=False):
    """Blocks of which one copy is gone."""

    hashes: list[int]
    medium: str = GPU
    group: int | None = None

    def __repr__(self) -> str:
        return f"Removed({len(self.hashes)} blocks)"


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """The engine holds nothing any more."""


Event: TypeAlias = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one step of an engine changed."""

    at: float
    """Seconds since the epoch, by the engine's clock."""
    events: list[Event]


_Hash: TypeAlias = int | bytes


class _StoredMap(msgspec.Struct, tag="BlockStored", frozen=True, gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int | tuple[int, int]]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    cache_salt: str | None = None


class _RemovedMap(msgspec.Struct, tag="BlockRemoved", frozen=True, gc=False):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedMap(msgspec.Struct, tag="AllBlocksCleared", frozen=True, gc=False):
    pass


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, frozen=True, gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int | tuple[int, int]]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    cache_salt: None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, frozen=True, gc=False):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True, frozen=True, gc=False):
    pass


class _MapBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    at: float
    events: list[_StoredMap | _RemovedMap | _ClearedMap]


class _ArrayBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    at: float
    events: list[_StoredArray | _RemovedArray | _ClearedArray]


_MAPS: Final = msgspec.msgpack.Decoder(_MapBatch)
_ARRAYS: Final = msgspec.msgpack.Decoder(_ArrayBatch)
_CLEARED: Final = Cleared()


def decode(payload: bytes) -> Batch:
    """The batch in a message's last frame.

    Raises:
        ValueError: it is too large, no msgpack, or of another shape; says where, never what stands there.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise ValueError(f"has {len(payload)} bytes, more than {MAX_BATCH_BYTES}")
    wire = _wire(payload)
    if len(wire.events) > MAX_EVENTS:
        raise ValueError(f"has {len(wire.events)} events, more than {MAX_EVENTS}")
    if not 0 <= wire.at < 1e12:
        raise ValueError("has no time of day")
    return Batch(wire.at, [_event(event) for event in wire.events])


def _wire(payload: bytes) -> _MapBatch | _ArrayBatch:
    try:
        return _MAPS.decode(payload)
    except (ValueError, RecursionError) as error:
        if "Expected `object`, got `array`" not in str(error):
            raise ValueError(_said(error)) from None
    try:
        return _ARRAYS.decode(payload)  # an older release
    except (ValueError, RecursionError) as error:
        raise ValueError(_said(error)) from None


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    text = str(error)
    if text.startswith("Invalid value"):
        return f"has an event of unknown type{text[text.rfind(' - at ') :][:80] if ' - at ' in text else ''}"
    return f"is no batch of KV events: {text[:160]}"


def _event(wire: _StoredMap | _RemovedMap | _ClearedMap | _StoredArray | _RemovedArray | _ClearedArray) -> Event:
    if isinstance(wire, _StoredMap | _StoredArray):
        return _stored(wire)
    if isinstance(wire, _RemovedMap | _RemovedArray):
        return Removed([_hash(h) for h in wire.block_hashes], _named(wire.medium) or GPU, wire.group_idx)
    return _CLEARED


def _stored(wire: _StoredMap | _StoredArray) -> Stored:
    hashes = [_hash(h) for h in wire.block_hashes]
    if not 1 <= wire.block_size <= MAX_BLOCK_SIZE:
        raise ValueError(f"has blocks of {wire.block_size} tokens")
    lora = _named(wire.lora_name)
    parent = wire.parent_block_hash
    salt, others = _named(wire.cache_salt), False
    if wire.extra_keys is not None:
        for at, keys in enumerate(wire.extra_keys):
            rest = [key for key in keys if key != lora] if keys else ()
            if rest and at == 0 and parent is None and len(rest) == 1 and isinstance(rest[0], str):
                salt = _named(rest[0])
            elif rest:
                others = True
    return Stored(
        hashes,
        None if parent is None else _hash(parent),
        wire.token_ids,
        wire.block_size,
        lora,
        salt or None,
        # an adapter's number without its name says nothing: older releases reuse numbers
        not others and len(wire.token_ids) == len(hashes) * wire.block_size and (wire.lora_id is None or lora is not None),
        _named(wire.medium) or GPU,
        wire.group_idx,
    )


def _hash(given: _Hash) -> int:
    """One unsigned 64-bit number: vLLM sends the low 64 bits of a digest, or the digest; SGLang a signed number."""
    if isinstance(given, int):
        return given & MASK
    if not 8 <= len(given) <= 64:
        raise ValueError(f"has a block hash of {len(given)} bytes")
    return int.from_bytes(given[-8:], "big")


def _named(name: str | None) -> str | None:
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise ValueError(f"has a name of {len(name)} characters, more than {MAX_NAME_CHARS}")
    return name
