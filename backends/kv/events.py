"""The KV events that engines publish, as values: one msgpack batch in, Stored / Removed / Cleared out. Pure.

vLLM and SGLang send `[time, [events…], rank]`. An event is a map with a "type" (today) or an array that begins with it (older
releases); both are read, and unknown fields and positions are ignored. An event of unknown type is not ignored: it may have removed
blocks, so its batch is refused and the stream is no longer exact.

Events carry every prompt's tokens and the tenants' cache salts in clear: neither may reach a log, an error or a `repr`.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

MASK: Final = (1 << 64) - 1
MAX_BATCH_BYTES: Final = 1024 * 1024
"""Largest batch read: some 200,000 tokens, where an engine's step computes some ten thousand. A batch is read and applied in one
turn of the event loop, during which all requests wait; this and the next two limits bound that turn."""
MAX_EVENTS: Final = 8_192
"""Events in one batch; SGLang sends one for each page that is evicted, so about as many as a step computes tokens."""
MAX_HASHES: Final = 65_536
"""Blocks in one batch, over all its events."""
MAX_NAME_CHARS: Final = 256
"""Longest adapter name or salt; vLLM takes salts of 128."""
MAX_BLOCK_SIZE: Final = 65_536
GPU: Final = "GPU"


class _Secretive(msgspec.Struct, frozen=True, gc=False):
    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class Stored(_Secretive, frozen=True, gc=False):
    """Blocks that the engine's prefix cache has from now on, a chain in order. An engine stores a block again when it computed it twice."""

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
    """Whether tokens, salt and adapter alone determine these blocks: `block_size` tokens for each hash, and no image in them."""
    medium: str = GPU
    group: int | None = None

    def __repr__(self) -> str:
        return f"Stored({len(self.hashes)} blocks of {self.block_size}, {'root' if self.parent is None else 'child'})"


class Removed(_Secretive, frozen=True, gc=False):
    """Blocks of which the engine dropped one copy."""

    hashes: list[int]
    medium: str = GPU
    group: int | None = None

    def __repr__(self) -> str:
        return f"Removed({len(self.hashes)} blocks)"


class Cleared(msgspec.Struct, frozen=True, gc=False):
    """The engine holds nothing any more."""


Event: TypeAlias = Stored | Removed | Cleared


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The changes that one step of an engine made to its KV cache."""

    at: float
    """Seconds since the epoch, by the engine's clock."""
    events: list[Event]
    """In the engine's order. Where an image stands in an engine's event, the blocks before it are an event of their own."""


_Hash: TypeAlias = int | bytes
_NIL: Final = msgspec.Raw(b"\xc0")


class _StoredMap(msgspec.Struct, tag="BlockStored", frozen=True, gc=False):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None
    token_ids: list[int | tuple[int, int]]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = _NIL
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
    extra_keys: msgspec.Raw = _NIL
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
    events: Annotated[list[_StoredMap | _RemovedMap | _ClearedMap], msgspec.Meta(max_length=MAX_EVENTS)]


class _ArrayBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    at: float
    events: Annotated[list[_StoredArray | _RemovedArray | _ClearedArray], msgspec.Meta(max_length=MAX_EVENTS)]


_MAPS: Final = msgspec.msgpack.Decoder(_MapBatch)
_ARRAYS: Final = msgspec.msgpack.Decoder(_ArrayBatch)
# extra keys are read last and one by one: as lists of anything they take fifty times as long as the rest of a batch
_EXTRA: Final = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MAX_HASHES)] | None)
_TEXTS: Final = msgspec.msgpack.Decoder(Annotated[list[str], msgspec.Meta(max_length=2)])
# tuples made once: a union is made anew at each of 8,192 events
_STORED: Final = (_StoredMap, _StoredArray)
_REMOVED: Final = (_RemovedMap, _RemovedArray)
_WITH_HASHES: Final = (*_STORED, *_REMOVED)
_CLEARED: Final = Cleared()


def decode(payload: bytes) -> Batch:
    """The batch in a message's last frame.

    Raises:
        ValueError: it is too large, no msgpack, or of another shape; the message gives the place, never the content.
    """
    if len(payload) > MAX_BATCH_BYTES:
        raise ValueError(f"has {len(payload)} bytes, more than {MAX_BATCH_BYTES}")
    wire = _wire(payload)
    hashes = sum(len(event.block_hashes) for event in wire.events if isinstance(event, _WITH_HASHES))
    if hashes > MAX_HASHES:
        raise ValueError(f"has {hashes} block hashes, more than {MAX_HASHES}")
    if not 0 <= wire.at < 1e12:
        raise ValueError("has no time of day")
    events: list[Event] = []
    for event in wire.events:
        if isinstance(event, _STORED):
            events += _stored(event)
        elif isinstance(event, _REMOVED):
            events.append(Removed(_hashes(event.block_hashes), _named(event.medium) or GPU, event.group_idx))
        else:
            events.append(_CLEARED)
    return Batch(wire.at, events)


def _wire(payload: bytes) -> _MapBatch | _ArrayBatch:
    try:
        return _MAPS.decode(payload)
    except (ValueError, RecursionError) as error:
        if "Expected `object`, got `array`" not in str(error):
            raise ValueError(_error_text(error)) from None
    try:
        return _ARRAYS.decode(payload)  # an older release
    except (ValueError, RecursionError) as error:
        raise ValueError(_error_text(error)) from None


def _error_text(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "has text that is not UTF-8"
    text = str(error)
    if text.startswith("Invalid value"):
        return f"has an event of unknown type{text[text.rfind(' - at ') :][:80] if ' - at ' in text else ''}"
    return f"is no batch of KV events: {text[:160]}"


def _stored(wire: _StoredMap | _StoredArray) -> list[Event]:
    """The event; as two where tokens, salt and adapter alone determine only its first blocks, because an image follows them. An image is
    in the hash of every block behind it, so those blocks are told by nothing that the gateway knows."""
    hashes = _hashes(wire.block_hashes)
    if not 1 <= wire.block_size <= MAX_BLOCK_SIZE:
        raise ValueError(f"has blocks of {wire.block_size} tokens")
    if len(wire.token_ids) > len(hashes) * wire.block_size:
        raise ValueError(f"has {len(wire.token_ids)} tokens for {len(hashes)} blocks of {wire.block_size}")
    lora = _named(wire.lora_name)
    parent = wire.parent_block_hash
    first_salt, text = _extra(wire.extra_keys, len(hashes), lora, root=parent is None)
    salt = _named(first_salt or wire.cache_salt)
    whole = Stored(
        hashes,
        None if parent is None else _hash(parent),
        wire.token_ids,
        wire.block_size,
        lora,
        salt or None,
        # an adapter's number without its name says nothing: older releases reuse numbers
        (text > 0 or not hashes) and len(wire.token_ids) == len(hashes) * wire.block_size and (wire.lora_id is None or lora is not None),
        _named(wire.medium) or GPU,
        wire.group_idx,
    )
    if not whole.by_tokens or text == len(hashes):
        return [whole]
    tokens = text * wire.block_size
    return [
        msgspec.structs.replace(whole, hashes=hashes[:text], tokens=wire.token_ids[:tokens]),
        Stored(hashes[text:], hashes[text - 1], wire.token_ids[tokens:], wire.block_size, lora, None, False, whole.medium, whole.group),
    ]


def _extra(raw: msgspec.Raw, blocks: int, lora: str | None, *, root: bool) -> tuple[str | None, int]:
    """A prompt's salt out of vLLM's extra keys (one list or nil for each block), and how many blocks come before the first one with a key
    that is neither a salt nor the adapter: an image, say."""
    if raw == _NIL:
        return None, blocks
    try:
        keys_of_blocks = _EXTRA.decode(raw) or []
    except (ValueError, RecursionError) as error:
        raise ValueError(_error_text(error)) from None
    if len(keys_of_blocks) > blocks:
        raise ValueError(f"has extra keys of {len(keys_of_blocks)} blocks where it has {blocks}")
    # compared in packed form: an adapter's blocks all have the same key
    known = (b"\xc0", b"\x90", msgspec.msgpack.encode([lora]))
    odd = [at for at, keys in enumerate(keys_of_blocks) if bytes(keys) not in known]
    if root and odd and odd[0] == 0 and (salt := _salt(keys_of_blocks[0], lora)) is not None:
        return salt, odd[1] if len(odd) > 1 else blocks
    return None, odd[0] if odd else blocks


def _salt(keys: msgspec.Raw, lora: str | None) -> str | None:
    try:
        rest = [key for key in _TEXTS.decode(keys) if key != lora]
    except (ValueError, RecursionError):
        return None
    return rest[0] if len(rest) == 1 else None


def _hashes(values: list[_Hash]) -> list[int]:
    return [value & MASK if isinstance(value, int) else _low_bits(value) for value in values]


def _hash(value: _Hash) -> int:
    """The hash as an unsigned 64-bit number: vLLM sends the low 64 bits of a digest, or the digest; SGLang a signed number."""
    return value & MASK if isinstance(value, int) else _low_bits(value)


def _low_bits(digest: bytes) -> int:
    if not 8 <= len(digest) <= 64:
        raise ValueError(f"has a block hash of {len(digest)} bytes")
    return int.from_bytes(digest[-8:], "big")


def _named(name: str | None) -> str | None:
    if name is not None and len(name) > MAX_NAME_CHARS:
        raise ValueError(f"has a name of {len(name)} characters, more than {MAX_NAME_CHARS}")
    return name
