"""How two engines are made to share one request: what each of the two calls says beside the request itself. Pure.

Two ways are known. With `at_once` False (vLLM's NIXL connector) the prompt is computed first, by a call for one token that
asks to keep its KV; what the reply says of where that lies goes into the second call as it is. With `at_once` True (SGLang)
both calls go out together and name a place and a number at which the engines meet.

Everything said here is ours: callers' own fields of these names were stripped (`gateway.http.openai.controls`).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

MAX_PARAMS_BYTES: Final = 1024 * 1024
"""Of what an engine says about where KV lies: 131,072 tokens in blocks of 16 are 8,192 numbers, some 60 KB."""

MAX_REPLY_BYTES: Final = 2 * MAX_PARAMS_BYTES
"""Of a whole reply to a prefill call, which holds one token beside that."""


class Handover(msgspec.Struct, frozen=True):
    """One kind of engine's way."""

    at_once: bool
    field: str
    """Where the request for KV, and later the description of it, stands (`at_once` False); else the beginning of the names of
    `<field>_host`, `<field>_port` and `<field>_room`."""
    asks: Mapping[str, object] = {}
    """What asks for KV to be kept; the value of `field` in the first call."""
    prefill: Mapping[str, object] = {}
    """Fields of the request that the call for the prompt has other values of."""
    prefill_if_there: Mapping[str, object] = {}
    """The same, where the request has the field."""
    prefill_without: frozenset[str] = frozenset()
    """Fields of the request that it leaves out."""
    pairs_whole: bool = False
    """Whether an engine that serves requests whole can also be half of a pair."""
    alone: Mapping[str, object] = {}
    """Fields by which one half computes by itself, for probes; empty where a usual request does."""
    lease_s: float = 30.0
    """How long an engine keeps KV that nobody fetches."""
    unsplit: frozenset[str] = frozenset()
    """Fields whose presence means that the request cannot be split: their answer is made while the prompt is computed."""

    def prefill_body(self, body: bytes, room: tuple[str, int, int] | None) -> bytes:
        """The call that computes the prompt, of the whole request's body.

        Args:
            room: host, port and number where the engines meet; None where they do not.
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
        """The call that generates: the request as it is, behind what says where its KV comes from.

        Args:
            params: what the first reply said (`params_of`); None where it said nothing, and the prompt is computed once more.
        """
        front = self._meeting(room) if room is not None else {} if params is None else {self.field: params}
        return body if not front else msgspec.json.encode(front)[:-1] + b"," + body[1:]

    def _meeting(self, room: tuple[str, int, int]) -> dict[str, object]:
        return {f"{self.field}_{name}": value for name, value in zip(("host", "port", "room"), room, strict=True)}

    def params_of(self, reply: bytes) -> msgspec.Raw | None:
        """What a reply to the first call says of its KV; None when it kept none, as for a prompt shorter than a block.

        Raises:
            ValueError: the reply is no answer, or says more than any engine would.
        """
        try:
            params = _members(reply).get(self.field)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"the prefill engine's reply is no JSON object: {error}") from None
        said = b"null" if params is None else bytes(params)
        if said == b"null":
            return None
        if len(said) > MAX_PARAMS_BYTES:
            raise ValueError(f"{self.field} has {len(said):,} bytes")
        if not said.startswith(b"{"):
            raise ValueError(f"{self.field} is no object")
        return msgspec.Raw(said)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
