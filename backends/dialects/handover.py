"""Disaggregated prefill and decode: the additional members of the two calls that make two engines serve one request. Pure.

Two protocols are known. With `at_once` False (vLLM's NIXL connector) the prompt is computed first, by a call for one token that asks to
keep its KV; the description of that KV in the reply goes unchanged into the second call. With `at_once` True (SGLang) both calls are sent
together and name an address and a number (the room) at which the engines meet.

All these members are set by the gateway: callers' fields of the same names were removed before (`gateway.http.openai.controls`).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

MAX_PARAMS_BYTES: Final = 1024 * 1024
"""Largest description of a request's KV: 131,072 tokens in blocks of 16 are 8,192 numbers, some 60 KB."""

MAX_REPLY_BYTES: Final = 2 * MAX_PARAMS_BYTES
"""Largest reply to a prefill call, which holds one token beside that description."""


class Handover(msgspec.Struct, frozen=True):
    """The disaggregation protocol of one kind of engine."""

    at_once: bool
    """Whether both calls are sent together."""
    field: str
    """With `at_once` False the member that holds the request for KV, and later its description; with True the prefix of the members
    `<field>_host`, `<field>_port` and `<field>_room`."""
    asks: Mapping[str, object] = {}
    """The value of `field` in the prefill call, which asks the engine to keep the KV."""
    prefill: Mapping[str, object] = {}
    """Fields that have other values in the prefill call."""
    prefill_if_there: Mapping[str, object] = {}
    """Fields that have other values in the prefill call where the request has them."""
    prefill_without: frozenset[str] = frozenset()
    """Fields of the request that the prefill call leaves out."""
    pairs_whole: bool = False
    """Whether an engine that also serves whole requests can be one of a pair."""
    alone: Mapping[str, object] = {}
    """Fields that make a prefill or decode engine serve a request alone, for probes; empty where a usual request does."""
    lease_s: float = 30.0
    """How long an engine keeps KV that is not fetched, seconds."""
    unsplit: frozenset[str] = frozenset()
    """Fields whose presence means that the request cannot be split: their answer is made while the prompt is computed."""

    def prefill_body(self, body: bytes, room: tuple[str, int, int] | None) -> bytes:
        """The body of the prefill call for this request body.

        Args:
            room: host, port and number at which the engines meet (`at_once` True); None otherwise.
        """
        fields: dict[str, object] = dict(_members(body))
        for name in self.prefill_without:
            fields.pop(name, None)
        fields |= self.prefill
        fields |= {name: value for name, value in self.prefill_if_there.items() if name in fields}
        if room is not None:
            fields |= self._meeting(room)
        else:
            fields[self.field] = self.asks
        return msgspec.json.encode(fields)

    def decode_body(self, body: bytes, params: msgspec.Raw | None, room: tuple[str, int, int] | None) -> bytes:
        """The body of the decode call: the source of the KV, then the request unchanged.

        Args:
            params: the description of the KV in the prefill reply (`params_of`); None where it had none, and the prompt is computed again.
        """
        front = self._meeting(room) if room is not None else {} if params is None else {self.field: params}
        return body if not front else msgspec.json.encode(front)[:-1] + b"," + body[1:]

    def _meeting(self, room: tuple[str, int, int]) -> dict[str, object]:
        return {f"{self.field}_{name}": value for name, value in zip(("host", "port", "room"), room, strict=True)}

    def params_of(self, reply: bytes) -> msgspec.Raw | None:
        """The description of the KV in a prefill reply; None when the engine kept none, as for a prompt shorter than a block.

        Raises:
            ValueError: the reply is no answer, or its description is larger than any engine's.
        """
        try:
            params = _members(reply).get(self.field)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the prefill engine's reply is no JSON object: {error}") from None
        description = b"null" if params is None else bytes(params)
        if description == b"null":
            return None
        if len(description) > MAX_PARAMS_BYTES:
            raise ValueError(f"{self.field} has {len(description):,} bytes")
        if not description.startswith(b"{"):
            raise ValueError(f"{self.field} is no object")
        return msgspec.Raw(description)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
