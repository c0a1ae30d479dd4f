"""Answers in a Redis or Valkey that several gateways share: sealed, compressed, with an end of their time, bounded by bytes for each owner.

The scripts run through a port, so that this package needs no client of its own: one server, Sentinels or a cluster. A store that is
away, or slower than its patience, has no answers; it never fails a request.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib.resources import files
from struct import Struct
from typing import Any, Final, Protocol

import msgspec

from cache.answers import Answer, Sealer
from cache.ports import MAX_LOOKED_THROUGH, KeptEntry, Selection, StoreFigures
from domain.clock import Clock

PATIENCE_S: Final = 0.03
"""How long a look-up waits. An answer that comes later is worth less than beginning with the engine."""
WRITE_PATIENCE_S: Final = 0.25
REST_S: Final = 1.0
"""How long a store is not asked after it was away or too slow."""
KEYS_AT_ONCE: Final = 256
LISTED_AT_ONCE: Final = 200

_PARTS: Final = {"get": ("get",), "put": ("owner", "put"), "purge": ("owner", "purge"), "look": ("owner", "look"), "list": ("list",)}


def _text(parts: Sequence[str]) -> str:
    folder = files("cache.stores").joinpath("lua")
    return "".join([folder.joinpath(f"{part}.lua").read_text() for part in parts])


TEXTS: Final[Mapping[str, str]] = {name: _text(parts) for name, parts in _PARTS.items()}
"""The scripts by name."""

_pack = msgspec.msgpack.Encoder().encode
_unpack_row = msgspec.msgpack.Decoder(tuple[int, str, str, str, int, str]).decode
_length = Struct(">I")


class AnswerScripts(Protocol):
    """Runs the scripts of `TEXTS`."""

    async def run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int]) -> Any:
        """The script's reply. All keys are in the slot of the first."""
        ...


class ValkeyAnswers:
    """`cache.ports.AnswerStore` in Redis or Valkey.

    Args:
        scripts: runs the scripts.
        away: the exception that `scripts` raises while the store cannot be reached.
        sealer: seals what is stored.
        owner_bytes: the most bytes of one owner's entries.
        clock: monotonic seconds.
    """

    in_process = False

    def __init__(self, scripts: AnswerScripts, away: type[Exception], sealer: Sealer, owner_bytes: int, clock: Clock) -> None:
        self._scripts = scripts
        self._away = away
        self._sealer = sealer
        self._owner_bytes = owner_bytes
        self._clock = clock
        self._rests_until = 0.0
        self.misses_away = 0
        """Look-ups that were misses because the store was away or too slow."""
        self.lost = 0
        """Answers that could not be kept."""
        self.evicted = 0
        """Entries that had to make room."""
        self.refused = 0
        """Entries that were damaged, or sealed with another secret."""

    def get_now(self, key: bytes, owner: str, now: float) -> Answer | None:
        return None

    async def get(self, keys: Sequence[bytes], owner: str, now: float) -> list[Answer | None]:
        found: list[Answer | None] = []
        for at in range(0, len(keys), KEYS_AT_ONCE):
            part = keys[at : at + KEYS_AT_ONCE]
            reply = await self._run("get", [_entry(owner, key) for key in part], (), PATIENCE_S)
            if reply is None:
                self.misses_away += 1
                return [*found, *[None] * (len(keys) - len(found))]
            found += [self._opened(value, owner, key, now) for key, value in zip(part, _values(reply), strict=True)]
        return found

    def _opened(self, value: bytes, owner: str, key: bytes, now: float) -> Answer | None:
        if not value:
            return None
        answer = self._sealer.opened(value, owner, key)
        if answer is None:
            self.refused += 1
            return None
        return answer if answer.expires_at > now else None

    async def put(self, answers: Sequence[Answer]) -> None:
        for at in range(0, len(answers), KEYS_AT_ONCE):
            part = answers[at : at + KEYS_AT_ONCE]
            owner = part[0].owner
            args: list[bytes | int] = [self._owner_bytes]
            for answer in part:
                sealed = self._sealer.seal(answer)
                args += (sealed, int(answer.expires_at * 1000), _row(answer, len(sealed)))
            evicted = await self._run("put", [*_of(owner), *[_entry(owner, answer.key) for answer in part]], args, WRITE_PATIENCE_S)
            if evicted is None:
                self.lost += len(part)
            else:
                self.evicted += evicted

    async def purge(self, selection: Selection) -> int:
        """Raises the exception `away` while the store cannot be reached: whoever purges has to know."""
        before_ms = -1 if selection.before is None else int(selection.before * 1000)
        conditions = (selection.model.encode(), selection.namespace.encode(), selection.user.encode(), before_ms)
        cursor, removed = 0, 0
        while True:
            reply: list[int] = await self._scripts.run("purge", _of(selection.owner), (cursor, *conditions))
            cursor, removed = reply[0], removed + reply[1]
            if not cursor:
                return removed

    async def entries(self, selection: Selection, most: int, now: float) -> list[KeptEntry]:
        """The entries whose time ends last; raises as `purge`."""
        found: list[KeptEntry] = []
        for passed in range(0, MAX_LOOKED_THROUGH, LISTED_AT_ONCE):
            page = await self._scripts.run("list", _of(selection.owner), (passed, LISTED_AT_ONCE))
            for name, ends_ms, row in page:
                if row and int(ends_ms) > now * 1000:
                    entry, user = _listed(name, int(ends_ms), row)
                    if _selects(selection, entry, user):
                        found.append(entry)
            if len(found) >= most or len(page) < LISTED_AT_ONCE:
                break
        return found[:most]

    def figures(self) -> StoreFigures:
        return StoreFigures(kind="shared", evicted=self.evicted, away=self.misses_away, lost=self.lost, refused=self.refused)

    async def held(self, owner: str) -> tuple[int, int]:
        """Entries of an owner and their bytes; raises as `purge`."""
        entries, size = await self._scripts.run("look", _of(owner), ())
        return entries, size

    async def _run(self, script: str, keys: Sequence[bytes], args: Sequence[bytes | int], patience_s: float) -> Any:
        """The reply; None where the store is away or too slow."""
        if self._clock() < self._rests_until:
            return None
        try:
            async with asyncio.timeout(patience_s):
                return await self._scripts.run(script, keys, args)
        except (TimeoutError, self._away):
            self._rests_until = self._clock() + REST_S
            return None


def _of(owner: str) -> list[bytes]:
    name = b"tga:{%b}" % owner.encode()
    return [name, name + b":rows"]


def _entry(owner: str, key: bytes) -> bytes:
    return b"tga:{%b}:%b" % (owner.encode(), key.hex().encode())


def _row(answer: Answer, size: int) -> bytes:
    return _pack((size, answer.model, answer.namespace, answer.user, int(answer.kept_at * 1000), answer.writer))


def _listed(name: bytes, ends_ms: int, row: bytes) -> tuple[KeptEntry, str]:
    """An entry, and the digest of its end user."""
    size, model, namespace, user, kept_ms, writer = _unpack_row(row)
    key = name.rpartition(b":")[2].decode()
    seconds = (kept_ms / 1000, ends_ms / 1000)
    entry = KeptEntry(key=key, model=model, namespace=namespace, bytes=size, kept_at=seconds[0], expires_at=seconds[1], writer=writer)
    return entry, user


def _selects(selection: Selection, entry: KeptEntry, user: str) -> bool:
    return (
        (not selection.model or entry.model == selection.model)
        and (not selection.namespace or entry.namespace == selection.namespace)
        and (not selection.user or user == selection.user)
        and (selection.before is None or entry.kept_at < selection.before)
    )


def _values(reply: bytes) -> list[bytes]:
    values, at = [], 0
    while at < len(reply):
        (size,) = _length.unpack_from(reply, at)
        values.append(reply[at + 4 : at + 4 + size])
        at += 4 + size
    return values
