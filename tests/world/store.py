"""A Valkey of a world: speaks RESP, and does what our scripts do with the reference books of `tenancy`, whose twin the scripts are
(tests/property/test_quota.py drives both). Only what the gateway's own client sends is understood."""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import msgspec

from tenancy.expiry import Forgetting
from tenancy.limits import MINUTE_US, Vector, Window
from tenancy.quota import TagCounters
from tenancy.rates import MONTH, NOW, RATE, Calendar, CompiledGroup, CompiledLimit
from tenancy.seeds import Seed
from tenancy.stores.valkey.client import TEXTS

_pack = msgspec.msgpack.encode
_lines = msgspec.msgpack.Decoder(list[int | str]).decode
_vector = msgspec.msgpack.Decoder(Vector).decode
_OTHER_WINDOWS = {1: Window.DAY, MONTH: Window.MONTH}


class Store:
    """What one server knows. `began` is another one each time that it starts without its data."""

    def __init__(self, now_us: Callable[[], int], log: Callable[..., None]) -> None:
        self._now_us, self._log = now_us, log
        self._scripts = {hashlib.sha1(text.encode()).hexdigest().encode(): name for name, text in TEXTS.items()}
        self._plans: dict[bytes, CompiledGroup] = {}
        self.began = 0
        self.forget()

    def forget(self) -> None:
        """Start with nothing."""
        self.began += 1
        self.calendar, self._forgetting = Calendar(), Forgetting()
        self.books: dict[bytes, TagCounters] = {}
        self._members: dict[bytes, int] = {}
        self._seats: dict[bytes, dict[bytes, int]] = {}
        self._lineage: bytes | None = None
        self._turn: tuple[bytes, int] = (b"", 0)
        self._late_until = 0

    def of(self, tag: bytes) -> TagCounters:
        """The books of a tag."""
        self.calendar.turn_to(self._now_us())
        found = self.books.get(tag)
        if found is None:
            found = self.books[tag] = TagCounters(self.calendar, self._forgetting)
        return found

    def answer(self, command: list[bytes]) -> bytes:
        """The reply to one command, packed."""
        word = command[0].upper()
        if word == b"EVALSHA":
            name = self._scripts[command[1]]
            keys = int(command[2])
            self._log("store", name, *(one[-60:] for one in command[3:5]))
            return resp(getattr(self, f"do_{name}")(command[3 : 3 + keys], command[3 + keys :], self._now_us()))
        if word == b"INFO":
            return resp(b"role:master\r\nmaster_replid:%040d\r\n" % self.began)
        return b"+PONG\r\n" if word == b"PING" else b"+OK\r\n"

    # --- the scripts ----------------------------------------------------------------------------------------------

    def do_admit(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> bytes:
        books, (hold_id, lines, packed) = self.of(_tag(keys)), args
        books.reap(now_us)
        plan, vector, name = self._plan(lines), _vector(packed), hold_id.decode()
        if books.knows(name, now_us):
            return _pack([2, now_us, *books.positions(plan, now_us)])
        afters = books.decide(plan, vector, now_us)
        if afters is None:
            return _pack([0, now_us, *books.positions(plan, now_us)])
        books.open(name, plan, vector, afters, now_us)
        return _pack([1, now_us, *afters])

    def do_beat(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> list[int]:
        books, unknown = self.of(_tag(keys)), []
        for place in range(len(keys) - 2):
            hold_id, delivered, at_most, lines = args[4 * place : 4 * place + 4]
            name = hold_id.decode()
            if not lines and not books.knows(name, now_us):
                unknown.append(place + 1)
            else:
                books.beat(name, self._plan(lines) if lines else _NO_PLAN, _vector(delivered), _vector(at_most), now_us)
        return unknown

    def do_settle(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> int:
        books, name = self.of(_tag(keys)), args[0].decode()
        books.settle(name, _vector(args[1]), now_us)
        if args[2] == b"1":
            books.settled.pop(name, None)
        return 1

    def do_look(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> bytes:
        books, plan = self.of(_tag(keys)), self._plan(args[0])
        books.reap(now_us)
        reply = [now_us]
        for line in plan.lines:
            settled, held = books.counted(line, now_us)
            reply += [settled] if line.kind == RATE else [held] if line.kind == NOW else [settled, held]
        return _pack(reply)

    def do_seed(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> bytes:
        books, given, found = self.of(_tag(keys)), _lines(args[0]), []
        books.reap(now_us)
        for at in range(0, len(given), 5):
            key, kind, period, settled, instead_of = given[at : at + 5]
            window = _OTHER_WINDOWS.get(int(kind), Window.EVER)
            seed = Seed(str(key)[2:], window, int(period), int(settled), None if int(instead_of) < 0 else int(instead_of))
            now = books.seed(int(kind), seed, now_us)
            found.append(-1 if now is None else now)
        return _pack(found)

    def do_presence(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> list[int]:
        self._members[args[0]] = now_us
        self._members = {one: at for one, at in self._members.items() if at > now_us - int(args[1])}
        changed = 2 if self._lineage is None else int(self._lineage != args[2] and args[2] != b"")
        if changed:
            self._lineage = args[2]
        return [len(self._members), changed]

    def do_seats(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> list[int]:
        seats, after_us = self._seats.setdefault(keys[0], {}), int(args[1])
        if after_us:
            seats[args[0]] = now_us
            self._seats[keys[0]] = seats = {one: at for one, at in seats.items() if at > now_us - after_us}
        else:
            seats.pop(args[0], None)
        return [len(seats), sum(one < args[0] for one in seats)]

    def do_turn(self, keys: Sequence[bytes], args: Sequence[bytes], now_us: int) -> list[int]:
        if int(args[2]) > 0:
            self._late_until = now_us + int(args[2]) * 1000
        whose, until = self._turn
        ours = until <= now_us or whose == args[0]
        if ours:
            self._turn = (args[0], now_us + int(args[1]) * 1000)
        return [int(ours), int(self._late_until > now_us)]

    def _plan(self, packed: bytes) -> CompiledGroup:
        """Lines as scripts take them, as the books take them."""
        found = self._plans.get(packed)
        if found is None:
            given: list[Any] = list(_lines(packed))
            rates, cells, gauges = given[:3]
            at, ready = 3, []
            for _ in range(rates):
                field, meter, amount, burst, burst_us = given[at : at + 5]
                each = MINUTE_US // amount if amount and not MINUTE_US % amount else 0
                ready.append(CompiledLimit(RATE, meter - 1, field[2:], amount, burst, burst_us, each, 0, _NO_LINE))
                at += 5
            for _ in range(cells):
                field, kind, meter, amount = given[at : at + 4]
                ready.append(CompiledLimit(kind, meter - 1, field[2:], amount, 0, 0, 0, 0, _NO_LINE))
                at += 4
            for _ in range(gauges):
                ready.append(CompiledLimit(NOW, 6, given[at][2:], given[at + 1], 0, 0, 0, 0, _NO_LINE))
                at += 2
            assert at == len(given), "limits of end users are not modelled here"
            found = self._plans[packed] = _planned(ready)
        return found


_NO_LINE: Any = None
_NO_PLAN = CompiledGroup((), (), (), ())


def _planned(of: list[CompiledLimit]) -> CompiledGroup:
    return CompiledGroup(
        tuple(of),
        tuple((line.meter, line.key, line.amount, line.burst, line.burst_us, line.each_us) for line in of if line.kind == RATE),
        tuple((line.kind, line.meter, line.key, line.amount) for line in of if line.kind not in (RATE, NOW)),
        tuple((line.key, line.amount) for line in of if line.kind == NOW),
    )


def _tag(keys: Sequence[bytes]) -> bytes:
    return keys[0][keys[0].index(b"{") + 1 : keys[0].index(b"}")]


def resp(value: Any) -> bytes:
    """A value as RESP2."""
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n%b" % (len(value), b"".join(map(resp, value)))


class Served(asyncio.Protocol):
    """One connection to the store."""

    def __init__(self, store: Store, open_now: dict["Served", None]) -> None:
        self._store, self._open = store, open_now
        self._reader = hiredis.Reader()
        self.mute = False
        """Commands are carried out and not answered."""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._open[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            reply = self._store.answer(command)
            if not self.mute:
                self.transport.write(reply)


class StoreServer:
    """A store behind its address. Methods are called on its own host."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.open: dict[Served, None] = {}

    async def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Listen."""
        self._listening: Any = await loop.create_server(lambda: Served(self.store, self.open), "store", 6379)

    def stop(self) -> None:
        """Listen no more and end every connection."""
        self._listening.close()
        for one in list(self.open):
            one.transport.abort()

    def lose_replies(self) -> None:
        """What is asked on the connections that are open now is done, and nobody hears of it."""
        for one in list(self.open):
            one.mute = True
